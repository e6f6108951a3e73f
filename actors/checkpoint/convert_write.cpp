#include "actors/checkpoint/convert_write.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "actors/checkpoint/checkpoint_write.h"
#include "actors/checkpoint/safetensors.h"
#include "actors/data/mapped_file.h"

namespace troupe {

Result<FileRecord> write_values(const std::filesystem::path& path,
                                const ModelSpec& model,
                                const ValueSource& values) {
  const auto parameters = parameters_of(model);
  std::vector<TensorPlan> plans;
  plans.reserve(parameters.size());
  for (const ParameterSpec& parameter : parameters)
    plans.push_back({parameter.name, parameter.shape});
  auto writer = SafetensorsWriter::create(path, plans, {{"format", "pt"}});
  TROUPE_TRY(writer);
  std::vector<float> piece(piece_bytes / sizeof(float));
  for (const ParameterSpec& parameter : parameters)
    for (std::uint64_t first = 0; first < parameter.elements(); first += piece.size()) {
      const auto part = std::span(piece).first(
          std::min<std::uint64_t>(piece.size(), parameter.elements() - first));
      TROUPE_TRY(values(parameter, first, part));
      TROUPE_TRY(writer->append(part));
    }
  return writer->finish();
}

Result<std::filesystem::path> begin_beside(const std::filesystem::path& out) {
  const auto name = out.filename().string();
  if (!is_plain_name(name))
    return Error{ErrorCode::invalid_input,
                 fmt::format("{}: the last part of the name must be of letters, digits, '.', '_' "
                             "and '-'",
                             out.string())};
  std::error_code failure;
  if (std::filesystem::exists(std::filesystem::symlink_status(out, failure)))
    return Error{ErrorCode::invalid_input, fmt::format("{}: exists already", out.string())};
  if (!out.parent_path().empty()) {
    std::filesystem::create_directories(out.parent_path(), failure);
    if (failure) return file_error(out.parent_path(), "make the folder", failure.value());
  }
  const auto temporary = out.parent_path() / fmt::format(".{}.writing", name);
  TROUPE_TRY(remove_tree(temporary));
  TROUPE_TRY(make_folder(temporary));
  return temporary;
}

Status write_imported(const std::filesystem::path& out,
                      const ModelSpec& model,
                      const ValueSource& values) {
  const auto temporary = begin_beside(out);
  TROUPE_TRY(temporary);
  const auto write = [&]() -> Status {
    const auto record =
        write_values(*temporary / "model-00001-of-00001.safetensors", model, values);
    TROUPE_TRY(record);
    RunRecord run;
    run.model = model;
    run.has_moments = false;
    return commit_checkpoint_as(out, *temporary, run, {*record});
  };
  Status written = write();
  if (!written.ok()) (void)remove_tree(*temporary);
  return written;
}

}  // namespace troupe
