/// Plays any schedule over any stages in the calling thread, one action at a time, with plain
/// copies for transfers: the oracle that the actors' runs are compared with, and the test of
/// Stage's promise that placement never changes a bit.
#pragma once

#include <memory>
#include <vector>

#include "kernels/step_loop.h"
#include "planner/schedule.h"

namespace troupe {

/// What a pipeline is made of. `layers` by StageId; `devices` by DeviceId, borrowed.
struct PipelineSpec {
  ModelSpec model;
  StepShape shape;
  AdamWSpec optimizer;
  std::uint64_t seed = 0;
  std::vector<LayerRange> layers;
  Schedule schedule;
  std::vector<Device*> devices;
  std::vector<StageRecompute> recompute = {};  ///< by StageId; empty: nothing is computed again
};

class ReferencePipeline {
 public:
  /// Stages take their memory from their devices; stages of one device share its workspace.
  static Result<std::unique_ptr<ReferencePipeline>> create(const PipelineSpec& spec);
  ~ReferencePipeline();

  void initialize();
  /// `input.microbatches` must be as many as the schedule has. All arithmetic runs on `stream`.
  StepOutcome run_step(Stream& stream, const StepInput& input);
  std::vector<Stage*> stages();
  std::uint64_t state_hash(Stream& stream);

 private:
  struct State;
  explicit ReferencePipeline(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace troupe
