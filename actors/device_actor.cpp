/// The owner of one device: walks its lane of the schedule, hands actions to the hardware, sends
/// and receives the tensors of its stages. Arithmetic happens on the device's own thread; what is
/// here returns at once.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>

#include "actors/device_program.h"
#include "actors/errors.h"
#include "actors/interfaces.h"
#include "actors/mailbox_order.h"
#include "planner/prerequisites.h"

namespace troupe {
namespace {

struct ProgressTick {
  std::uint64_t step = 0;
};

}  // namespace
}  // namespace troupe
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::ProgressTick)

namespace troupe {
namespace {

constexpr auto progress_interval = std::chrono::seconds{1};
constexpr auto token_timeout = std::chrono::seconds{60};

struct DeviceState {
  DeviceState() {}
  static inline const char* name = "device";

  ActorOf<DeviceState>* self = nullptr;
  DeviceActorSetup setup;
  std::unique_ptr<DeviceProgram> training, evaluation;
  DeviceProgram* program = nullptr;  ///< of what is open now; null between steps

  // What is open: a step or an evaluation.
  std::uint64_t step = 0;
  std::uint64_t key_step = 0;  ///< of transfers
  std::uint32_t batch = 0;     ///< of an evaluation
  bool evaluating = false;
  bool started = false;  ///< tokens are here
  BeginStep begin;
  Seconds busy = 0;
  std::uint32_t resent = 0;  ///< by the links
  std::vector<PlayedSpan> spans;
  std::uint64_t last_finished_step = 0;
  std::uint64_t stale = 0;  ///< messages of another epoch or step

  const StageMap& stages() const { return setup.plan->schedule.stages; }
  std::uint32_t microbatches() const { return stages().microbatch_count; }
  StageRunner* runner_of(StageId stage) {
    for (const auto& runner : setup.runners)
      if (runner->id() == stage) return runner.get();
    return nullptr;
  }
  bool is_stale(PlanEpoch epoch) {
    if (epoch == setup.plan->epoch) return false;
    ++stale;
    return true;
  }

