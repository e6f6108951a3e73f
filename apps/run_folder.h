/// The folder that a run leaves behind: config.toml, plan.json, metrics.jsonl, events.jsonl,
/// trace.json, checkpoints/ and report.html.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "actors/launch.h"
#include "planner/plan.h"
#include "planner/result.h"

namespace troupe {

/// One line of metrics.jsonl. Bit patterns and hashes are 16 hexadecimal digits; what is not finite
/// is null beside its bits.
std::string metrics_line(const StepRow& row, const ClusterSpec& cluster);
std::string metrics_line(const EvaluationRow& row);
std::string event_line(const RunEvent& event);

/// Rows of a run's earlier life, without their devices.
struct EarlierRows {
  std::vector<StepRow> steps;
  std::vector<EvaluationRow> evaluations;
};

class RunFolder {
 public:
  /// Refuses a folder that holds a run; creates nothing.
  static Status check_unused(const std::filesystem::path& folder);
  /// A new run: refuses a folder that holds one already. Makes the folder. It is this process's
  /// alone until the object ends.
  static Result<RunFolder> create(const std::filesystem::path& folder);
  /// Goes on from `step`: rows of later steps leave metrics.jsonl, events are kept. `earlier`
  /// gets what the rows that stay say about loss and time.
  static Result<RunFolder> reopen(const std::filesystem::path& folder,
                                  std::uint64_t step,
                                  EarlierRows& earlier);

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path checkpoints() const { return path_ / "checkpoints"; }
  /// Replaces one file, at one instant.
  Status write(const std::string& name, const std::string& text) const;
  /// Adds a line, which is on its way to disk when this returns.
  Status add_metrics(const std::string& line);
  Status add_event(const std::string& line);

 private:
  explicit RunFolder(std::filesystem::path path) : path_(std::move(path)) {}
  /// Refuses a folder that another process writes to.
  Status lock();
  Status open_logs();
  struct Lock {
    int fd = -1;
    Lock() = default;
    Lock(Lock&& other) noexcept : fd(std::exchange(other.fd, -1)) {}
    Lock& operator=(Lock&& other) noexcept {
      std::swap(fd, other.fd);
      return *this;
    }
    ~Lock();
  };
  std::filesystem::path path_;
  Lock lock_;
  std::ofstream metrics_, events_;
};

}  // namespace troupe
