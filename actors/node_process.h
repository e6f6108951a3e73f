/// A child process that plays a node: started in a process group of its own, killed with it, never
/// left behind. Its output is kept so that an error can quote the last lines.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "planner/result.h"
#include "planner/units.h"

namespace troupe {

class NodeProcess {
 public:
  /// Runs program with these arguments (argv[1] on). The child dies when the calling thread's
  /// process does.
  static Result<NodeProcess> start(const std::string& program,
                                   const std::vector<std::string>& arguments,
                                   std::string node);
  NodeProcess(NodeProcess&& other) noexcept;
  NodeProcess& operator=(NodeProcess&&) = delete;
  /// Kills the group and waits for the child.
  ~NodeProcess();

  const std::string& node() const { return node_; }
  pid_t pid() const { return pid_; }
  /// "exit status 3" or "signal 9 (Killed)" once it has ended.
  std::optional<std::string> ended();
  /// Waits for the end at most so long; false: it still runs.
  bool wait(Seconds timeout);
  /// The last lines that it wrote, at most `lines`.
  std::string last_lines(std::size_t lines = 20) const;

 private:
  NodeProcess() = default;
  pid_t pid_ = -1;
  int log_fd_ = -1;
  std::string node_;
  std::optional<std::string> ended_;
};

}  // namespace troupe