  void fail(const Error& error);
  void open(DeviceProgram* what, std::uint64_t key);
  void need_tokens(NeedTokens need, std::uint64_t trained_tokens, std::uint32_t sequences);
  std::string mismatch(const Tokens& tokens) const;
  void start(const std::shared_ptr<const TokenBatch>& tokens,
             std::uint64_t trained_tokens,
             std::uint32_t sequences);
  void grant_first();
  void grant(const Action& transfer);
  void grant_after(const Action& finished);
  void pump();
  void submit(const Action& action);
  void send(const Action& transfer, DeviceId to);
  void finished(const WorkFinished& work);
  void send_norms(StageId stage);
  void heard(const LinkEvent& event);
  void note_span(const Action& action, DeviceId from, DeviceId to, Seconds begin, Seconds end);
  void close();
  void close_step();
  void close_evaluation();
  /// Tells the run, whose next order lets others reuse what this device has read.
  template <class M>
  void close_with(M message) {
    before_passing_on(self);
    before_sending(setup.run);
    self->send(setup.run, std::move(message));
  }
};

void DeviceState::fail(const Error& error) {
  DeviceFailed failed;
  failed.epoch = setup.plan->epoch;
  failed.step = step;
  failed.device = setup.device;
  failed.code = static_cast<std::uint8_t>(error.code);
  failed.text = error.text;
  self->send(setup.run, failed);
}

void DeviceState::open(DeviceProgram* what, std::uint64_t key) {
  program = what;
  program->reset();
  key_step = key;
  started = false;
  busy = 0;
  resent = 0;
  spans.clear();
  grant_first();
  self->delayed_send(self, progress_interval, ProgressTick{key});
}

/// Room for the first tensors of each edge into this device's stages.
void DeviceState::grant_first() {
  const std::uint32_t slots = std::min(stages().transfer_slots, microbatches());
  for (const auto& runner : setup.runners) {
    const std::uint32_t s = runner->id().value;
    if (s > 0 && !same_device(s, s - 1, stages()))
      for (std::uint32_t m = 0; m < slots; ++m)
        grant({Op::transfer_forward, StageId{s - 1}, MicrobatchId{m}});
    if (evaluating) continue;
    if (!runner->is_last() && !same_device(s, s + 1, stages()))
      for (std::uint32_t m = 0; m < slots; ++m)
        grant({Op::transfer_backward, StageId{s + 1}, MicrobatchId{m}});
    const auto other = other_tied_end(runner->id(), stages());
    if (other && !same_device(s, other->value, stages()))
      grant({Op::transfer_tied, *other, MicrobatchId{0}});
  }
}

void DeviceState::grant(const Action& transfer) {
  if (transfer.microbatch.value >= microbatches()) return;
  const StageRunner* runner = runner_of(*receiver_of(transfer, stages()));
  EXPECTS(runner != nullptr);
  const auto [data, bytes] = runner->receive_buffer(transfer);
  Grant grant;
  grant.key = {setup.plan->epoch, key_step, transfer};
  grant.from = stages().device_of_stage.at(transfer.stage.index());
  grant.to = setup.device;
  grant.data = data;
  grant.bytes = bytes;
  before_passing_on(self);
  setup.links->grant(grant);
}

/// What an action read from another device leaves room for the tensor `slots` later.
void DeviceState::grant_after(const Action& finished) {
  const std::uint32_t s = finished.stage.value;
  const MicrobatchId later{finished.microbatch.value + stages().transfer_slots};
  if (finished.op == Op::forward && s > 0 && !same_device(s, s - 1, stages()))
    grant({Op::transfer_forward, StageId{s - 1}, later});
  if ((finished.op == Op::backward || finished.op == Op::backward_input) &&
      s + 1 < stages().stage_count() && !same_device(s, s + 1, stages()))
    grant({Op::transfer_backward, StageId{s + 1}, later});
}

void DeviceState::need_tokens(NeedTokens need,
                              std::uint64_t trained_tokens,
                              std::uint32_t sequences) {
  const bool needs = std::any_of(setup.runners.begin(), setup.runners.end(),
                                 [](const auto& runner) { return runner->needs_tokens(); });
  if (!needs) {
    start(nullptr, trained_tokens, sequences);
    return;
  }
  self->request(setup.data, token_timeout, need)
      .then(
          [this, trained_tokens, sequences, key = key_step](const Tokens& tokens) {
            if (program == nullptr || key != key_step) return;
            if (const std::string why = mismatch(tokens); !why.empty())
              fail({ErrorCode::protocol, fmt::format("tokens for step {}: {}", step, why)});
            else
              start(tokens.batch, trained_tokens, sequences);
          },
          [this, key = key_step](const caf::error& error) {
            if (program == nullptr || key != key_step) return;
            fail({ErrorCode::timeout, fmt::format("no tokens for step {}: {}", step,
                                                  from_caf(error, self->system()).text)});
          });
}

/// Why these cannot be the tokens of what is open; empty where they can.
std::string DeviceState::mismatch(const Tokens& tokens) const {
  if (tokens.epoch != setup.plan->epoch || tokens.step != step)
    return fmt::format("those of step {} of plan {} came", tokens.step, tokens.epoch.value);
  if (!tokens.batch) return "none came";  // not asked for beyond the end of a validation text
  const TokenBatch& came = *tokens.batch;
  if (!evaluating && (came.step != step || came.microbatches.size() != microbatches()))
    return fmt::format("{} microbatches of step {} came, {} were needed", came.microbatches.size(),
                       came.step, microbatches());
  // Stages without tokens know the planned length alone.
  if (came.sequence_length != setup.plan->shape.sequence_length)
    return fmt::format("sequences of {} tokens came, the plan is for {}", came.sequence_length,
                       setup.plan->shape.sequence_length);
  return "";
}

void DeviceState::start(const std::shared_ptr<const TokenBatch>& tokens,
                        std::uint64_t trained_tokens,
                        std::uint32_t sequences) {
  for (const auto& runner : setup.runners) {
    StageRunner::Begin what;
    what.step = step;
    what.trained_tokens = trained_tokens;
    what.sequences = sequences;
    what.evaluating = evaluating;
    what.hash_state = !evaluating && begin.hash_state;
    if (runner->needs_tokens()) what.batch = tokens;
    runner->begin(std::move(what));
  }
  started = true;
  pump();
}

void DeviceState::pump() {
  if (program == nullptr || !started) return;
  while (const auto action = program->take_action()) submit(*action);
  while (const auto transfer = program->take_transfer()) send(transfer->first, transfer->second);
  if (program->done()) close();
}

void DeviceState::submit(const Action& action) {
  StageRunner* runner = runner_of(action.stage);
  EXPECTS(runner != nullptr);
  auto failure = std::make_shared<std::shared_ptr<const Error>>();
  Work work;
  work.body = [runner, action, failure](Stream& stream) {
    try {
      runner->run(stream, action);
    } catch (const std::exception& thrown) {
      *failure = std::make_shared<const Error>(
          Error{ErrorCode::internal, fmt::format("{}: {}", to_string(action), thrown.what())});
    }
  };
  work.modelled = setup.modelled ? setup.modelled(action) : 0;
  if (setup.disturbed) work.modelled *= setup.disturbed(step);
  work.done = [to = caf::actor_cast<caf::actor>(self), epoch = setup.plan->epoch, key = key_step,
               action, failure](WorkTimes times) {
    before_sending(to);
    caf::anon_send(to, WorkFinished{epoch, key, action, times, *failure});
  };
  before_passing_on(self);
  setup.hardware->submit(std::move(work));
}

void DeviceState::send(const Action& transfer, DeviceId to) {
  const StageRunner* runner = runner_of(transfer.stage);
  EXPECTS(runner != nullptr);
  const Tensor tensor = runner->outgoing(transfer);
  Transfer sent;
  sent.key = {setup.plan->epoch, key_step, transfer};
  sent.from = setup.device;
  sent.to = to;
  sent.data = tensor.data;
  sent.bytes = tensor.bytes();
  sent.copy = transfer.op == Op::transfer_tied;  // both ends change their half in place
  before_passing_on(self);
  setup.links->send(sent);
}

void DeviceState::note_span(
    const Action& action, DeviceId from, DeviceId to, Seconds begin_at, Seconds end_at) {
  if (begin.trace && !evaluating) spans.push_back({action, from, to, begin_at, end_at});
}

void DeviceState::finished(const WorkFinished& work) {
  if (is_stale(work.epoch) || program == nullptr || work.step != key_step) return;
  if (work.failure) {
    fail(*work.failure);
    return;
  }
  busy += work.times.end - work.times.begin;
  note_span(work.action, setup.device, setup.device, work.times.begin, work.times.end);
  program->note_own(work.action);
  grant_after(work.action);
  if (work.action.op == Op::norm) send_norms(work.action.stage);
  pump();
}

void DeviceState::send_norms(StageId stage) {
  const std::vector<TensorNorm>& norms = runner_of(stage)->norms();
  std::size_t at = 0;
  do {
    const std::size_t end = std::min(norms.size(), at + list_part_count);
    NormsReady ready;
    ready.epoch = setup.plan->epoch;
    ready.step = step;
    ready.stage = stage;
    ready.left =
        static_cast<std::uint32_t>((norms.size() - end + list_part_count - 1) / list_part_count);
    for (; at < end; ++at)
      ready.sums.push_back({norms[at].tensor, Bits64(norms[at].sum_of_squares).bits});
    self->send(setup.run, std::move(ready));
  } while (at < norms.size());
}

void DeviceState::heard(const LinkEvent& event) {
  if (event.kind == LinkEvent::Kind::lost) {
    fail(event.error);
    return;
  }
  if (is_stale(event.key.epoch)) return;
  const Action& transfer = event.key.action;
  // Grants of a step that has not begun here name the first slots alone: nothing waits for those.
  if (program == nullptr || event.key.step != key_step) return;
  switch (event.kind) {
    case LinkEvent::Kind::granted: {
      if (transfer.op == Op::transfer_tied) return;  // halves have a slot of their own
      const auto reader = receiver_of(transfer, stages());
      if (!reader || stages().device_of_stage[transfer.stage.index()] != setup.device ||
          stages().device_of_stage[reader->index()] != event.to) {
        ++stale;  // it came from a socket, and no plan of ours says so
        return;
      }
      if (transfer.microbatch.value < stages().transfer_slots) return;
      const MicrobatchId freed{transfer.microbatch.value - stages().transfer_slots};
      const Op backward = setup.plan->schedule.split_backward ? Op::backward_input : Op::backward;
      const Op op = transfer.op == Op::transfer_forward ? Op::forward : backward;
      program->note_foreign({op, *reader, freed});
      break;
    }
    case LinkEvent::Kind::arrived:
      runner_of(*receiver_of(transfer, stages()))->arrived(transfer, event.data);
      program->note_foreign(transfer);
      break;
    case LinkEvent::Kind::delivered:
      note_span(transfer, event.from, event.to, event.begin, event.end);
      resent += event.resent;
      program->note_delivered(transfer);
      break;
    case LinkEvent::Kind::lost: return;
  }
  pump();
}

void DeviceState::close() {
  if (evaluating)
    close_evaluation();
  else
    close_step();
}

void DeviceState::close_step() {
  program = nullptr;
  last_finished_step = step;
  if (!spans.empty() && setup.trace) {
    SpansPlayed played;
    played.epoch = setup.plan->epoch;
    played.step = step;
    played.spans = std::move(spans);
    self->send(setup.trace, std::move(played));
    spans = {};
  }
  StepFinished finished_step;
  finished_step.epoch = setup.plan->epoch;
  finished_step.step = step;
  finished_step.device = setup.device;
  for (const auto& runner : setup.runners) {
    for (const double loss : runner->losses()) finished_step.losses.emplace_back(loss);
    if (!begin.hash_state) continue;
    const auto& hashes = runner->hashes();
    for (std::size_t at = 0; at < hashes.size();) {
      StateHashes part;
      part.epoch = setup.plan->epoch;
      part.step = step;
      part.device = setup.device;
      for (const std::size_t end = std::min(hashes.size(), at + list_part_count); at < end; ++at)
        part.hashes.push_back({hashes[at].first, hashes[at].second});
      self->send(setup.run, std::move(part));
    }
  }
  const ArenaUse use = setup.hardware->arena().use();
  finished_step.busy_seconds = busy;
  finished_step.peak_bytes = use.peak;
  finished_step.allocations = use.allocations;
  finished_step.resent = resent;
  close_with(std::move(finished_step));
}

void DeviceState::close_evaluation() {
  program = nullptr;
  EvaluationFinished done;
  done.epoch = setup.plan->epoch;
  done.step = step;
  done.device = setup.device;
  done.batch = batch;
  for (const auto& runner : setup.runners)
    for (const double loss : runner->losses()) done.losses.emplace_back(loss);
  close_with(std::move(done));
}

caf::behavior device_actor(ActorOf<DeviceState>* self, DeviceActorSetup setup) {
  DeviceState& state = self->state;
  state.self = self;
  state.setup = std::move(setup);
  state.training = std::make_unique<DeviceProgram>(state.setup.plan->schedule, state.setup.device);
  state.evaluation = std::make_unique<DeviceProgram>(*state.setup.evaluation, state.setup.device,
                                                     DeviceProgram::Kind::evaluation);
  return {
      [&state](const BeginStep& begin) {
        // A repeated or superseded order changes nothing.
        if (state.is_stale(begin.epoch) || state.program != nullptr ||
            begin.step <= state.last_finished_step)
          return;
        state.begin = begin;
        state.step = begin.step;
        state.evaluating = false;
        state.open(state.training.get(), begin.step);
        state.need_tokens({begin.epoch, begin.step, false, 0}, begin.trained_tokens,
                          begin.sequences);
      },
      [&state](const ApplyUpdate& update) {
        if (state.is_stale(update.epoch) || state.program == nullptr || state.evaluating ||
            update.step != state.step)
          return;
        UpdateSpec spec;
        spec.step = update.step;
        spec.adam_step = update.adam_step;
        spec.learning_rate = update.learning_rate.value();
        spec.gradient_scale = update.gradient_scale.value();
        spec.skip = update.skip;
        for (const auto& runner : state.setup.runners) runner->set_update(spec);
        for (std::uint32_t s = 0; s < state.stages().stage_count(); ++s)
          if (state.runner_of(StageId{s}) == nullptr)
            state.program->note_foreign({Op::norm, StageId{s}, MicrobatchId{0}});
        state.program->allow_updates();
        state.pump();
      },
      [&state](const BeginEvaluation& evaluation) {
        if (state.is_stale(evaluation.epoch) || state.program != nullptr) return;
        state.step = evaluation.step;
        state.batch = evaluation.batch;
        state.evaluating = true;
        state.open(state.evaluation.get(), evaluation_key(evaluation.step, evaluation.batch));
        state.need_tokens({evaluation.epoch, evaluation.step, true, evaluation.batch}, 1,
                          evaluation.sequences);
      },
      [&state](const WorkFinished& work) { state.finished(work); },
      [&state](const LinkNews& news) { state.heard(news.event); },
      [&state, self](const ProgressTick& tick) {
        if (state.program == nullptr || tick.step != state.key_step) return;
        Progress progress;
        progress.epoch = state.setup.plan->epoch;
        progress.step = state.step;
        progress.device = state.setup.device;
        progress.finished = state.program->finished();
        progress.waiting = state.started
                               ? state.program->waiting()
                               : fmt::format("d{} waits for tokens", state.setup.device.value);
        self->send(state.setup.run, std::move(progress));
        self->delayed_send(self, progress_interval, tick);
      },
  };
}

}  // namespace

caf::actor spawn_device_actor(caf::actor_system& system, DeviceActorSetup setup) {
  return system.spawn(device_actor, std::move(setup));
}

}  // namespace troupe
