#include "planner/model_json.h"

#include <nlohmann/json.hpp>

namespace troupe {

nlohmann::json model_json(const ModelSpec& model) {
  return {{"family", model.family == ModelFamily::gpt2 ? "gpt2" : "llama"},
          {"blocks", model.blocks},
          {"width", model.width},
          {"heads", model.heads},
          {"kv_heads", model.kv_heads},
          {"ffn_width", model.ffn_width},
          {"vocabulary", model.vocabulary},
          {"context", model.context},
          {"tied", model.tied},
          {"norm_epsilon", model.norm_epsilon},
          {"rope_theta", model.rope_theta},
          {"dropout", model.dropout}};
}

}  // namespace troupe
