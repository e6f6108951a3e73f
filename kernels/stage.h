/// The arithmetic of one virtual stage: layers [first, last) of a model with their parameters,
/// gradients, optimizer state and the activations of the microbatches in flight. No thread, no
/// message: the bare step loop, the tests and the stage actor all drive this class the same way.
/// All memory is taken from the device's arena in `create`; a step allocates nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "devices/arena.h"
#include "devices/device.h"
#include "kernels/optimizer.h"
#include "planner/ids.h"
#include "planner/model.h"
#include "planner/plan.h"

namespace troupe {

/// Tokens of one microbatch, owned by the caller until its W (or B) is done.
/// tokens, targets: (sequences, T); target -1 = not trained. The first stage reads tokens, the last
/// targets, others neither. T may be below StepShape::sequence_length.
struct MicrobatchTokens {
  std::span<const std::int32_t> tokens;
  std::span<const std::int32_t> targets;
  std::uint32_t sequences = 0;
  std::uint64_t first_sample = 0;  ///< index of its first sequence in the step, for dropout
};

struct StageSpec {
  ModelSpec model;
  StepShape shape;
  LayerRange layers;
  bool split_backward = false;
  std::uint32_t in_flight = 1;  ///< activation slabs (from in_flight_per_stage)
  std::uint32_t deferred = 0;   ///< slabs between I and W (from deferred_per_stage)
  AdamWSpec optimizer;
  std::uint64_t seed = 0;
  /// For evaluation and generation: no gradients and no optimizer state are taken; state() has
  /// them with rank 0, and a step must not be begun.
  bool weights_only = false;
  /// What blocks compute again in their backward: with a fused one only.
  StageRecompute recompute = {};
};

/// One gradient's contribution to the norm. `sum_of_squares` is in double, over the f32 gradient in
/// fixed shards.
struct TensorNorm {
  std::uint32_t tensor = 0;   ///< global index
  double sum_of_squares = 0;  ///< NaN or infinity where the gradient is not finite
};

/// What the update of a step needs; equal on all stages.
struct UpdateSpec {
  std::uint64_t step = 0;       ///< from 1; AdamW's bias correction uses step - skipped_steps
  std::uint64_t adam_step = 0;  ///< updates applied so far, this one included
  double learning_rate = 0;
  double gradient_scale = 1;  ///< min(1, clip / norm)
  bool skip = false;          ///< some gradient is not finite: nobody updates
};

/// What all stages do with the gradients of a step.
struct UpdateDecision {
  double norm = 0;            ///< of all gradients, each tensor once
  double gradient_scale = 1;  ///< min(1, clip / norm); 1 without clipping
  bool skip = false;          ///< the norm is not finite, or nothing was trained
};
/// From the norms of all stages together, in any order: summed in tensor order.
/// `clip_norm` 0: no clipping.
UpdateDecision decide_update(std::vector<TensorNorm> norms,
                             double clip_norm,
                             std::uint64_t trained_tokens);

/// The same for norms that are in tensor order already; allocates nothing.
UpdateDecision decide_update_in_order(std::span<const TensorNorm> norms,
                                      double clip_norm,
                                      std::uint64_t trained_tokens);

/// One hash of a whole model from the tensors' hashes of all stages, in any order.
std::uint64_t state_hash_of(std::vector<std::pair<std::uint32_t, std::uint64_t>> hashes);

/// A named slice of state, for checkpoints and hashes.
struct NamedState {
  std::string name;                            ///< parameter name
  std::uint32_t tensor = 0;                    ///< global index
  Tensor weight, first_moment, second_moment;  ///< f32
  Tensor gradient;                             ///< f32; of the last step until the next begins
  /// A tied head's copy of the table, in another stage than the embedding: to be loaded like the
  /// table, but saved and hashed by the embedding's stage.
  bool shared_copy = false;
};

/// Workspace that a stage of this spec needs: the largest of its layers' and actions'.
Bytes workspace_bytes(const StageSpec& spec);

class Stage {
 public:
  /// Allocates everything; parameters are filled by `initialize` or by a checkpoint load.
  /// On a meta device it only counts. `workspace`: borrowed, of at least workspace_bytes(spec); one
  /// block may serve all stages of a device, as their actions run one at a time. Null: an own one.
  static Result<std::unique_ptr<Stage>> create(Device& device,
                                               const StageSpec& spec,
                                               const Block* workspace = nullptr);
  virtual ~Stage() = default;

