#include "planner/model_json.h"

#include <nlohmann/json.hpp>

#include "planner/json_object.h"

namespace troupe {

nlohmann::json model_json(const ModelSpec& model) {
  return {{"family", to_string(model.family)},
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

ModelSpec read_model(const nlohmann::json& value, const std::string& path) {
  const JsonObject object(
      value, path,
      {"family", "blocks", "width", "heads", "kv_heads", "ffn_width", "vocabulary", "context",
       "tied", "norm_epsilon", "rope_theta", "dropout"});
  ModelSpec model;
  const std::string family = object.string("family");
  if (family != "gpt2" && family != "llama")
    throw JsonRefused{object.path("family") + " is neither \"gpt2\" nor \"llama\""};
  model.family = family == "gpt2" ? ModelFamily::gpt2 : ModelFamily::llama;
  model.blocks = object.u32("blocks");
  model.width = object.u32("width");
  model.heads = object.u32("heads");
  model.kv_heads = object.u32("kv_heads");
  model.ffn_width = object.u32("ffn_width");
  model.vocabulary = object.u32("vocabulary");
  model.context = object.u32("context");
  model.tied = object.boolean("tied");
  model.norm_epsilon = object.number("norm_epsilon");
  model.rope_theta = object.number("rope_theta");
  model.dropout = object.number("dropout");
  if (const Status status = validate(model); !status) throw JsonRefused{status.error().text};
  return model;
}

}  // namespace troupe
