/// A small model with made-up state, to write, damage and read again.
#pragma once

#include <string>
#include <vector>

#include "actors/checkpoint/checkpoint.h"
#include "actors/checkpoint/checkpoint_write.h"
#include "planner/model.h"

namespace troupe {

inline ModelSpec tiny_gpt2(bool tied = true) {
  ModelSpec model;
  model.family = ModelFamily::gpt2;
  model.blocks = 3;
  model.width = 8;
  model.heads = 2;
  model.kv_heads = 2;
  model.ffn_width = 16;
  model.vocabulary = 11;
  model.context = 6;
  model.tied = tied;
  return model;
}

inline ModelSpec tiny_llama(bool tied = true) {
  ModelSpec model = tiny_gpt2(tied);
  model.family = ModelFamily::llama;
  model.kv_heads = 1;
  model.ffn_width = 12;
  return model;
}

/// Owns the state of a model: element i of tensor t is a number of (t, i, salt).
struct TinyState {
  struct Tensors {
    ParameterSpec parameter;
    std::vector<float> weight, first, second;
    friend bool operator==(const Tensors& a, const Tensors& b) {
      return a.weight == b.weight && a.first == b.first && a.second == b.second;
    }
  };
  std::vector<Tensors> tensors;

  TinyState(const ModelSpec& model, float salt) {
    float t = salt;
    for (const ParameterSpec& parameter : parameters_of(model)) {
      Tensors made{parameter, {}, {}, {}};
      for (std::uint64_t i = 0; i < parameter.elements(); ++i) {
        made.weight.push_back(t + static_cast<float>(i) / 1024);
        made.first.push_back(-t - static_cast<float>(i));
        made.second.push_back(t * t + static_cast<float>(i));
      }
      tensors.push_back(std::move(made));
      t += 1;
    }
  }

  /// Views of tensors whose layer lies in [first, last).
  std::vector<StateView> views(std::uint32_t first = 0, std::uint32_t last = ~0U) const {
    std::vector<StateView> out;
    for (const Tensors& t : tensors)
      if (t.parameter.layer >= first && t.parameter.layer < last)
        out.push_back({t.parameter.name, t.parameter.shape, t.weight, t.first, t.second});
    return out;
  }
};

inline RunRecord tiny_run(const ModelSpec& model, std::uint64_t step) {
  RunRecord run;
  run.model = model;
  run.step = step;
  run.seed = 0xfedcba9876543210ULL;
  run.data_position = 8 * step;
  run.data_fingerprint = 0x123456789abcdef0ULL;
  run.adam_step = step - (step > 1 ? 1 : 0);
  run.skipped_steps = step > 1 ? 1 : 0;
  return run;
}

/// Reads all state of a checkpoint into a TinyState of zeros.
inline TinyState state_of(const Checkpoint& checkpoint) {
  TinyState state(checkpoint.run().model, 0);
  for (auto& t : state.tensors) {
    const Status read = checkpoint.read({t.parameter.name, t.weight, t.first, t.second});
    EXPECTS(read.ok());
  }
  return state;
}

}  // namespace troupe
