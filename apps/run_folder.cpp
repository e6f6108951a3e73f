#include "apps/run_folder.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cmath>
#include <nlohmann/json.hpp>
#include <system_error>
#include <vector>

namespace troupe {
namespace {

namespace fs = std::filesystem;

std::string hex(std::uint64_t bits) {
  return fmt::format("{:016x}", bits);
}

nlohmann::json finite(double value) {
  return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(nullptr);
}

double number_of(const nlohmann::json& row, const char* key) {
  const auto found = row.find(key);
  return found != row.end() && found->is_number() ? found->get<double>() : std::nan("");
}

void remember(const nlohmann::json& row, EarlierRows& earlier) {
  if (row.contains("validation_loss")) {
    EvaluationRow evaluation;
    evaluation.step = row["step"].get<std::uint64_t>();
    evaluation.loss = number_of(row, "validation_loss");
    earlier.evaluations.push_back(evaluation);
    return;
  }
  StepRow step;
  step.step = row["step"].get<std::uint64_t>();
  step.loss_bits = std::bit_cast<std::uint64_t>(number_of(row, "loss"));
  step.gradient_norm_bits = std::bit_cast<std::uint64_t>(number_of(row, "gradient_norm"));
  step.seconds = number_of(row, "seconds");
  earlier.steps.push_back(step);
}

Error cannot(const std::string& what, const fs::path& path, const std::string& why) {
  return {ErrorCode::io, fmt::format("cannot {} {}: {}", what, path.string(), why)};
}

}  // namespace

std::string metrics_line(const StepRow& row, const ClusterSpec& cluster) {
  nlohmann::ordered_json line;
  line["step"] = row.step;
  line["loss"] = finite(row.loss());
  line["loss_bits"] = hex(row.loss_bits);
  line["gradient_norm"] = finite(row.gradient_norm());
  line["gradient_norm_bits"] = hex(row.gradient_norm_bits);
  if (row.has_state_hash) line["state_hash"] = hex(row.state_hash);
  line["skipped"] = row.skipped;
  line["learning_rate"] = row.learning_rate;
  line["tokens"] = row.tokens;
  line["seconds"] = row.seconds;
  line["tokens_per_second"] = row.seconds > 0 ? static_cast<double>(row.tokens) / row.seconds : 0.0;
  auto devices = nlohmann::ordered_json::array();
  for (const DeviceRow& device : row.devices) {
    const std::size_t index = device.device.index();
    devices.push_back(
        {{"device", index < cluster.devices.size() ? cluster.devices[index].name : ""},
         {"busy_seconds", device.busy},
         {"peak_bytes", device.peak},
         {"allocations", device.allocations},
         {"resent_tensors", device.resent}});
  }
  line["devices"] = devices;
  return line.dump();
}

std::string metrics_line(const EvaluationRow& row) {
  nlohmann::ordered_json line;
  line["step"] = row.step;
  line["validation_loss"] = finite(row.loss);
  line["validation_tokens"] = row.tokens;
  return line.dump();
}

std::string event_line(const RunEvent& event) {
  nlohmann::ordered_json line;
  const auto since = event.time.time_since_epoch();
  const auto milliseconds = std::chrono::floor<std::chrono::milliseconds>(since).count() % 1000;
  line["time"] =
      fmt::format("{:%FT%H:%M:%S}.{:03}Z",
                  fmt::gmtime(std::chrono::system_clock::to_time_t(event.time)), milliseconds);
  line["step"] = event.step;
  line["event"] = event.kind;
  line["text"] = event.text;
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Status RunFolder::check_unused(const fs::path& folder) {
  std::error_code failure;
  if (fs::exists(folder / "metrics.jsonl", failure) || fs::exists(folder / "config.toml", failure))
    return Error{
        ErrorCode::invalid_input,
        fmt::format("{} holds a run already; go on with --resume where it has a checkpoint, take "
                    "another name with --set run.name=NAME, or remove it",
                    folder.string())};
  return {};
}

Result<RunFolder> RunFolder::create(const fs::path& folder) {
  TROUPE_TRY(check_unused(folder));
  std::error_code failure;
  fs::create_directories(folder, failure);
  if (failure) return cannot("make", folder, failure.message());
  RunFolder run(folder);
  TROUPE_TRY(run.lock());
  TROUPE_TRY(check_unused(folder));  // by one that was faster
  TROUPE_TRY(run.open_logs());
  return run;
}

Result<RunFolder> RunFolder::reopen(const fs::path& folder,
                                    std::uint64_t step,
                                    EarlierRows& earlier) {
  std::error_code failure;
  fs::create_directories(folder, failure);
  if (failure) return cannot("make", folder, failure.message());
  RunFolder run(folder);
  TROUPE_TRY(run.lock());
  std::string kept;
  {
    std::ifstream old(folder / "metrics.jsonl");
    for (std::string line; std::getline(old, line);) {
      const auto row = nlohmann::json::parse(line, nullptr, false);
      // A line that a crash cut off, and steps that will be done again.
      if (!row.is_object() || !row.contains("step") || !row["step"].is_number_unsigned()) continue;
      if (row["step"].get<std::uint64_t>() > step) continue;
      kept += line + "\n";
      remember(row, earlier);
    }
  }
  TROUPE_TRY(run.write("metrics.jsonl", kept));
  TROUPE_TRY(run.open_logs());
  return run;
}

Status RunFolder::lock() {
  const fs::path path = path_ / ".lock";
  // Node processes do not inherit it: the lock ends with this process, however that ends.
  lock_.fd = ::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644);
  if (lock_.fd < 0) return cannot("open", path, std::generic_category().message(errno));
  if (::flock(lock_.fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return cannot("lock", path, std::generic_category().message(errno));
    return Error{ErrorCode::invalid_input,
                 fmt::format("{} belongs to a run that has not ended; wait for it, or take another "
                             "name with --set run.name=NAME",
                             path_.string())};
  }
  return {};
}

RunFolder::Lock::~Lock() {
  if (fd >= 0) ::close(fd);
}

Status RunFolder::open_logs() {
  metrics_.open(path_ / "metrics.jsonl", std::ios::app);
  events_.open(path_ / "events.jsonl", std::ios::app);
  if (!metrics_) return cannot("write", path_ / "metrics.jsonl", "it cannot be opened");
  if (!events_) return cannot("write", path_ / "events.jsonl", "it cannot be opened");
  return {};
}

Status RunFolder::write(const std::string& name, const std::string& text) const {
  const fs::path target = path_ / name;
  const fs::path part = path_ / ("." + name + ".part");
  std::ofstream file(part, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file) return cannot("write", part, "the disk may be full");
  std::error_code failure;
  fs::rename(part, target, failure);
  if (failure) return cannot("replace", target, failure.message());
  return {};
}

Status RunFolder::add_metrics(const std::string& line) {
  metrics_ << line << '\n' << std::flush;
  if (!metrics_) return cannot("write", path_ / "metrics.jsonl", "the disk may be full");
  return {};
}

Status RunFolder::add_event(const std::string& line) {
  events_ << line << '\n' << std::flush;
  if (!events_) return cannot("write", path_ / "events.jsonl", "the disk may be full");
  return {};
}

}  // namespace troupe
