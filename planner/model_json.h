/// The JSON form of a model's shape, as plan.json and checkpoint manifests hold it.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "planner/model.h"

namespace troupe {

/// One object, keys named as the fields of ModelSpec.
nlohmann::json model_json(const ModelSpec& model);

}  // namespace troupe
