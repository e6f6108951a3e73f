#include "actors/checkpoint/tensor_catalogue.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "actors/checkpoint/checkpoint_write.h"
#include "actors/data/strict_json.h"

namespace troupe {
namespace {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

Status check_tensor(TensorCatalogue::Place place, const ParameterSpec& parameter) {
  if (place.entry->shape == parameter.shape && place.entry->type == FileType::f32) return {};
  return Error{
      ErrorCode::corrupt,
      fmt::format("{}: tensor \"{}\" is {} {}, the model needs F32 {}", place.file->path().string(),
                  printable(place.entry->name), to_string(place.entry->type),
                  shape_text(place.entry->shape), shape_text(parameter.shape))};
}

}  // namespace

std::string nearest_name(const std::string& name, const std::vector<std::string>& known) {
  constexpr std::size_t longest = 200, most_known = 10'000;
  if (name.size() > longest || known.size() > most_known) return {};
  std::string nearest;
  std::size_t best = std::max<std::size_t>(3, name.size() / 4) + 1;
  for (const std::string& candidate : known) {
    const std::size_t distance = edit_distance(name, candidate);
    if (distance >= best) continue;
    best = distance;
    nearest = candidate;
  }
  return nearest;
}

Result<const SafetensorsFile*> TensorCatalogue::add(const std::filesystem::path& path) {
  auto opened = SafetensorsFile::open(path);
  TROUPE_TRY(opened);
  auto file = std::make_unique<SafetensorsFile>(std::move(*opened));
  for (const TensorEntry& entry : file->header().tensors) {
    const auto [found, added] = places_.emplace(entry.name, Place{file.get(), &entry});
    if (added) continue;
    Error error{ErrorCode::corrupt,
                fmt::format("{}: tensor \"{}\" is in {} as well", path.string(),
                            printable(entry.name), found->second.file->path().string())};
    std::erase_if(places_, [&](const auto& item) { return item.second.file == file.get(); });
    return error;
  }
  files_.push_back(std::move(file));
  return static_cast<const SafetensorsFile*>(files_.back().get());
}

TensorCatalogue::Place TensorCatalogue::find(const std::string& name) const {
  const auto found = places_.find(name);
  return found == places_.end() ? Place{} : found->second;
}

Status TensorCatalogue::check_against(const ModelSpec& model,
                                      bool has_moments,
                                      bool allow_extra) const {
  std::vector<std::string> expected;
  for (const ParameterSpec& parameter : parameters_of(model)) {
    std::vector<std::string> names{parameter.name};
    if (has_moments) {
      names.push_back(first_moment_name(parameter.name));
      names.push_back(second_moment_name(parameter.name));
    }
    for (const std::string& name : names) {
      const Place place = find(name);
      if (place.entry == nullptr)
        return Error{ErrorCode::corrupt, fmt::format("tensor \"{}\" is missing", name)};
      TROUPE_TRY(check_tensor(place, parameter));
      expected.push_back(name);
    }
  }
  if (allow_extra || expected.size() == places_.size()) return {};
  const std::set<std::string> known(expected.begin(), expected.end());
  for (const auto& [name, place] : places_) {
    if (known.contains(name)) continue;
    const std::string nearest = nearest_name(name, expected);
    return Error{
        ErrorCode::corrupt,
        fmt::format("{}: the model has no tensor \"{}\"{}", place.file->path().string(),
                    printable(name),
                    nearest.empty() ? "" : fmt::format("; the nearest is \"{}\"", nearest))};
  }
  return {};
}

}  // namespace troupe
