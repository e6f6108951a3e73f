/// The second half of a run session: from the first step to the last, and taking down.
#include <fmt/format.h>

#include <caf/io/all.hpp>

#include <algorithm>
#include <set>
#include <utility>

#include "actors/checkpoint/checkpoint.h"
#include "actors/checkpoint/checkpoint_write.h"
#include "actors/errors.h"
#include "actors/run_session_ask.h"
#include "actors/shard_text.h"
#include "actors/watchdog.h"
#include "devices/threads.h"

namespace troupe {
namespace {

constexpr Seconds close_timeout = 20;
/// After a failure: some node may be frozen, and those that are ours are killed anyway.
constexpr Seconds failed_close_timeout = 1;

}  // namespace

Result<RunOutcome> RunSession::train() {
  auto setup = std::make_shared<RunActorSetup>();
  setup->plan = plan_;
  setup->optimizer = spec_.optimizer;
  setup->learning_rate = spec_.learning_rate;
  setup->first_step = committed_ + 1;
  setup->last_step = spec_.steps;
  setup->adam_steps = adam_steps_;
  setup->state_hash_every = spec_.state_hash_every;
  setup->evaluate_every = spec_.evaluation.every_steps;
  setup->evaluation_batches = spec_.evaluation.batches;
  setup->checkpoint_every = spec_.checkpoint.every_steps;
  setup->checkpoints = !options_.checkpoint_folder.empty();
  setup->trace_step = options_.trace_step;
  setup->watch_drift = true;
  Seconds longest = 0;
  for (const Span& span : plan_->timeline.spans) longest = std::max(longest, span.end - span.begin);
  setup->patience = std::max(spec_.request_timeout, 10 * longest);
  setup->devices = devices_;
  for (const DeviceSpec& device : spec_.cluster.devices) {
    setup->device_names.push_back(device.name);
    setup->node_names.push_back(spec_.cluster.nodes.at(device.node.index()).name);
  }
  for (const Member& member : members_)
    setup->members.push_back({member.process, member.name, member.agent});
  setup->data = data_;
  setup->planner = planner_;
  setup->observer = caf::actor_cast<caf::actor>(self_.ptr());
  setup->begin_checkpoint =
      [parent = options_.checkpoint_folder](std::uint64_t step) -> Result<std::string> {
    auto folder = begin_checkpoint(parent, step);
    if (!folder) return folder.error();
    return folder->string();
  };
  setup->seal_checkpoint =
      [spec = spec_, parent = options_.checkpoint_folder, data = tokens_->fingerprint()](
          const std::string& folder, std::uint64_t step, std::uint64_t adam_steps,
          const std::vector<std::string>& shards) -> Result<std::string> {
    std::vector<FileRecord> records;
    for (const std::string& text : shards) {
      auto record = parse_shard_text(text);
      if (!record) return record.error();
      records.push_back(std::move(*record));
    }
    RunRecord record;
    record.model = spec.model;
    record.step = step;
    record.seed = spec.seed;
    record.data_position = step * spec.shape.batch_size;
    record.data_fingerprint = data;
    record.adam_step = adam_steps;
    record.skipped_steps = step - adam_steps;
    auto sealed = commit_checkpoint(folder, record, records);
    if (!sealed) return sealed.error();
    if (auto pruned = prune_checkpoints(parent, std::max(spec.checkpoint.keep, 1U)); !pruned)
      return pruned.error();
    return sealed->string();
  };
  self_->send(run_, StartRun{plan_->epoch, 0, std::move(setup)});
  RunOutcome outcome;
  bool stopping = false;
  self_->monitor(run_);  // an actor that a fault ended sends no news
  while (!ended_) {
    self_->receive(
        [&](const RunNews& news) { hear(news, outcome); },
        [&](const caf::down_msg& down) {
          if (down.source != run_.address() || ended_) return;
          ended_ = true;
          failure_ = std::make_shared<const Error>(Error{
              ErrorCode::internal, fmt::format("the run's own actor ended after step {}: {}",
                                               committed_, from_caf(down.reason, system_).text)});
        },
        caf::after(look_interval) >> [] {});
    if (!stopping && callbacks_.should_stop && callbacks_.should_stop()) {
      stopping = true;
      event("stop_asked", fmt::format("after step {}", committed_));
      self_->send(run_, StopRun{plan_->epoch, 0});
    }
  }
  self_->demonitor(run_);
  if (failure_) return *failure_;
  compare_with_plan();
  outcome.steps_done = committed_;
  event("run_ended", fmt::format("steps={} stopped={}", committed_, outcome.stopped));
  return outcome;
}

/// Planned against measured, for events.jsonl.
void RunSession::compare_with_plan() {
  Observations seen;
  self_->request(planner_, std::chrono::seconds{10}, NeedObservations{plan_->epoch, 0})
      .receive([&](const Observed& observed) { seen = observed.observations; },
               [](const caf::error&) {});
  if (seen.steps == 0) return;
  std::string text =
      fmt::format("predicted_step={} mean_step={} steps={}", format_seconds(plan_->predicted_step),
                  format_seconds(seen.step_seconds), seen.steps);
  for (const DeviceRow& device : seen.devices) {
    const Seconds planned = plan_->timeline.busy(fmt::format("d{}", device.device.value));
    text += fmt::format(" {}.busy={}/{}", spec_.cluster.devices.at(device.device.index()).name,
                        format_seconds(planned), format_seconds(device.busy));
  }
  event("plan_compared", text);
}

void RunSession::hear(const RunNews& news, RunOutcome& outcome) {
  switch (news.kind) {
    case RunNews::Kind::step:
      committed_ = news.row.step;
      outcome.last_step = news.row;
      if (callbacks_.on_step) callbacks_.on_step(news.row);
      return;
    case RunNews::Kind::evaluation:
      outcome.last_evaluation = news.evaluation;
      if (callbacks_.on_evaluation) callbacks_.on_evaluation(news.evaluation);
      return;
    case RunNews::Kind::checkpoint:
      outcome.last_checkpoint = news.text;
      event("checkpoint_written", news.text);
      if (callbacks_.on_checkpoint) callbacks_.on_checkpoint(news.text);
      return;
    case RunNews::Kind::trace:
      if (callbacks_.on_trace) callbacks_.on_trace(news.timeline);
      return;
    case RunNews::Kind::event: event("run", news.text); return;
    case RunNews::Kind::drift: event("drift", news.text); return;
    case RunNews::Kind::drift_ended: event("drift_ended", news.text); return;
    case RunNews::Kind::advice: event("plan_suggested", news.text); return;
    case RunNews::Kind::ended:
      ended_ = true;
      outcome.stopped = news.stopped;
      failure_ = news.failure;
      return;
  }
}

// ---- closing ----

void RunSession::close() {
  if (members_.empty() && !door_ && !run_ && !planner_ && children_.empty()) return;
  closing_ = true;
  const Watchdog watchdog("closing the run", 3 * close_timeout);
  // The run actor first: what follows looks like losses to it.
  std::vector<caf::actor> last;
  for (caf::actor* actor : {&run_, &data_, &planner_, &door_})
    if (*actor) last.push_back(std::exchange(*actor, nullptr));
  if (door_port_ != 0) (void)system_.middleman().unpublish(last.back(), door_port_);
  door_port_ = 0;
  const bool failed = failure_ != nullptr || dead_child().has_value();
  std::vector<std::pair<const Member*, std::future<Result<Ready>>>> asked;
  for (const Member& member : members_) {
    CloseNode order;
    order.leave = true;
    const Seconds patience = failed && member.remote ? failed_close_timeout : close_timeout;
    asked.emplace_back(&member, ask<Ready>(member, patience, order));
  }
  for (auto& [member, reply] : asked)
    while (reply.wait_for(look_interval) != std::future_status::ready) {
    }
  asked.clear();
  std::set<std::string> told;  // nodes that know that they shall leave
  for (const Member& member : members_) told.insert(member.nodes.begin(), member.nodes.end());
  members_.clear();
  local_ = nullptr;
  devices_.clear();
  for (const caf::actor& actor : last) {
    self_->monitor(actor);
    self_->send_exit(actor, caf::exit_reason::user_shutdown);
  }
  for (std::size_t left = last.size(); left > 0; --left) {
    bool gone = false;
    self_->receive([&](const caf::down_msg&) { gone = true; },
                   caf::after(std::chrono::seconds{5}) >> [] {});
    if (!gone) break;
  }
  // One deadline for all of them.
  const Seconds until = monotonic_seconds() + (failed ? 0.5 : 5.0);
  for (NodeProcess& child : children_)
    if (told.count(child.node()) != 0) (void)child.wait(std::max(0.0, until - monotonic_seconds()));
  children_.clear();  // kills what is left
}

}  // namespace troupe
