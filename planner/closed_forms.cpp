#include "planner/closed_forms.h"

namespace troupe {

double block_activation_bytes(const GptShape& shape, double batch, const ActivationCut& cut) {
  const double unit = shape.sequence * batch * shape.hidden;
  if (cut.recompute == Recompute::full) return 2 * unit;  // the block's input alone, on every rank
  // Of 34: 24 are cut by tensor parallelism, 10 (norms, dropouts, inputs) by the sequence alone.
  const double whole = 10 / (cut.sequence_parallel ? cut.tensor : 1);
  const double attention = cut.recompute == Recompute::selective
                               ? 0
                               : 5 * shape.heads * shape.sequence / (shape.hidden * cut.tensor);
  return unit * (whole + 24 / cut.tensor + attention);
}

double first_stage_blocks(double layers, double pipeline, double chunks) {
  return chunks > 1 ? layers * (1 + (pipeline - 1) / (pipeline * chunks)) : layers;
}

double embedding_activation_bytes(const GptShape& shape,
                                  double batch,
                                  double pipeline,
                                  double tensor) {
  return shape.sequence * batch * shape.hidden * pipeline / tensor;
}

double output_activation_bytes(const GptShape& shape, double batch, double tensor) {
  return 4 * shape.sequence * batch * shape.hidden / tensor * (1 + shape.vocabulary / shape.hidden);
}

double gpt_parameters(const GptShape& shape) {
  const double h = shape.hidden;
  return 12 * shape.layers * h * h *
         (1 + 13 / (12 * h) + (shape.vocabulary + shape.sequence) / (12 * shape.layers * h));
}

double gpt_step_flops(const GptShape& shape, double batch, Recompute recompute) {
  const double h = shape.hidden;
  const double passes = recompute == Recompute::full ? 4 : 3;  // forwards' worth
  const double again = recompute == Recompute::selective ? 2 : 1;
  return 24 * passes * batch * shape.sequence * shape.layers * h * h *
         (1 + again * shape.sequence / (6 * h) +
          shape.vocabulary / (4 * passes * shape.layers * h));
}

double training_seconds(double tokens, double parameters, double devices, double flops_per_second) {
  return 8 * tokens * parameters / (devices * flops_per_second);
}

double bubble_1f1b(double stages, const StageSeconds& seconds) {
  return (stages - 1) * (seconds.forward + seconds.backward);
}

double bubble_interleaved(double stages, double chunks, const StageSeconds& seconds) {
  return bubble_1f1b(stages, seconds) / chunks;
}

double bubble_zb1p(double stages, const StageSeconds& seconds) {
  return (stages - 1) * (seconds.forward + seconds.backward - 2 * seconds.weight);
}

double bubble_dual_pipe(double stages, const StageSeconds& seconds) {
  return (stages / 2 - 1) * (seconds.pair + seconds.backward - 3 * seconds.weight);
}

double bubble_share_1f1b(double stages, double microbatches) {
  return (stages - 1) / (microbatches + stages - 1);
}

double bubble_share_chimera(double stages, double microbatches) {
  return (stages - 2) / (2 * microbatches + stages - 2);
}

double bubble_share_zb1p(double stages, double microbatches) {
  return bubble_share_1f1b(stages, microbatches) / 3;
}

double bubble_share_v_half(double stages, double microbatches) {
  return bubble_share_1f1b(stages, microbatches) / 2;
}

double two_buffered_bytes(const StageLoad& load, double depth, bool recompute) {
  const double weights = 2 * load.weights / depth;
  return recompute ? weights + load.activations / depth + depth * load.input
                   : weights + load.activations;
}

double gpipe_bytes(const StageLoad& load, double depth, double microbatches) {
  return (load.weights + load.activations) / depth + microbatches * load.input;
}

}  // namespace troupe
