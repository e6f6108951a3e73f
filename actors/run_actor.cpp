/// Owns the plan in force and the commits: starts steps, gathers N of all stages, decides clipping
/// and skipping once, answers with U, commits when every device is done; then evaluates, orders
/// checkpoints, and begins the next step. The first failure ends the run with its cause.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <set>

#include "actors/errors.h"
#include "actors/interfaces.h"
#include "actors/mailbox_order.h"
#include "planner/drift.h"

namespace troupe {
namespace {

struct WatchTick {};

}  // namespace
}  // namespace troupe
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::WatchTick)

namespace troupe {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto watch_interval = std::chrono::milliseconds{250};
/// Devices tell of their progress every second; one that has missed two reports is silent.
constexpr double silent_seconds = 2.5;

double since(Clock::time_point then) {
  return std::chrono::duration<double>(Clock::now() - then).count();
}

struct RunState {
  RunState() {}
  static inline const char* name = "run";

  enum class Phase : std::uint8_t { idle, tokens, step, evaluation, checkpoint, ended };
  ActorOf<RunState>* self = nullptr;
  std::shared_ptr<const RunActorSetup> setup;
  Phase phase = Phase::idle;
  bool stop = false;

  // The open step.
  std::uint64_t step = 0;
  std::uint64_t adam_steps = 0;
  Clock::time_point began;
  std::uint64_t trained_tokens = 0;
  std::set<StageId> stages_with_norm;
  std::vector<TensorNorm> norms;
  UpdateDecision decision;
  std::vector<std::pair<std::uint32_t, std::uint64_t>> hashes;
  std::map<DeviceId, StepFinished> finished;

  // The open evaluation.
  std::uint32_t batch = 0;
  std::uint64_t batch_tokens = 0;
  std::set<DeviceId> evaluated;
  double evaluation_sum = 0;
  std::uint64_t evaluation_tokens = 0;

  // The open checkpoint.
  std::string folder;
  std::vector<std::string> shards;
  std::size_t shard_replies = 0;

  /// A step whose spans were asked for. Each process sends its own when it is done, before or after
  /// the step's commit.
  struct Traced {
    std::vector<PlayedSpan> spans;
    Seconds seconds = 0;  ///< of the step; 0 before its commit
  };
  std::map<std::uint64_t, Traced> traced;
  std::optional<DriftWatch> drift;
  Clock::time_point last_progress;
  std::map<DeviceId, Progress> progress;
  std::map<DeviceId, Clock::time_point> heard;  ///< since the step or evaluation was opened
  std::map<caf::actor_addr, std::string> members;
  std::optional<DeviceFailed> early_failure;  ///< before the start
  std::uint64_t stale = 0;

  const Plan& plan() const { return *setup->plan; }
  bool is_stale(PlanEpoch epoch, std::uint64_t of_step) {
    if (phase != Phase::ended && setup && epoch == plan().epoch && of_step == step) return false;
    ++stale;
    return true;
  }
  void alive() { last_progress = Clock::now(); }
  template <class M>
  void broadcast(const M& message) {
    for (const DeviceHandle& device : setup->devices) heard[device.device] = Clock::now();
    const auto shared = caf::make_message(message);
    before_passing_on(self);
    for (const DeviceHandle& device : setup->devices) {
      const auto to = caf::actor_cast<caf::actor>(device.actor);
      before_sending(to);
      self->send(to, shared);
    }
  }
  void tell(RunNews news) {
    news.epoch = plan().epoch;
    news.step = step;
    self->send(setup->observer, std::move(news));
  }

