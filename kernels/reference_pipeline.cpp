#include "kernels/reference_pipeline.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "planner/schedule_cursor.h"

namespace troupe {
namespace {

/// A tensor with memory of its own. Not of an arena: the oracle is outside of what is accounted.
struct Parcel {
  std::vector<std::byte> bytes;
  Tensor tensor;

  void shape_like(const Tensor& other) {
    bytes.resize(other.bytes() + 64);
    tensor = other;
    const auto address = reinterpret_cast<std::uintptr_t>(bytes.data());
    tensor.data = bytes.data() + (64 - address % 64) % 64;
  }
  void copy_of(const Tensor& other) {
    shape_like(other);
    std::memcpy(tensor.data, other.data, other.bytes());
  }
};

}  // namespace

struct ReferencePipeline::State {
  PipelineSpec spec;
  std::vector<Block> workspaces;
  std::vector<std::unique_ptr<Stage>> stages;
  std::unique_ptr<ScheduleRun> run;
  // Of one step, by (stage, microbatch):
  using Key = std::pair<std::uint32_t, std::uint32_t>;
  std::map<Key, Parcel> arrived_outputs;    ///< of stage s, at stage s + 1
  std::map<Key, Parcel> input_gradients;    ///< made by stage s
  std::map<Key, Parcel> arrived_gradients;  ///< made by stage s, at stage s - 1
  std::map<std::uint32_t, Parcel> tied_halves;
  std::vector<TensorNorm> norms;
  UpdateSpec update;
  bool decided = false;
  std::uint64_t trained = 0;

