/// Readers of config.json, one for each "model_type"; hf_architecture.cpp chooses among them.
/// Problems stay in the keys; what a reader returns then means nothing.
#pragma once

#include <cstdint>

#include "actors/checkpoint/hf_keys.h"
#include "planner/architecture.h"

namespace troupe::hf {

/// What files with Llama's keys take for granted.
struct Defaults {
  std::uint32_t kv_heads = 0;    ///< 0: as many as heads
  std::uint32_t head_width = 0;  ///< 0: width / heads
  std::uint32_t context = 2048;
  bool tied = false;
  double rotary_share = 1.0;
};

/// Sizes under the names that Llama's files use.
Architecture with_llama_keys(HfKeys& keys, const char* family, const Defaults& usual);
/// "attention_bias": of queries, keys, values and output.
void read_attention_bias(HfKeys& keys, Architecture& model, bool otherwise);
/// 0 where b is.
std::uint32_t quotient(std::uint32_t a, std::uint32_t b);
/// `a` x `b`; what does not fit reads as a size that no check lets through.
std::uint32_t product(std::uint32_t a, std::uint32_t b);

// hf_dense_families.cpp
Architecture gpt2(HfKeys& keys);
Architecture llama(HfKeys& keys);
Architecture granite(HfKeys& keys);
Architecture mistral(HfKeys& keys);
Architecture qwen2(HfKeys& keys);
Architecture qwen3(HfKeys& keys);
Architecture gemma(HfKeys& keys);
Architecture gemma2(HfKeys& keys);
Architecture gemma3(HfKeys& keys);
Architecture olmo2(HfKeys& keys);
Architecture olmo(HfKeys& keys);
Architecture phi(HfKeys& keys);
Architecture phi3(HfKeys& keys);
Architecture stablelm(HfKeys& keys);
Architecture nemotron(HfKeys& keys);
Architecture gpt_neox(HfKeys& keys);
Architecture opt(HfKeys& keys);
Architecture bloom(HfKeys& keys);
Architecture falcon(HfKeys& keys);
Architecture gpt_j(HfKeys& keys);

// hf_expert_families.cpp
Architecture mixtral(HfKeys& keys);
Architecture granite_moe(HfKeys& keys);
Architecture phi_moe(HfKeys& keys);
Architecture olmoe(HfKeys& keys);
Architecture gpt_oss(HfKeys& keys);
Architecture qwen2_moe(HfKeys& keys);
Architecture qwen3_moe(HfKeys& keys);
Architecture deepseek(HfKeys& keys);
Architecture deepseek_v2(HfKeys& keys);
Architecture deepseek_v3(HfKeys& keys);
Architecture glm4_moe(HfKeys& keys);
Architecture dbrx(HfKeys& keys);

}  // namespace troupe::hf
