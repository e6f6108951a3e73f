/// The JSON form of a model's shape, as plans, manifests and run descriptions hold it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "planner/model.h"

namespace troupe {

/// One object, keys named as the fields of ModelSpec.
nlohmann::json model_json(const ModelSpec& model);

/// The model that `model_json` wrote; `path` is for messages. For readers: throws JsonRefused
/// (planner/json_object.h), also for a model that cannot be.
ModelSpec read_model(const nlohmann::json& value, const std::string& path);

}  // namespace troupe
