/// What is trained: the shape of a transformer, its layers in order, and its parameters by their
/// global (Hugging Face) names. Pure values; the arithmetic is in kernels/.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "planner/dtype.h"
#include "planner/result.h"
#include "planner/units.h"

namespace troupe {

enum class ModelFamily : std::uint8_t { gpt2, llama };
std::string_view to_string(ModelFamily family);  ///< "gpt2", "llama"

/// The shape of a decoder-only transformer.
struct ModelSpec {
  ModelFamily family = ModelFamily::gpt2;
  std::uint32_t blocks = 0;  ///< transformer blocks
  std::uint32_t width = 0;   ///< d_model
  std::uint32_t heads = 0;
  std::uint32_t kv_heads = 0;   ///< = heads without grouping (always so for gpt2)
  std::uint32_t ffn_width = 0;  ///< gpt2: usually 4 x width
  std::uint32_t vocabulary = 0;
  std::uint32_t context = 0;  ///< longest sequence (gpt2: rows of the position table)
  bool tied = true;           ///< the head uses the token embedding's table
  double norm_epsilon = 1e-5;
  double rope_theta = 10000.0;  ///< llama only; rotation of half-split pairs, as Hugging Face
  double dropout = 0.0;         ///< after embedding, attention output and MLP output
  friend bool operator==(const ModelSpec&, const ModelSpec&) = default;
  std::uint32_t head_width() const { return width / heads; }
};

/// Layers in order: embedding, blocks..., head (final norm + projection + loss).
/// Layer index 0 is the embedding, 1..blocks the blocks, blocks+1 the head.
enum class LayerKind : std::uint8_t { embedding, block, head };

inline std::uint32_t layer_count(const ModelSpec& model) {
  return model.blocks + 2;
}
LayerKind layer_kind(const ModelSpec& model, std::uint32_t layer);

/// Layers [first, last) of the model.
struct LayerRange {
  std::uint32_t first = 0;
  std::uint32_t last = 0;
  friend bool operator==(const LayerRange&, const LayerRange&) = default;
  std::uint32_t size() const { return last - first; }
  bool holds(std::uint32_t layer) const { return first <= layer && layer < last; }
};

/// How a parameter is filled before the first step. Element i of the tensor depends on
/// (seed, tensor name, i) alone.
enum class Init : std::uint8_t { zeros, ones, normal };

/// One logical tensor of the model. Its position in `parameters_of` is its global index: sums over
/// tensors (gradient norm, state hash) run in that order on every placement.
struct ParameterSpec {
  std::string name;                  ///< "transformer.h.0.attn.c_attn.weight"
  std::vector<std::uint64_t> shape;  ///< as stored in a Hugging Face file
  std::uint32_t layer = 0;           ///< the layer that owns it
  bool decays = false;               ///< weight decay: matrices and tables yes, norms and biases no
  Init init = Init::zeros;
  double init_std = 0.0;  ///< for Init::normal
  std::uint64_t elements() const;
};

/// All parameters in global order. A tied head owns none of its own: it uses tensor 0.
std::vector<ParameterSpec> parameters_of(const ModelSpec& model);
std::uint64_t parameter_count(const ModelSpec& model);

/// Checks divisibility and ranges; the error names the field, the value and the nearest legal one.
Status validate(const ModelSpec& model);

}  // namespace troupe