  virtual const StageSpec& spec() const = 0;
  /// Parameters from the counter-based generator: element i of a tensor depends on
  /// (seed, name, i) alone. Moments become zero.
  virtual void initialize() = 0;
  /// After weights were written from outside (checkpoint): refreshes bf16 copies.
  virtual void weights_changed(Stream& stream) = 0;

  /// Clears gradients. `trained_tokens`: of the whole step, over all microbatches; the loss and the
  /// gradients are sums of token losses divided by it (0: gradients are zero, loss is zero).
  virtual void begin_step(Stream& stream, std::uint64_t step, std::uint64_t trained_tokens) = 0;

  /// F. `input`: (sequences, T, width) in the compute type, ignored by the first stage. Afterwards
  /// `output(m)` is valid until B/I of m (not for the last stage, which computes the loss).
  virtual void forward(Stream& stream,
                       MicrobatchId m,
                       const MicrobatchTokens& tokens,
                       Tensor input) = 0;
  virtual Tensor output(MicrobatchId m) const = 0;
  /// Sum of token losses of microbatch m divided by trained_tokens, after F on the last stage.
  virtual double loss(MicrobatchId m) const = 0;

  /// B: input and weight gradients. `output_gradient`: as output; ignored by the last stage.
  /// `input_gradient`: written, unless this is the first stage. Frees the activations of m.
  virtual void backward(Stream& stream,
                        MicrobatchId m,
                        Tensor output_gradient,
                        Tensor input_gradient) = 0;
  /// I and W: the same in two halves, with the same bits. W frees.
  virtual void backward_input(Stream& stream,
                              MicrobatchId m,
                              Tensor output_gradient,
                              Tensor input_gradient) = 0;
  virtual void backward_weight(Stream& stream, MicrobatchId m) = 0;

  /// Gradient of the token table as made here (by embedding or head), for the exchange between the
  /// two ends of a tied model; rank 0 where this stage has no half of a table that another stage
  /// shares. A stage with both ends returns rank 0 and adds its halves itself, in the same order.
  virtual Tensor tied_gradient_half() = 0;
  /// Adds the other end's half: embedding half + head half, in that order on both ends.
  virtual void add_tied_gradient(Stream& stream, Tensor other_half) = 0;

  /// N: sums of squares by tensor. Tensors shared between stages are reported by their first owner.
  /// The vector is the stage's own, valid until the next call.
  virtual const std::vector<TensorNorm>& norm(Stream& stream) = 0;
  /// U.
  virtual void update(Stream& stream, const UpdateSpec& update) = 0;

  /// Hash of (weight, moments) bytes by tensor, for this stage's tensors; a shared tensor is hashed
  /// by its first owner.
  virtual std::vector<std::pair<std::uint32_t, std::uint64_t>> state_hashes(Stream& stream) = 0;
  virtual std::vector<NamedState> state() = 0;

  /// Loss only, no activations kept: (sum of token losses, tokens) for validation on a pipeline:
  /// output goes to `output`, which the caller owns; the last stage returns the sum. Uses the
  /// memory of an activation slab: only while no microbatch is in flight. Without dropout.
  virtual double evaluate(Stream& stream,
                          const MicrobatchTokens& tokens,
                          Tensor input,
                          Tensor output) = 0;
  /// Logits of the last position of each sequence, (sequences, vocabulary) f32; last stage only.
  /// `input` as in forward; `tokens.targets` is not read. Conditions as for evaluate.
  virtual void logits(Stream& stream, const MicrobatchTokens& tokens, Tensor input, Tensor out) = 0;
  /// The same for a last stage that is not the first: (sequences, length, width) in, no tokens.
  void logits(
      Stream& stream, std::uint32_t sequences, std::uint32_t length, Tensor input, Tensor out);
};

/// Runs each layer kind once on the meta device at the given shape and counts.
ModelProfile profile_model(const ModelSpec& model, const StepShape& shape);

}  // namespace troupe
