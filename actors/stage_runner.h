/// One stage on its device: the arithmetic (kernels/stage.h) with the buffers of its edges. Knows
/// for each action which tensors go in and out; knows no order, no message and no thread.
///
/// Owned by its stage actor. Its device actor hands `run` to the device, action by action; what is
/// called from where is said at each function.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "actors/data/batches.h"
#include "kernels/stage.h"
#include "planner/memory.h"

namespace troupe {

/// Everything but the placement that a stage needs to know.
struct StageOptions {
  AdamWSpec optimizer;
  std::uint64_t seed = 0;
};

StageSpec stage_spec_of(const Plan& plan, StageId stage, const StageOptions& options);

class StageRunner {
 public:
  /// Takes all memory: the stage's, and the buffers that planner/memory.h counts. `workspace`: of
  /// the device, shared by its stages.
  static Result<std::unique_ptr<StageRunner>> create(Device& device,
                                                     const Plan& plan,
                                                     const ClusterSpec& cluster,
                                                     StageId stage,
                                                     const StageOptions& options,
                                                     const Block* workspace);

  /// The stages before and after where they are in this process and tensors go by reference or
  /// stay on the device, and the other end of a tied table where it is on the same device; null
  /// otherwise. Before the first step.
  void set_neighbours(StageRunner* previous, StageRunner* next, StageRunner* tied_end);

  StageId id() const { return id_; }
  Stage& stage() { return *stage_; }
  bool is_first() const { return id_.value == 0; }
  bool is_last() const { return id_.value + 1 == stage_count_; }
  /// The arithmetic reads token ids or targets.
  bool needs_tokens() const { return is_first() || is_last(); }

  // ---- by the device actor, between actions ----

  /// What a step, or an evaluation (forward alone, nothing kept, losses are sums), begins with.
  struct Begin {
    std::uint64_t step = 0;
    std::uint64_t trained_tokens = 0;
    std::uint32_t sequences = 0;  ///< over all microbatches; a validation batch may have fewer
    bool evaluating = false;
    bool hash_state = false;                  ///< after U
    std::shared_ptr<const TokenBatch> batch;  ///< null where no tokens are needed
  };
  /// Before the first action. Gradients are cleared on the device, by the first action.
  void begin(Begin what);
  /// Where a tensor that comes over a link is to be put: XF of the stage before, XB of the stage
  /// after, XT of the other end. Null data: it comes by reference.
  std::pair<std::byte*, Bytes> receive_buffer(const Action& transfer) const;
  /// The tensor of an incoming transfer lies at `data`.
  void arrived(const Action& transfer, std::byte* data);
  /// The tensor of an outgoing transfer, after the action that made it.
  Tensor outgoing(const Action& transfer) const;
  void set_update(const UpdateSpec& update) { update_ = update; }

  // ---- on the device's thread ----

  void run(Stream& stream, const Action& action);

  // ---- results, by the device actor after the action that made them ----

  const std::vector<TensorNorm>& norms() const { return norms_; }
  const std::vector<double>& losses() const { return losses_; }
  const std::vector<std::pair<std::uint32_t, std::uint64_t>>& hashes() const { return hashes_; }

 private:
  StageRunner() = default;
  Status allocate(Arena& arena, const Plan& plan, const ClusterSpec& cluster);
  std::uint32_t sequences(MicrobatchId m) const;
  Tensor boundary(std::byte* data, MicrobatchId m) const;
  std::byte* input_gradient_buffer(MicrobatchId m) const;
  std::byte* evaluation_output(MicrobatchId m) const;
  MicrobatchTokens tokens(MicrobatchId m) const;
  Tensor input(MicrobatchId m) const;
  Tensor output_gradient(MicrobatchId m) const;
  void run_forward(Stream& stream, MicrobatchId m);
  void run_norm(Stream& stream);
  void take_tied_half();

  StageId id_;
  std::uint32_t stage_count_ = 1;
  StepShape shape_;
  std::uint64_t width_ = 0;
  std::uint32_t slots_ = 1;
  std::unique_ptr<Stage> stage_;
  StageRunner* previous_ = nullptr;
  StageRunner* next_ = nullptr;
  StageRunner* tied_end_ = nullptr;

  std::vector<Block> input_slots_, output_gradient_slots_, input_gradient_slots_, tied_half_;
  Begin now_;
  bool begun_ = false;  ///< on the device
  bool tied_half_taken_ = false;
  UpdateSpec update_;
  // By microbatch: where the tensors of this step lie.
  std::vector<std::byte*> inputs_, outputs_, output_gradients_;
  std::vector<double> losses_;
  std::vector<TensorNorm> norms_;
  std::vector<std::pair<std::uint32_t, std::uint64_t>> hashes_;
};

}  // namespace troupe
