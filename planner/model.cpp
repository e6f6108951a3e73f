#include "planner/model.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "planner/field_checks.h"

namespace troupe {
namespace {

constexpr double base_std = 0.02;

/// Collects the parameters of one model in global order.
class ParameterList {
 public:
  explicit ParameterList(const ModelSpec& model)
      : model_(model), residual_std_(base_std / std::sqrt(2.0 * model.blocks)) {}

  void normal(std::string name, std::vector<std::uint64_t> shape, std::uint32_t layer) {
    add({std::move(name), std::move(shape), layer, true, Init::normal, base_std});
  }
  /// A projection back into the residual stream: smaller, so that the stream's variance does not
  /// grow with depth.
  void residual(std::string name, std::vector<std::uint64_t> shape, std::uint32_t layer) {
    add({std::move(name), std::move(shape), layer, true, Init::normal, residual_std_});
  }
  void ones(std::string name, std::uint64_t size, std::uint32_t layer) {
    add({std::move(name), {size}, layer, false, Init::ones, 0.0});
  }
  void zeros(std::string name, std::uint64_t size, std::uint32_t layer) {
    add({std::move(name), {size}, layer, false, Init::zeros, 0.0});
  }
  void layer_norm(const std::string& name, std::uint32_t layer) {
    ones(name + ".weight", model_.width, layer);
    zeros(name + ".bias", model_.width, layer);
  }
  std::vector<ParameterSpec> take() { return std::move(list_); }

 private:
  void add(ParameterSpec parameter) { list_.push_back(std::move(parameter)); }

