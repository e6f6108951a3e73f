#include "planner/trainable.h"

#include <fmt/format.h>

#include <string>
#include <type_traits>
#include <vector>

#include "planner/architecture_fields.h"
#include "planner/field_checks.h"

namespace troupe {
namespace {

template <class Field>
std::string text_of(const Field& field) {
  if constexpr (std::is_enum_v<Field>)
    return fmt::format("\"{}\"", name_of(field));
  else if constexpr (std::is_same_v<Field, std::string>)
    return fmt::format("\"{}\"", field);
  else
    return fmt::format("{}", field);
}

std::vector<std::string> texts_of(const Architecture& model) {
  std::vector<std::string> out;
  for_each_field(model, [&](const char* name, const auto& field) {
    out.push_back(fmt::format("{} = {}", name, text_of(field)));
  });
  return out;
}

/// Experts and latent attention count as one feature each: without the widths that go with them.
Architecture without_details(Architecture model) {
  model.moe = {.experts = model.moe.experts};
  model.attention.latent = {.kv_rank = model.attention.latent.kv_rank};
  return model;
}

}  // namespace

ModelSpec same_sizes(const Architecture& model) {
  const bool gpt2 = model.family == "gpt2" || (model.family != "llama" && model.ffn_matrices == 2);
  ModelSpec spec;
  spec.family = gpt2 ? ModelFamily::gpt2 : ModelFamily::llama;
  spec.blocks = model.blocks;
  spec.width = model.width;
  spec.heads = model.attention.heads;
  spec.kv_heads = model.attention.kv_heads;
  spec.ffn_width = model.ffn_width;
  spec.vocabulary = model.vocabulary;
  spec.context = model.context;
  spec.tied = model.tied;
  return spec;
}

ModelSpec stand_in(const Architecture& model) {
  ModelSpec spec = same_sizes(model);
  if (spec.ffn_width == 0) spec.ffn_width = model.moe.ffn_width;
  if (validate(spec).ok()) return spec;
  spec.family = ModelFamily::gpt2;  // no pairs that positions turn, no groups of heads
  spec.heads = spec.kv_heads = nearest_divisor(spec.width, spec.heads);
  EXPECTS(validate(spec).ok());
  return spec;
}

Result<ModelSpec> trainable(const Architecture& model) {
  TROUPE_TRY(validate(model));
  ModelSpec spec = same_sizes(model);
  if (spec.family == ModelFamily::gpt2) spec.kv_heads = spec.heads;
  const std::vector<std::string> has = texts_of(without_details(model));
  const std::vector<std::string> trained = texts_of(architecture_of(spec));
  std::string features;
  for (std::size_t i = 0; i < has.size(); ++i)
    if (has[i] != trained[i])
      features += fmt::format("{}{} (trained: {})", features.empty() ? "" : ", ", has[i],
                              trained[i].substr(trained[i].find('=') + 2));
  if (!features.empty())
    return Error{ErrorCode::invalid_input,
                 fmt::format("this model can be planned but not trained: {}", features)};
  TROUPE_TRY(validate(spec));
  return spec;
}

}  // namespace troupe
