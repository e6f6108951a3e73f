#include "actors/node_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>
#include <utility>

namespace troupe {
namespace {

constexpr off_t quoted_bytes = 8192;

/// Between fork and exec: only what is safe there.
[[noreturn]] void become(char* const* argv, int log_fd, pid_t parent) {
  (void)setpgid(0, 0);
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // it died before the line above
  const int nothing = open("/dev/null", O_RDONLY);
  if (nothing >= 0) (void)dup2(nothing, STDIN_FILENO);
  (void)dup2(log_fd, STDOUT_FILENO);
  (void)dup2(log_fd, STDERR_FILENO);
  (void)close_range(3, ~0U, 0);
  sigset_t none;
  sigemptyset(&none);
  (void)sigprocmask(SIG_SETMASK, &none, nullptr);
  execv(argv[0], argv);
  static constexpr char text[] = "the program could not be started\n";
  (void)!write(STDERR_FILENO, text, sizeof text - 1);
  _exit(127);
}

}  // namespace

Result<NodeProcess> NodeProcess::start(const std::string& program,
                                       const std::vector<std::string>& arguments,
                                       std::string node) {
  NodeProcess process;
  process.node_ = std::move(node);
  process.log_fd_ = memfd_create("node-log", MFD_CLOEXEC);
  if (process.log_fd_ < 0)
    return Error{ErrorCode::io, fmt::format("node {}: no memory for its log: {}", process.node_,
                                            std::strerror(errno))};
  (void)fcntl(process.log_fd_, F_SETFL, O_APPEND);
  std::vector<std::string> words{program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t parent = getpid();
  process.pid_ = fork();
  if (process.pid_ == 0) become(argv.data(), process.log_fd_, parent);
  if (process.pid_ < 0)
    return Error{ErrorCode::io, fmt::format("node {}: {} could not be started: {}", process.node_,
                                            program, std::strerror(errno))};
  (void)setpgid(process.pid_, process.pid_);  // in both, so that neither comes too early
  return process;
}

NodeProcess::NodeProcess(NodeProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      log_fd_(std::exchange(other.log_fd_, -1)),
      node_(std::move(other.node_)),
      ended_(std::move(other.ended_)) {}

NodeProcess::~NodeProcess() {
  if (pid_ > 0 && !ended()) {
    (void)kill(-pid_, SIGKILL);
    (void)kill(pid_, SIGKILL);
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
  }
  if (log_fd_ >= 0) (void)close(log_fd_);
}

std::optional<std::string> NodeProcess::ended() {
  if (ended_ || pid_ <= 0) return ended_;
  int status = 0;
  const pid_t got = waitpid(pid_, &status, WNOHANG);
  if (got < 0 && errno == ECHILD)
    ended_ = "an exit that was not told";  // who started this process ignores SIGCHLD
  else if (got != pid_)
    return std::nullopt;
  else if (WIFSIGNALED(status))
    ended_ = fmt::format("signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
  else
    ended_ = fmt::format("exit status {}", WEXITSTATUS(status));
  return ended_;
}

bool NodeProcess::wait(Seconds timeout) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(timeout);
  while (!ended()) {
    if (std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds{5});
  }
  return true;
}

std::string NodeProcess::last_lines(std::size_t lines) const {
  if (log_fd_ < 0) return {};
  const off_t size = lseek(log_fd_, 0, SEEK_END);
  if (size <= 0) return {};
  const off_t from = std::max<off_t>(0, size - quoted_bytes);
  std::string text(static_cast<std::size_t>(size - from), '\0');
  const ssize_t got = pread(log_fd_, text.data(), text.size(), from);
  text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  std::size_t begin = text.size();
  for (std::size_t n = 0; n < lines && begin != std::string::npos && begin > 0; ++n)
    begin = text.rfind('\n', begin - 1);
  if (begin != std::string::npos && begin < text.size()) text.erase(0, begin + 1);
  return text;
}

}  // namespace troupe