  const ModelSpec& model_;
  double residual_std_;
  std::vector<ParameterSpec> list_;
};

/// GPT-2 stores its matrices (in, out).
void add_gpt2_block(ParameterList& list, const ModelSpec& model, std::uint32_t block) {
  const std::uint32_t layer = block + 1;
  const std::uint64_t width = model.width;
  const std::uint64_t ffn = model.ffn_width;
  const std::string prefix = fmt::format("transformer.h.{}.", block);
  list.layer_norm(prefix + "ln_1", layer);
  list.normal(prefix + "attn.c_attn.weight", {width, 3 * width}, layer);
  list.zeros(prefix + "attn.c_attn.bias", 3 * width, layer);
  list.residual(prefix + "attn.c_proj.weight", {width, width}, layer);
  list.zeros(prefix + "attn.c_proj.bias", width, layer);
  list.layer_norm(prefix + "ln_2", layer);
  list.normal(prefix + "mlp.c_fc.weight", {width, ffn}, layer);
  list.zeros(prefix + "mlp.c_fc.bias", ffn, layer);
  list.residual(prefix + "mlp.c_proj.weight", {ffn, width}, layer);
  list.zeros(prefix + "mlp.c_proj.bias", width, layer);
}

/// Llama stores its matrices (out, in).
void add_llama_block(ParameterList& list, const ModelSpec& model, std::uint32_t block) {
  const std::uint32_t layer = block + 1;
  const std::uint64_t width = model.width;
  const std::uint64_t kv_width = std::uint64_t{model.head_width()} * model.kv_heads;
  const std::uint64_t ffn = model.ffn_width;
  const std::string prefix = fmt::format("model.layers.{}.", block);
  list.ones(prefix + "input_layernorm.weight", width, layer);
  list.normal(prefix + "self_attn.q_proj.weight", {width, width}, layer);
  list.normal(prefix + "self_attn.k_proj.weight", {kv_width, width}, layer);
  list.normal(prefix + "self_attn.v_proj.weight", {kv_width, width}, layer);
  list.residual(prefix + "self_attn.o_proj.weight", {width, width}, layer);
  list.ones(prefix + "post_attention_layernorm.weight", width, layer);
  list.normal(prefix + "mlp.gate_proj.weight", {ffn, width}, layer);
  list.normal(prefix + "mlp.up_proj.weight", {ffn, width}, layer);
  list.residual(prefix + "mlp.down_proj.weight", {width, ffn}, layer);
}

Error refuse(std::string text) {
  return {ErrorCode::invalid_input, std::move(text)};
}

Status check_ranges(const ModelSpec& model) {
  const FieldRange ranges[] = {
      {"blocks", model.blocks, 1, 10'000},         {"width", model.width, 1, 1u << 20},
      {"heads", model.heads, 1, 1u << 20},         {"kv_heads", model.kv_heads, 1, 1u << 20},
      {"ffn_width", model.ffn_width, 1, 1u << 24}, {"vocabulary", model.vocabulary, 2, 1u << 24},
      {"context", model.context, 1, 1u << 24},
  };
  for (const FieldRange& range : ranges) TROUPE_TRY(check_range(range));
  return {};
}

Status check_heads(const ModelSpec& model) {
  if (model.width % model.heads != 0)
    return refuse(
        fmt::format("model.heads = {} does not divide width = {}; the nearest that does "
                    "is {}",
                    model.heads, model.width, nearest_divisor(model.width, model.heads)));
  if (model.family == ModelFamily::gpt2 && model.kv_heads != model.heads)
    return refuse(
        fmt::format("model.kv_heads = {} differs from heads = {}; gpt2 has no grouped "
                    "attention, so it must be {}",
                    model.kv_heads, model.heads, model.heads));
  TROUPE_TRY(check_kv_heads(model.heads, model.kv_heads));
  if (model.family == ModelFamily::llama && model.head_width() % 2 != 0)
    return refuse(
        fmt::format("model.width / heads = {} is odd, but rotary positions turn pairs; "
                    "the nearest legal width is {}",
                    model.head_width(), model.heads * (model.head_width() + 1)));
  return {};
}

}  // namespace

std::string_view to_string(ModelFamily family) {
  return family == ModelFamily::gpt2 ? "gpt2" : "llama";
}

LayerKind layer_kind(const ModelSpec& model, std::uint32_t layer) {
  EXPECTS(layer < layer_count(model));
  if (layer == 0) return LayerKind::embedding;
  return layer <= model.blocks ? LayerKind::block : LayerKind::head;
}

std::uint64_t ParameterSpec::elements() const {
  std::uint64_t count = 1;
  for (const std::uint64_t extent : shape) count *= extent;
  return count;
}

std::vector<ParameterSpec> parameters_of(const ModelSpec& model) {
  ParameterList list(model);
  const std::uint64_t width = model.width;
  const std::uint64_t vocabulary = model.vocabulary;
  const std::uint32_t head = model.blocks + 1;
  if (model.family == ModelFamily::gpt2) {
    list.normal("transformer.wte.weight", {vocabulary, width}, 0);
    list.normal("transformer.wpe.weight", {model.context, width}, 0);
    for (std::uint32_t block = 0; block < model.blocks; ++block) add_gpt2_block(list, model, block);
    list.layer_norm("transformer.ln_f", head);
  } else {
    list.normal("model.embed_tokens.weight", {vocabulary, width}, 0);
    for (std::uint32_t block = 0; block < model.blocks; ++block)
      add_llama_block(list, model, block);
    list.ones("model.norm.weight", width, head);
  }
  if (!model.tied) list.normal("lm_head.weight", {vocabulary, width}, head);
  return list.take();
}

std::uint64_t parameter_count(const ModelSpec& model) {
  std::uint64_t count = 0;
  for (const ParameterSpec& parameter : parameters_of(model)) count += parameter.elements();
  return count;
}

Status validate(const ModelSpec& model) {
  TROUPE_TRY(check_ranges(model));
  TROUPE_TRY(check_heads(model));
  if (!(model.norm_epsilon > 0.0 && model.norm_epsilon < 1.0))
    return refuse(fmt::format("model.norm_epsilon = {} is not between 0 and 1; usual is 1e-5",
                              model.norm_epsilon));
  if (!(std::isfinite(model.rope_theta) && model.rope_theta >= 1.0))
    return refuse(
        fmt::format("model.rope_theta = {} is not at least 1; usual is 10000", model.rope_theta));
  if (!(model.dropout >= 0.0 && model.dropout < 1.0))
    return refuse(
        fmt::format("model.dropout = {} is not in [0, 1); 0 switches it off", model.dropout));
  return {};
}

}  // namespace troupe
