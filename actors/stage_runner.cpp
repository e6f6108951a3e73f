#include "actors/stage_runner.h"

#include <algorithm>
#include <cstring>

#include "planner/prerequisites.h"

namespace troupe {

StageSpec stage_spec_of(const Plan& plan, StageId stage, const StageOptions& options) {
  StageSpec spec;
  spec.model = plan.model;
  spec.shape = plan.shape;
  spec.layers = plan.stages.at(stage.index()).layers;
  spec.recompute = plan.stages.at(stage.index()).recompute;
  spec.split_backward = plan.schedule.split_backward;
  spec.in_flight = plan.in_flight.at(stage.index());
  spec.deferred = plan.deferred.at(stage.index());
  spec.optimizer = options.optimizer;
  spec.seed = options.seed;
  return spec;
}

Result<std::unique_ptr<StageRunner>> StageRunner::create(Device& device,
                                                         const Plan& plan,
                                                         const ClusterSpec& cluster,
                                                         StageId stage,
                                                         const StageOptions& options,
                                                         const Block* workspace) {
  std::unique_ptr<StageRunner> runner(new StageRunner);
  runner->id_ = stage;
  runner->stage_count_ = static_cast<std::uint32_t>(plan.stages.size());
  runner->shape_ = plan.shape;
  runner->width_ = plan.model.width;
  runner->slots_ = plan.schedule.stages.transfer_slots;
  auto made = Stage::create(device, stage_spec_of(plan, stage, options), workspace);
  if (!made) return made.error();
  runner->stage_ = std::move(*made);
  TROUPE_TRY(runner->allocate(device.arena(), plan, cluster));
  return runner;
}

Status StageRunner::allocate(Arena& arena, const Plan& plan, const ClusterSpec& cluster) {
  const EdgeBuffers counts = edge_buffers(id_, plan.schedule.stages, cluster);
  const Bytes boundary_size =
      Bytes{shape_.microbatch_size} * shape_.sequence_length * width_ * size_of(shape_.compute);
  const Bytes table_size = Bytes{plan.model.vocabulary} * width_ * size_of(DType::f32);
  const auto take = [&](std::vector<Block>& blocks, std::uint32_t count, Bytes size) -> Status {
    for (std::uint32_t i = 0; i < count; ++i) {
      auto block = arena.allocate(size, MemoryCategory::transfer);
      if (!block) return block.error();
      blocks.push_back(std::move(*block));
    }
    return {};
  };
  TROUPE_TRY(take(input_slots_, counts.input, boundary_size));
  TROUPE_TRY(take(output_gradient_slots_, counts.output_gradient, boundary_size));
  TROUPE_TRY(take(input_gradient_slots_, counts.input_gradient, boundary_size));
  TROUPE_TRY(take(tied_half_, counts.tied_half, table_size));
  inputs_.resize(shape_.microbatch_count);
  outputs_.resize(shape_.microbatch_count);
  output_gradients_.resize(shape_.microbatch_count);
  losses_.resize(is_last() ? shape_.microbatch_count : 0);
  return {};
}

void StageRunner::set_neighbours(StageRunner* previous, StageRunner* next, StageRunner* tied_end) {
  previous_ = previous;
  next_ = next;
  tied_end_ = tied_end;
}

void StageRunner::begin(Begin what) {
  now_ = std::move(what);
  begun_ = false;
  tied_half_taken_ = false;
  std::fill(losses_.begin(), losses_.end(), 0.0);
}

std::pair<std::byte*, Bytes> StageRunner::receive_buffer(const Action& transfer) const {
  const auto slot = [&](const std::vector<Block>& blocks) -> std::pair<std::byte*, Bytes> {
    if (blocks.empty()) return {nullptr, 0};
    const Block& block = blocks[transfer.microbatch.value % blocks.size()];
    return {block.data(), block.size()};
  };
  switch (transfer.op) {
    case Op::transfer_forward: return slot(input_slots_);
    case Op::transfer_backward: return slot(output_gradient_slots_);
    default: return slot(tied_half_);
  }
}

void StageRunner::arrived(const Action& transfer, std::byte* data) {
  if (transfer.op == Op::transfer_forward) inputs_.at(transfer.microbatch.index()) = data;
  if (transfer.op == Op::transfer_backward)
    output_gradients_.at(transfer.microbatch.index()) = data;
  if (transfer.op == Op::transfer_tied) {
    EXPECTS(data == tied_half_.at(0).data());
    tied_half_taken_ = true;
  }
}

Tensor StageRunner::outgoing(const Action& transfer) const {
  const MicrobatchId m = transfer.microbatch;
  switch (transfer.op) {
    case Op::transfer_forward: return boundary(outputs_.at(m.index()), m);
    case Op::transfer_backward: return boundary(input_gradient_buffer(m), m);
    default: return stage_->tied_gradient_half();
  }
}

std::uint32_t StageRunner::sequences(MicrobatchId m) const {
  const std::uint64_t first = std::uint64_t{m.value} * shape_.microbatch_size;
  if (first >= now_.sequences) return 0;
  return static_cast<std::uint32_t>(
      std::min<std::uint64_t>(shape_.microbatch_size, now_.sequences - first));
}

Tensor StageRunner::boundary(std::byte* data, MicrobatchId m) const {
  return make_tensor(data, shape_.compute, {sequences(m), shape_.sequence_length, width_});
}

std::byte* StageRunner::input_gradient_buffer(MicrobatchId m) const {
  return input_gradient_slots_[m.value % input_gradient_slots_.size()].data();
}

/// Gradient buffers of the edge to the next stage are idle while nothing is trained.
std::byte* StageRunner::evaluation_output(MicrobatchId m) const {
  if (!output_gradient_slots_.empty())
    return output_gradient_slots_[m.value % output_gradient_slots_.size()].data();
  EXPECTS(next_ != nullptr);
  return next_->input_gradient_buffer(MicrobatchId{m.value % slots_});
}

MicrobatchTokens StageRunner::tokens(MicrobatchId m) const {
  MicrobatchTokens view;
  view.sequences = sequences(m);
  view.first_sample = std::uint64_t{m.value} * shape_.microbatch_size;
  if (!now_.batch || m.index() >= now_.batch->microbatches.size()) return view;
  const MicrobatchData& data = now_.batch->microbatches.at(m.index());
  view.first_sample = data.first_sample;
  view.tokens = data.tokens;
  view.targets = data.targets;
  return view;
}

Tensor StageRunner::input(MicrobatchId m) const {
  if (is_first()) return {};
  // A stage of the same device left its output there; others sent theirs.
  std::byte* sent = inputs_.at(m.index());
  return boundary(sent != nullptr ? sent : previous_->outputs_.at(m.index()), m);
}

Tensor StageRunner::output_gradient(MicrobatchId m) const {
  if (is_last()) return {};
  std::byte* sent = output_gradients_.at(m.index());
  return boundary(sent != nullptr ? sent : next_->input_gradient_buffer(m), m);
}

void StageRunner::run_forward(Stream& stream, MicrobatchId m) {
  if (now_.evaluating) {
    std::byte* out = is_last() ? nullptr : evaluation_output(m);
    const Tensor to = is_last() ? Tensor{} : boundary(out, m);
    outputs_.at(m.index()) = out;
    if (sequences(m) == 0) return;  // the batch has fewer microbatches than a step
    const double sum = stage_->evaluate(stream, tokens(m), input(m), to);
    if (is_last()) losses_.at(m.index()) = sum;
    return;
  }
  stage_->forward(stream, m, tokens(m), input(m));
  if (is_last())
    losses_.at(m.index()) = stage_->loss(m);
  else
    outputs_.at(m.index()) = stage_->output(m).data;
}

/// Both ends on one device: nothing travels, so each end's half is kept before either is changed.
void StageRunner::take_tied_half() {
  if (tied_half_taken_) return;
  const Tensor half = tied_end_->stage_->tied_gradient_half();
  EXPECTS(half.bytes() <= tied_half_.at(0).size());
  std::memcpy(tied_half_[0].data(), half.data, half.bytes());
  tied_half_taken_ = true;
}

void StageRunner::run_norm(Stream& stream) {
  if (!tied_half_.empty()) {
    if (tied_end_ != nullptr) {
      take_tied_half();
      tied_end_->take_tied_half();
    }
    EXPECTS(tied_half_taken_);
    Tensor other = stage_->tied_gradient_half();
    other.data = tied_half_[0].data();
    stage_->add_tied_gradient(stream, other);
  }
  norms_ = stage_->norm(stream);
}

void StageRunner::run(Stream& stream, const Action& action) {
  const MicrobatchId m = action.microbatch;
  const auto gradient_out = [&] {
    return is_first() ? Tensor{} : boundary(input_gradient_buffer(m), m);
  };
  if (!begun_ && !now_.evaluating) stage_->begin_step(stream, now_.step, now_.trained_tokens);
  begun_ = true;
  switch (action.op) {
    case Op::forward: run_forward(stream, m); return;
    case Op::backward: stage_->backward(stream, m, output_gradient(m), gradient_out()); return;
    case Op::backward_input:
      stage_->backward_input(stream, m, output_gradient(m), gradient_out());
      return;
    case Op::backward_weight: stage_->backward_weight(stream, m); return;
    case Op::norm: run_norm(stream); return;
    case Op::update:
      stage_->update(stream, update_);
      if (now_.hash_state) hashes_ = stage_->state_hashes(stream);
      return;
    case Op::transfer_forward:
    case Op::transfer_backward:
    case Op::transfer_tied: EXPECTS(!"links run transfers"); return;
  }
}

}  // namespace troupe