  Status allocate();
  void run_action(Stream& stream, const Action& action, const StepInput& input);
  void run_backward(Stream& stream, const Action& action, const StepInput& input);
  void run_norm(Stream& stream, std::uint32_t stage);
  void run_update(Stream& stream, std::uint32_t stage, const StepInput& input);
  bool local(std::uint32_t a, std::uint32_t b) const {
    return same_device(a, b, spec.schedule.stages);
  }
  Tensor boundary(const MicrobatchTokens& tokens) const;
};

Status ReferencePipeline::State::allocate() {
  const std::vector<std::uint32_t> in_flight = in_flight_per_stage(spec.schedule);
  const std::vector<std::uint32_t> deferred = deferred_per_stage(spec.schedule);
  const std::vector<DeviceId>& placed = spec.schedule.stages.device_of_stage;
  EXPECTS(placed.size() == spec.layers.size());
  std::vector<StageSpec> specs;
  std::vector<Bytes> workspace(spec.devices.size());
  for (std::uint32_t s = 0; s < spec.layers.size(); ++s) {
    specs.push_back({spec.model, spec.shape, spec.layers[s], spec.schedule.split_backward,
                     in_flight[s], deferred[s], spec.optimizer, spec.seed});
    if (!spec.recompute.empty()) specs.back().recompute = spec.recompute.at(s);
    Bytes& most = workspace.at(placed[s].index());
    most = std::max(most, workspace_bytes(specs.back()));
  }
  workspaces.resize(spec.devices.size());
  for (std::size_t d = 0; d < workspaces.size(); ++d) {
    if (workspace[d] == 0) continue;
    Result<Block> block =
        spec.devices[d]->arena().allocate(workspace[d], MemoryCategory::workspace);
    if (!block) return block.error();
    workspaces[d] = std::move(*block);
  }
  for (std::uint32_t s = 0; s < specs.size(); ++s) {
    const std::size_t d = placed[s].index();
    auto stage = Stage::create(*spec.devices[d], specs[s], &workspaces[d]);
    if (!stage) return stage.error();
    stages.push_back(std::move(*stage));
  }
  return {};
}

Tensor ReferencePipeline::State::boundary(const MicrobatchTokens& tokens) const {
  const std::uint64_t length = tokens.sequences == 0 ? 0 : tokens.tokens.size() / tokens.sequences;
  return make_tensor(nullptr, spec.shape.compute, {tokens.sequences, length, spec.model.width});
}

void ReferencePipeline::State::run_backward(Stream& stream,
                                            const Action& action,
                                            const StepInput& input) {
  const std::uint32_t s = action.stage.value;
  const std::uint32_t m = action.microbatch.value;
  Tensor output_gradient;
  if (s + 1 < stages.size())
    output_gradient = (local(s, s + 1) ? input_gradients : arrived_gradients).at({s + 1, m}).tensor;
  Tensor input_gradient;
  if (s > 0) {
    Parcel& parcel = input_gradients[{s, m}];
    parcel.shape_like(boundary(input.microbatches[m]));
    input_gradient = parcel.tensor;
  }
  if (action.op == Op::backward)
    stages[s]->backward(stream, action.microbatch, output_gradient, input_gradient);
  else
    stages[s]->backward_input(stream, action.microbatch, output_gradient, input_gradient);
}

void ReferencePipeline::State::run_norm(Stream& stream, std::uint32_t stage) {
  const auto other = other_tied_end(StageId{stage}, spec.schedule.stages);
  if (other) {
    if (local(stage, other->value))  // no transfer: take both halves before one is changed
      for (const std::uint32_t end : {stage, other->value})
        if (!tied_halves.contains(end)) tied_halves[end].copy_of(stages[end]->tied_gradient_half());
    stages[stage]->add_tied_gradient(stream, tied_halves.at(other->value).tensor);
  }
  const std::vector<TensorNorm>& own = stages[stage]->norm(stream);
  norms.insert(norms.end(), own.begin(), own.end());
}

void ReferencePipeline::State::run_update(Stream& stream,
                                          std::uint32_t stage,
                                          const StepInput& input) {
  if (!decided) {
    const UpdateDecision decision = decide_update(norms, spec.optimizer.clip_norm, trained);
    update = {input.step, input.adam_step, input.learning_rate, decision.gradient_scale,
              decision.skip};
    decided = true;
  }
  stages[stage]->update(stream, update);
}

void ReferencePipeline::State::run_action(Stream& stream,
                                          const Action& action,
                                          const StepInput& input) {
  const std::uint32_t s = action.stage.value;
  const std::uint32_t m = action.microbatch.value;
  switch (action.op) {
    case Op::forward: {
      Tensor from;
      if (s > 0)
        from = local(s, s - 1) ? stages[s - 1]->output(action.microbatch)
                               : arrived_outputs.at({s - 1, m}).tensor;
      stages[s]->forward(stream, action.microbatch, input.microbatches[m], from);
      return;
    }
    case Op::backward:
    case Op::backward_input: run_backward(stream, action, input); return;
    case Op::backward_weight: stages[s]->backward_weight(stream, action.microbatch); return;
    case Op::transfer_forward:
      arrived_outputs[{s, m}].copy_of(stages[s]->output(action.microbatch));
      return;
    case Op::transfer_backward:
      arrived_gradients[{s, m}].copy_of(input_gradients.at({s, m}).tensor);
      return;
    case Op::transfer_tied: tied_halves[s].copy_of(stages[s]->tied_gradient_half()); return;
    case Op::norm: run_norm(stream, s); return;
    case Op::update: run_update(stream, s, input); return;
  }
}

ReferencePipeline::ReferencePipeline(std::unique_ptr<State> state) : state_(std::move(state)) {}
ReferencePipeline::~ReferencePipeline() = default;

Result<std::unique_ptr<ReferencePipeline>> ReferencePipeline::create(const PipelineSpec& spec) {
  auto state = std::make_unique<State>();
  state->spec = spec;
  TROUPE_TRY(validate(spec.schedule));
  TROUPE_TRY(state->allocate());
  state->run = std::make_unique<ScheduleRun>(state->spec.schedule);
  return std::unique_ptr<ReferencePipeline>(new ReferencePipeline(std::move(state)));
}

void ReferencePipeline::initialize() {
  for (const auto& stage : state_->stages) stage->initialize();
}

StepOutcome ReferencePipeline::run_step(Stream& stream, const StepInput& input) {
  State& state = *state_;
  EXPECTS(input.microbatches.size() == state.spec.schedule.stages.microbatch_count);
  state.trained = trained_tokens(input.microbatches);
  state.arrived_outputs.clear();
  state.input_gradients.clear();
  state.arrived_gradients.clear();
  state.tied_halves.clear();
  state.norms.clear();
  state.decided = false;
  state.run->reset();
  for (const auto& stage : state.stages) stage->begin_step(stream, input.step, state.trained);
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t lane = 0; lane < state.run->lane_count(); ++lane) {
      const auto action = state.run->cursor(lane).next_ready();
      if (!action) continue;
      state.run->cursor(lane).start_next();
      state.run_action(stream, *action, input);
      state.run->finish(lane);
      moved = true;
    }
  }
  EXPECTS(state.run->done());
  StepOutcome outcome;
  for (std::uint32_t m = 0; m < input.microbatches.size(); ++m)
    outcome.loss += state.stages.back()->loss(MicrobatchId{m});
  outcome.norm = decide_update(state.norms, 0, state.trained).norm;
  outcome.skipped = state.update.skip;
  outcome.trained_tokens = state.trained;
  return outcome;
}

std::vector<Stage*> ReferencePipeline::stages() {
  std::vector<Stage*> list;
  for (const auto& stage : state_->stages) list.push_back(stage.get());
  return list;
}

std::uint64_t ReferencePipeline::state_hash(Stream& stream) {
  std::vector<std::pair<std::uint32_t, std::uint64_t>> all;
  for (const auto& stage : state_->stages) {
    const auto own = stage->state_hashes(stream);
    all.insert(all.end(), own.begin(), own.end());
  }
  return state_hash_of(std::move(all));
}

}  // namespace troupe