  void start(const StartRun& order);
  void next();
  void begin_step();
  void ready(const NormsReady& part);
  void decide();
  void step_finished(const StepFinished& done);
  void commit();
  void after_step();
  void begin_evaluation(std::uint32_t index);
  void evaluation_finished(const EvaluationFinished& done);
  void evaluation_ended();
  void after_evaluation();
  void begin_checkpoint();
  void shards_written(const ShardsWritten& written);
  void played(const SpansPlayed& part);
  void watch_drift(Seconds seconds);
  void look_at(std::uint64_t of_step);
  std::size_t action_count() const;
  Timeline timeline_of(const std::vector<PlayedSpan>& spans) const;
  void watch();
  bool has_finished(DeviceId device) const;
  std::string name_of(DeviceId device) const;
  std::string silent_devices() const;
  void device_failed(const DeviceFailed& failed);
  void fail(const Error& error);
  void end();
};

void RunState::start(const StartRun& order) {
  EXPECTS(phase == Phase::idle && order.setup != nullptr);
  setup = order.setup;
  adam_steps = setup->adam_steps;
  step = setup->first_step - 1;
  if (setup->watch_drift) drift.emplace(plan().predicted_step);
  for (const RunMember& member : setup->members) {
    members[member.agent.address()] = member.name;
    self->monitor(member.agent);
  }
  alive();
  if (early_failure) device_failed(*early_failure);
  if (phase == Phase::ended) return;
  self->delayed_send(self, watch_interval, WatchTick{});
  next();
}

void RunState::next() {
  if (step >= setup->last_step || stop) {
    end();
    return;
  }
  begin_step();
}

void RunState::begin_step() {
  ++step;
  phase = Phase::tokens;
  began = Clock::now();  // slow data is slow training
  stages_with_norm.clear();
  norms.clear();
  hashes.clear();
  finished.clear();
  alive();
  self->request(setup->data, std::chrono::seconds{60}, NeedTokens{plan().epoch, step, false, 0})
      .then(
          [this, of = step](const Tokens& tokens) {
            if (phase != Phase::tokens || of != step) return;
            phase = Phase::step;
            trained_tokens = tokens.batch->trained_tokens();
            BeginStep begin;
            begin.epoch = plan().epoch;
            begin.step = step;
            begin.trained_tokens = trained_tokens;
            for (const MicrobatchData& one : tokens.batch->microbatches)
              begin.sequences += one.sequences;
            begin.hash_state = setup->state_hash_every != 0 &&
                               (step % setup->state_hash_every == 0 || step == setup->last_step);
            begin.trace = step == setup->trace_step || (drift && drift->wants_trace());
            if (begin.trace) traced[step];
            alive();
            broadcast(begin);
          },
          [this](const caf::error& error) {
            Error cause = from_caf(error, self->system());
            cause.text = fmt::format("tokens of step {}: {}", step, cause.text);
            fail(cause);
          });
}

void RunState::ready(const NormsReady& part) {
  if (is_stale(part.epoch, part.step) || phase != Phase::step) return;
  if (stages_with_norm.count(part.stage) != 0) return;  // repeated
  alive();
  for (const TensorBits& one : part.sums)
    norms.push_back({one.tensor, std::bit_cast<double>(one.bits)});
  if (part.left == 0) stages_with_norm.insert(part.stage);
  if (stages_with_norm.size() == plan().stages.size()) decide();
}

void RunState::decide() {
  decision = decide_update(std::move(norms), setup->optimizer.clip_norm, trained_tokens);
  norms.clear();
  ApplyUpdate update;
  update.epoch = plan().epoch;
  update.step = step;
  update.adam_step = adam_steps + 1;
  update.learning_rate = learning_rate_at(setup->learning_rate, step);
  update.gradient_scale = decision.gradient_scale;
  update.skip = decision.skip;
  broadcast(update);
}

void RunState::step_finished(const StepFinished& done) {
  if (is_stale(done.epoch, done.step) || phase != Phase::step) return;
  alive();
  finished.emplace(done.device, done);
  if (finished.size() == setup->devices.size()) commit();
}

void RunState::commit() {
  EXPECTS(stages_with_norm.size() == plan().stages.size());
  if (!decision.skip) ++adam_steps;
  RunNews news;
  news.kind = RunNews::Kind::step;
  StepRow& row = news.row;
  row.step = step;
  double loss = 0;  // sum over microbatches, in their order
  for (const Bits64& one : finished.at(plan().stages.back().device).losses) loss += one.value();
  row.loss_bits = Bits64(loss).bits;
  row.gradient_norm_bits = Bits64(decision.norm).bits;
  row.learning_rate = learning_rate_at(setup->learning_rate, step);
  row.tokens = trained_tokens;
  row.seconds = std::chrono::duration<double>(Clock::now() - began).count();
  row.skipped = decision.skip;
  for (const auto& [device, done] : finished)
    row.devices.push_back(
        {device, done.busy_seconds.value(), done.peak_bytes, done.allocations, done.resent});
  row.has_state_hash = !hashes.empty();
  if (row.has_state_hash) row.state_hash = state_hash_of(std::move(hashes));
  hashes.clear();
  for (const DeviceRow& device : row.devices)
    if (device.resent > 0) {
      RunNews resent;
      resent.kind = RunNews::Kind::event;
      resent.text = fmt::format("link_resent step={} device=d{} tensors={}", step,
                                device.device.value, device.resent);
      tell(std::move(resent));
    }
  if (setup->planner) self->send(setup->planner, StepObserved{plan().epoch, step, row});
  const Seconds seconds = row.seconds;
  tell(std::move(news));
  if (drift) watch_drift(seconds);
  after_step();
}

/// Holds a committed step against the prediction.
void RunState::watch_drift(Seconds seconds) {
  if (step > setup->first_step && drift->step(seconds)) {
    RunNews news;
    news.kind = RunNews::Kind::drift_ended;
    news.text = fmt::format(
        "steps take {}, {:.2f} x the plan's {}", format_seconds(drift->recent_step()),
        drift->recent_step() / plan().predicted_step, format_seconds(plan().predicted_step));
    tell(std::move(news));
  }
  if (const auto found = traced.find(step); found != traced.end()) {
    found->second.seconds = seconds;
    look_at(step);
  }
}

/// When a step is committed and all its spans are here: does it drift, and why?
void RunState::look_at(std::uint64_t of_step) {
  const auto found = traced.find(of_step);
  if (!drift || found == traced.end() || found->second.seconds <= 0) return;
  const Timeline timeline = timeline_of(found->second.spans);
  if (timeline.spans.size() < action_count()) return;
  const Drift seen =
      explain_drift(plan().schedule, plan().timeline, timeline, found->second.seconds);
  traced.erase(found);
  if (!drift->wants_trace() || !drift->traced(seen)) return;
  RunNews news;
  news.kind = RunNews::Kind::drift;
  news.text = to_text(seen, setup->device_names, setup->node_names);
  tell(std::move(news));
  if (setup->planner)
    self->send(setup->planner, DriftSeen{plan().epoch, step, seen, setup->observer});
}

void RunState::after_step() {
  const bool last = step == setup->last_step;
  const std::uint64_t every = setup->evaluate_every;
  if (setup->evaluation_batches > 0 && !stop && (last || (every != 0 && step % every == 0))) {
    evaluation_sum = 0;
    evaluation_tokens = 0;
    begin_evaluation(0);
  } else {
    after_evaluation();
  }
}

void RunState::begin_evaluation(std::uint32_t index) {
  phase = Phase::evaluation;
  batch = index;
  evaluated.clear();
  alive();
  if (index == setup->evaluation_batches) {
    evaluation_ended();
    return;
  }
  self->request(setup->data, std::chrono::seconds{60}, NeedTokens{plan().epoch, step, true, index})
      .then(
          [this, index](const Tokens& tokens) {
            if (phase != Phase::evaluation || batch != index) return;
            if (!tokens.batch) {  // the validation text has no more
              evaluation_ended();
              return;
            }
            batch_tokens = tokens.batch->trained_tokens();
            BeginEvaluation begin;
            begin.epoch = plan().epoch;
            begin.step = step;
            begin.batch = index;
            for (const MicrobatchData& one : tokens.batch->microbatches)
              begin.sequences += one.sequences;
            broadcast(begin);
          },
          [this, index](const caf::error& error) {
            Error cause = from_caf(error, self->system());
            cause.text = fmt::format("tokens of validation batch {} after step {}: {}", index, step,
                                     cause.text);
            fail(cause);
          });
}

void RunState::evaluation_finished(const EvaluationFinished& done) {
  if (is_stale(done.epoch, done.step) || phase != Phase::evaluation || done.batch != batch) return;
  if (!evaluated.insert(done.device).second) return;
  alive();
  for (const Bits64& one : done.losses) evaluation_sum += one.value();
  if (evaluated.size() < setup->devices.size()) return;
  evaluation_tokens += batch_tokens;
  begin_evaluation(batch + 1);
}

void RunState::evaluation_ended() {
  if (evaluation_tokens > 0) {
    RunNews news;
    news.kind = RunNews::Kind::evaluation;
    news.evaluation.step = step;
    news.evaluation.loss = evaluation_sum / static_cast<double>(evaluation_tokens);
    news.evaluation.tokens = evaluation_tokens;
    tell(std::move(news));
  }
  after_evaluation();
}

void RunState::after_evaluation() {
  const bool last = step == setup->last_step || stop;
  const std::uint64_t every = setup->checkpoint_every;
  if (setup->checkpoints && (last || (every != 0 && step % every == 0)))
    begin_checkpoint();
  else
    next();
}

void RunState::begin_checkpoint() {
  phase = Phase::checkpoint;
  shards.clear();
  shard_replies = 0;
  alive();
  const auto begun = setup->begin_checkpoint(step);
  if (!begun) {
    fail(begun.error());
    return;
  }
  folder = *begun;
  const auto patience = std::chrono::seconds{600};
  for (const RunMember& member : setup->members)
    self->request(member.agent, patience, WriteShards{plan().epoch, step, folder})
        .then([this](const ShardsWritten& written) { shards_written(written); },
              [this, name = member.name](const caf::error& error) {
                Error cause = from_caf(error, self->system());
                cause.text = fmt::format("{}: checkpoint of step {}: {}", name, step, cause.text);
                fail(cause);
              });
}

void RunState::shards_written(const ShardsWritten& written) {
  if (is_stale(written.epoch, written.step) || phase != Phase::checkpoint) return;
  alive();
  shards.insert(shards.end(), written.shards.begin(), written.shards.end());
  if (++shard_replies < setup->members.size()) return;
  const auto sealed = setup->seal_checkpoint(folder, step, adam_steps, shards);
  if (!sealed) {
    fail(sealed.error());
    return;
  }
  RunNews news;
  news.kind = RunNews::Kind::checkpoint;
  news.text = *sealed;
  tell(std::move(news));
  next();
}

/// Of a step, transfers included.
std::size_t RunState::action_count() const {
  std::size_t all = 0;
  for (const auto& lane : plan().schedule.devices) all += lane.size();
  for (const LinkLane& link : plan().schedule.links) all += link.actions.size();
  return all;
}

/// Times from the begin of the first span.
Timeline RunState::timeline_of(const std::vector<PlayedSpan>& spans) const {
  Timeline timeline;
  if (spans.empty()) return timeline;
  double first = spans.front().begin.value();
  for (const PlayedSpan& span : spans) first = std::min(first, span.begin.value());
  for (const PlayedSpan& span : spans) {
    const std::string lane = span.from == span.to
                                 ? fmt::format("d{}", span.from.value)
                                 : fmt::format("d{}>d{}", span.from.value, span.to.value);
    timeline.spans.push_back(
        {span.action, lane, span.begin.value() - first, span.end.value() - first});
  }
  sort_spans(timeline);
  return timeline;
}

void RunState::played(const SpansPlayed& part) {
  const auto found = setup && part.epoch == plan().epoch ? traced.find(part.step) : traced.end();
  if (found == traced.end()) {
    ++stale;
    return;
  }
  std::vector<PlayedSpan>& spans = found->second.spans;
  spans.insert(spans.end(), part.spans.begin(), part.spans.end());
  if (spans.size() < action_count()) return;
  if (part.step == setup->trace_step) {
    RunNews news;
    news.kind = RunNews::Kind::trace;
    news.timeline = timeline_of(spans);
    tell(std::move(news));
  }
  if (drift)
    look_at(part.step);
  else
    traced.erase(found);
}

void RunState::watch() {
  if (phase == Phase::ended) return;
  self->delayed_send(self, watch_interval, WatchTick{});
  const double idle = since(last_progress);
  // Shards and tokens have deadlines of their own.
  if (phase == Phase::checkpoint || phase == Phase::tokens || idle < setup->patience) return;
  std::string waiting;
  for (const auto& [device, last] : progress)
    if (last.step == step) waiting += (waiting.empty() ? "" : "; ") + last.waiting;
  const std::string silent = silent_devices();
  fail({ErrorCode::timeout,
        fmt::format("step {}: nothing has moved for {:.1f} s: {}{}{}", step, idle, silent,
                    silent.empty() || waiting.empty() ? "" : "; ",
                    !silent.empty() || !waiting.empty() ? waiting : "no device has reported")});
}

bool RunState::has_finished(DeviceId device) const {
  return phase == Phase::step ? finished.count(device) != 0 : evaluated.count(device) != 0;
}

/// "t4 (d1)": as the configuration calls it, and as schedules do.
std::string RunState::name_of(DeviceId device) const {
  const auto& names = setup->device_names;
  return device.index() < names.size()
             ? fmt::format("{} (d{})", names[device.index()], device.value)
             : fmt::format("d{}", device.value);
}

/// Who no longer tells of itself, though it is not done:
/// "t4 (d1) of node n1 (pid 7) is silent for 3 s".
std::string RunState::silent_devices() const {
  std::string text;
  if (phase != Phase::step && phase != Phase::evaluation) return text;
  for (const DeviceHandle& device : setup->devices) {
    const auto last = heard.find(device.device);
    if (last == heard.end() || has_finished(device.device) || since(last->second) < silent_seconds)
      continue;
    std::string of = "a process that is not known";
    for (const RunMember& member : setup->members)
      if (member.agent.node() == device.actor.node()) of = member.name;
    text += fmt::format("{}{} of {} is silent for {:.1f} s", text.empty() ? "" : "; ",
                        name_of(device.device), of, since(last->second));
  }
  return text;
}

void RunState::device_failed(const DeviceFailed& failed) {
  if (failed.epoch != plan().epoch) return;
  fail({static_cast<ErrorCode>(failed.code),
        fmt::format("device {}, step {}: {}", name_of(failed.device), failed.step, failed.text)});
}

void RunState::fail(const Error& error) {
  if (phase == Phase::ended) return;
  RunNews news;
  news.kind = RunNews::Kind::ended;
  news.failure = std::make_shared<const Error>(error);
  tell(std::move(news));
  phase = Phase::ended;
}

void RunState::end() {
  if (phase == Phase::ended) return;
  RunNews news;
  news.kind = RunNews::Kind::ended;
  news.stopped = stop && step < setup->last_step;
  tell(std::move(news));
  phase = Phase::ended;
}

caf::behavior run_actor(ActorOf<RunState>* self) {
  RunState& state = self->state;
  state.self = self;
  self->set_down_handler([&state](const caf::down_msg& down) {
    const auto found = state.members.find(down.source);
    if (found == state.members.end()) return;
    state.fail(
        {ErrorCode::peer_lost, fmt::format("{} was lost in step {}: {}", found->second, state.step,
                                           from_caf(down.reason, state.self->system()).text)});
  });
  return {
      [&state](const StartRun& order) { state.start(order); },
      [&state](const NormsReady& part) { state.ready(part); },
      [&state](const StateHashes& part) {
        if (state.is_stale(part.epoch, part.step)) return;
        for (const TensorBits& one : part.hashes) state.hashes.emplace_back(one.tensor, one.bits);
      },
      [&state](const StepFinished& done) { state.step_finished(done); },
      [&state](const EvaluationFinished& done) { state.evaluation_finished(done); },
      [&state](const Progress& now) {
        if (state.is_stale(now.epoch, now.step)) return;
        state.heard[now.device] = Clock::now();
        Progress& last = state.progress[now.device];
        if (last.finished != now.finished) state.alive();
        last = now;
      },
      [&state](const DeviceFailed& failed) {
        if (state.setup)
          state.device_failed(failed);
        else if (!state.early_failure)
          state.early_failure = failed;  // a link may be lost while stages are filled
      },
      [&state](const SpansPlayed& part) { state.played(part); },
      [&state](const StopRun&) { state.stop = true; },
      [&state](const WatchTick&) { state.watch(); },
  };
}

}  // namespace

caf::actor spawn_run_actor(caf::actor_system& system) {
  // Not detached, as other processes know it (see node_actor). It waits for the disk when it seals
  // a checkpoint, when no step is open.
  return system.spawn(run_actor);
}

}  // namespace troupe
