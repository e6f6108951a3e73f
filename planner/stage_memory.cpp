#include "planner/stage_memory.h"

#include <algorithm>

namespace troupe {
MemoryPlan stage_memory(const ModelSpec& model,
                        const ModelProfile& profile,
                        LayerRange layers,
                        std::uint32_t in_flight,
                        std::uint32_t deferred,
                        const StageRecompute& recompute) {
  MemoryPlan memory;
  Bytes saved = 0;
  Bytes kept_for_weights = 0;
  for (std::uint32_t layer = layers.first; layer < layers.last; ++layer) {
    const LayerProfile& kept = profile.layer(model, layer);
    const Recompute policy = recompute_of(recompute, model, layers, layer);
    const LayerProfile again =
        policy == Recompute::none ? LayerProfile{} : recomputed(kept, policy);
    const LayerProfile& one = policy == Recompute::none ? kept : again;
    memory.weights += one.weight_bytes;
    memory.gradients += one.gradient_bytes;
    memory.optimizer += one.optimizer_bytes;
    saved += one.saved_bytes;
    kept_for_weights += one.deferred_bytes;
    memory.workspace = std::max({memory.workspace, one.forward_workspace_bytes,
                                 one.backward_workspace_bytes, one.update_workspace_bytes});
  }
  if (layers.first > 0 && layers.size() > 0) saved += profile.block.output_bytes;
  memory.activations = in_flight * saved + deferred * kept_for_weights;
  if (layers.holds(0) && layers.holds(model.blocks + 1)) {
    memory.weights -= profile.head.shared_weight_bytes;
    memory.optimizer -= profile.head.shared_optimizer_bytes;
  }
  return memory;
}

}  // namespace troupe
