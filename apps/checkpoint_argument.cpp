#include "apps/checkpoint_argument.h"

#include <fmt/format.h>

#include <filesystem>

namespace troupe {
namespace {

namespace fs = std::filesystem;

/// What to name in place of a folder that holds checkpoints.
std::string newest_in(const fs::path& checkpoints) {
  const auto latest = latest_complete(checkpoints, false);
  return latest.ok() && latest->folder
             ? fmt::format("its newest checkpoint is {}", latest->folder->string())
             : std::string("it has no complete checkpoint");
}

Error wrong(std::string text) {
  return {ErrorCode::invalid_input, std::move(text)};
}

}  // namespace

Result<Checkpoint> open_checkpoint_argument(const std::string& folder) {
  std::error_code failure;
  const fs::path path(folder);
  if (!fs::exists(path, failure)) return wrong(fmt::format("there is no folder \"{}\"", folder));
  if (!fs::is_directory(path, failure))
    return wrong(fmt::format("{} is a file; a checkpoint is a folder with a manifest", folder));
  if (fs::is_directory(path / "checkpoints", failure))
    return wrong(
        fmt::format("{} is the folder of a run; {}", folder, newest_in(path / "checkpoints")));
  auto opened = Checkpoint::open(path);
  if (opened) return opened;
  const auto inside = list_checkpoints(path, false);
  if (inside.ok() && !inside->empty())
    return wrong(fmt::format("{} holds several checkpoints; {}", folder, newest_in(path)));
  if (opened.error().code == ErrorCode::not_found) return wrong(opened.error().text);
  return Error{ErrorCode::corrupt, opened.error().text};
}

}  // namespace troupe
