#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "actors/checkpoint/checkpoint.h"
#include "actors/checkpoint/checkpoint_write.h"
#include "actors/data/mapped_file.h"

namespace troupe {
namespace {

/// N of "step-N", as `checkpoint_name` writes it.
std::optional<std::uint64_t> step_of(std::string_view name) {
  constexpr std::string_view prefix = "step-";
  if (!name.starts_with(prefix)) return std::nullopt;
  const auto digits = name.substr(prefix.size());
  std::uint64_t step = 0;
  const auto [end, failure] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (failure != std::errc{} || end != digits.data() + digits.size()) return std::nullopt;
  return checkpoint_name(step) == name ? std::optional(step) : std::nullopt;
}

/// ".step-N.writing".
std::optional<std::uint64_t> step_of_unfinished(std::string_view name) {
  constexpr std::string_view suffix = ".writing";
  if (!name.starts_with(".") || !name.ends_with(suffix)) return std::nullopt;
  return step_of(name.substr(1, name.size() - 1 - suffix.size()));
}

/// The entries by step, unopened; unfinished ones carry their problem.
Result<std::vector<ListedCheckpoint>> entries_of(const std::filesystem::path& parent) {
  std::vector<ListedCheckpoint> entries;
  std::error_code failure;
  std::filesystem::directory_iterator files(parent, failure);
  if (failure == std::errc::no_such_file_or_directory) return entries;
  if (failure) return file_error(parent, "list", failure.value());
  for (const auto& file : files) {
    const std::string name = file.path().filename().string();
    if (const auto step = step_of(name))
      entries.push_back({file.path(), *step, std::nullopt});
    else if (const auto unfinished = step_of_unfinished(name))
      entries.push_back({file.path(), *unfinished,
                         Error{ErrorCode::corrupt,
                               fmt::format("{}: the save was interrupted", file.path().string())}});
  }
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return std::pair(a.step, a.folder) < std::pair(b.step, b.folder);
  });
  return entries;
}

/// Fills in the problem, if there is one.
void inspect(ListedCheckpoint& entry, bool verify) {
  if (entry.problem) return;
  const auto opened = Checkpoint::open(entry.folder, {.verify = verify});
  if (!opened.ok()) {
    entry.problem = opened.error();
  } else if (opened->run().step != entry.step) {
    entry.problem = Error{
        ErrorCode::corrupt,
        fmt::format("{}: its manifest is of step {}", entry.folder.string(), opened->run().step)};
  }
}

}  // namespace

Result<std::vector<ListedCheckpoint>> list_checkpoints(const std::filesystem::path& parent,
                                                       bool verify) {
  auto entries = entries_of(parent);
  TROUPE_TRY(entries);
  for (ListedCheckpoint& entry : *entries) inspect(entry, verify);
  return entries;
}

Result<LatestCheckpoint> latest_complete(const std::filesystem::path& parent, bool verify) {
  auto entries = entries_of(parent);
  TROUPE_TRY(entries);
  LatestCheckpoint latest;
  for (auto entry = entries->rbegin(); entry != entries->rend(); ++entry) {
    inspect(*entry, verify);
    if (!entry->problem) {
      latest.folder = entry->folder;
      break;
    }
    latest.skipped.push_back(std::move(*entry));
  }
  return latest;
}

Result<std::vector<std::filesystem::path>> prune_checkpoints(const std::filesystem::path& parent,
                                                             std::uint32_t keep,
                                                             const WriteHook* hook) {
  EXPECTS(keep >= 1);
  auto entries = entries_of(parent);
  TROUPE_TRY(entries);
  std::vector<std::filesystem::path> removed;
  std::uint32_t kept = 0;
  for (auto entry = entries->rbegin(); entry != entries->rend(); ++entry) {
    const bool unfinished = entry->problem.has_value();
    inspect(*entry, false);
    if (!unfinished && entry->problem) continue;
    if (!unfinished && kept++ < keep) continue;
    if (!unfinished) TROUPE_TRY(remove_tree(entry->folder / manifest_name, hook));
    TROUPE_TRY(remove_tree(entry->folder, hook));
    removed.push_back(entry->folder);
  }
  if (!removed.empty()) TROUPE_TRY(sync_folder(parent, hook));
  return removed;
}

}  // namespace troupe
