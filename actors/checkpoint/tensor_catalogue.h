/// Which tensor is in which file: the open safetensors files of a checkpoint, checked against the
/// model both ways.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors/checkpoint/manifest.h"
#include "actors/checkpoint/safetensors.h"
#include "planner/result.h"

namespace troupe {

class TensorCatalogue {
 public:
  /// Opens one more file, which stays open as long as this object. A tensor that another file has
  /// as well is refused, naming both.
  Result<const SafetensorsFile*> add(const std::filesystem::path& path);

  struct Place {
    const SafetensorsFile* file = nullptr;
    const TensorEntry* entry = nullptr;
  };
  /// Empty pointers where there is none.
  Place find(const std::string& name) const;

  /// Every parameter of the model (and its moments, when `has_moments`) is there with its shape, as
  /// F32; nothing else is, unless `allow_extra`.
  Status check_against(const ModelSpec& model, bool has_moments, bool allow_extra) const;

  const std::map<std::string, Place>& tensors() const { return places_; }

 private:
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Place> places_;
};

/// Of `known`, the name that is nearest to `name` by edit distance; empty where none is near.
std::string nearest_name(const std::string& name, const std::vector<std::string>& known);

}  // namespace troupe
