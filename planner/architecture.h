/// The shape of any decoder-only transformer that can be planned and simulated, and its parameter
/// counts. Wider than ModelSpec, which holds what can be trained: experts, latent attention, norms
/// and biases of every common family.
#pragma once

#include <cstdint>
#include <string>

#include "planner/model.h"
#include "planner/result.h"

namespace troupe {

enum class NormKind : std::uint8_t {
  layer_norm,          ///< gain and bias
  layer_norm_no_bias,  ///< gain
  rms_norm,            ///< gain
};

enum class PositionKind : std::uint8_t { learned, rotary, alibi };

/// Norms of queries and keys: none, one gain per head width shared by all heads, or one gain over
/// the whole width of all heads.
enum class QkNorm : std::uint8_t { none, per_head, full };

/// Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1). Used when kv_rank > 0.
struct LatentAttention {
  std::uint32_t q_rank = 0;       ///< 0: queries are projected directly
  std::uint32_t kv_rank = 0;      ///< 0: this is not latent attention
  std::uint32_t nope_width = 0;   ///< per head of q and k, without position
  std::uint32_t rope_width = 0;   ///< per head of q; one for all heads of k
  std::uint32_t value_width = 0;  ///< per head of v
  friend bool operator==(const LatentAttention&, const LatentAttention&) = default;
};

struct AttentionShape {
  std::uint32_t heads = 0;
  std::uint32_t kv_heads = 0;    ///< heads: multi-head; 1: multi-query; between: grouped
  std::uint32_t head_width = 0;  ///< free of width / heads; latent: nope_width + rope_width
  LatentAttention latent;
  QkNorm qk_norm = QkNorm::none;
  bool qkv_bias = false;
  bool out_bias = false;
  bool sinks = false;  ///< one learned logit per head that takes weight from the softmax
  bool is_latent() const { return latent.kv_rank > 0; }
  friend bool operator==(const AttentionShape&, const AttentionShape&) = default;
};

/// Experts of the blocks that have them; experts = 0: a dense model.
struct ExpertShape {
  std::uint32_t experts = 0;
  std::uint32_t top_k = 0;      ///< routed experts per token
  std::uint32_t ffn_width = 0;  ///< of one routed expert
  std::uint32_t shared_experts = 0;
  std::uint32_t shared_ffn_width = 0;  ///< of all shared experts together
  bool shared_gate = false;            ///< the shared output is scaled by a learned gate of `width`
  std::uint32_t first_dense_blocks = 0;
  std::uint32_t moe_every =
      1;  ///< of the blocks after first_dense_blocks, the last of every so many
  bool router_bias = false;
  friend bool operator==(const ExpertShape&, const ExpertShape&) = default;
};

/// A decoder-only transformer.
struct Architecture {
  std::string family = "llama";  ///< name of the family, lower case; decides nothing here
  std::uint32_t blocks = 0;
  std::uint32_t width = 0;
  AttentionShape attention;
  std::uint32_t ffn_width = 0;     ///< of dense blocks; 0 when every block has experts
  std::uint32_t ffn_matrices = 3;  ///< 2: up and down; 3: with a gate. Experts as well
  bool mlp_bias = false;           ///< of dense FFNs and routed experts, not of shared ones
  ExpertShape moe;
  std::uint32_t vocabulary = 0;  ///< rows of the token table, padding included
  std::uint32_t context = 0;
  bool tied = false;
  bool head_bias = false;
  PositionKind position = PositionKind::rotary;
  double rotary_share = 1.0;        ///< of the head width that is rotated
  std::uint32_t position_rows = 0;  ///< rows of the learned table (opt: context + 2)
  NormKind norm = NormKind::rms_norm;
  std::uint32_t norms_per_block = 2;  ///< of `width`; norms of queries, keys and ranks not counted
  bool final_norm = true;
  std::uint64_t extra_parameters = 0;  ///< read with the embedding (bloom: its norm)
  friend bool operator==(const Architecture&, const Architecture&) = default;
  std::uint32_t head_width() const { return attention.head_width; }
  bool has_experts() const { return moe.experts > 0; }
};

/// Parameters of one block, or of one layer outside of the blocks; what a layer lacks is 0.
struct LayerParameters {
  std::uint64_t attention = 0;  ///< projections, their biases, qk norms, norms of ranks, sinks
  std::uint64_t dense_ffn = 0;
  std::uint64_t expert = 0;   ///< of ONE routed expert
  std::uint64_t experts = 0;  ///< of all routed experts
  std::uint64_t shared = 0;   ///< of all shared experts, and their gate
  std::uint64_t router = 0;
  std::uint64_t norms = 0;      ///< of `width`; in the head the final norm
  std::uint64_t embedding = 0;  ///< token and position tables, extra_parameters
  std::uint64_t head = 0;       ///< projection and its bias; a tied head has no table of its own
  std::uint64_t active_experts = 0;  ///< of the top_k routed experts that a token meets
  std::uint64_t total() const {
    return attention + dense_ffn + experts + shared + router + norms + embedding + head;
  }
  std::uint64_t active() const { return total() - experts + active_experts; }
};

/// Whether this block (0 is the first) has experts in place of a dense FFN.
bool has_experts(const Architecture& model, std::uint32_t block);
LayerParameters block_parameters(const Architecture& model, std::uint32_t block);
LayerParameters embedding_parameters(const Architecture& model);
LayerParameters head_parameters(const Architecture& model);  ///< final norm and projection
/// Layers as in planner/model.h: 0 is the embedding, then the blocks, then the head.
LayerParameters layer_parameters(const Architecture& model, std::uint32_t layer);

/// All parameters that are stored: a table that is tied counts once.
std::uint64_t parameter_count(const Architecture& model);
/// Parameters that one token meets: all but the routed experts that it is not sent to.
std::uint64_t active_parameter_count(const Architecture& model);
/// The same without the tables that are only looked up: what takes part in matrix products. A tied
/// table counts, as the head multiplies by it. Publications also call this number "active".
std::uint64_t active_multiplied_parameters(const Architecture& model);

/// What Troupe trains, described in full.
Architecture architecture_of(const ModelSpec& model);

/// Checks ranges and divisibility; the error names the field, the value and the nearest legal one.
Status validate(const Architecture& model);

}  // namespace troupe
