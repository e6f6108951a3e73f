// On test time, the actors play the timeline that the simulator predicts: same schedule, same
// prerequisites, same cursors; only the source of "finished" differs.
#include <random>

#include "planner/simulate.h"
#include "tests/support/catch.h"
#include "tests/support/stepped_cluster.h"

using namespace troupe;
using namespace troupe::test;

namespace {

/// Seconds of each action, drawn once per action in eighths, so that sums are exact.
ActionSeconds random_seconds(const Plan& plan, std::uint64_t seed) {
  std::map<Action, Seconds> seconds;
  std::mt19937_64 random(seed);
  const auto draw = [&](const std::vector<Action>& lane) {
    for (const Action& action : lane) seconds[action] = static_cast<double>(1 + random() % 24) / 8;
  };
  for (const auto& lane : plan.schedule.devices) draw(lane);
  for (const LinkLane& link : plan.schedule.links) draw(link.actions);
  return [seconds](const Action& action) {
    const auto found = seconds.find(action);
    return found == seconds.end() ? 1.0 : found->second;
  };
}

Plan plan_of(const RunSpec& spec) {
  auto plan = make_plan(spec.model, spec.cluster, profile_model(spec.model, spec.shape), spec.plan);
  if (!plan) FAIL(plan.error().text);
  plan->epoch = PlanEpoch{1};
  return std::move(*plan);
}

const Timeline* traced(const std::vector<RunNews>& news) {
  for (const RunNews& one : news)
    if (one.kind == RunNews::Kind::trace) return &one.timeline;
  return nullptr;
}

std::string difference(const Timeline& a, const Timeline& b) {
  for (std::size_t i = 0; i < std::max(a.spans.size(), b.spans.size()); ++i) {
    const auto text = [&](const Timeline& t) {
      if (i >= t.spans.size()) return std::string("nothing");
      const Span& span = t.spans[i];
      return span.lane + " " + to_string(span.action) + " " + std::to_string(span.begin) + " to " +
             std::to_string(span.end);
    };
    if (text(a) != text(b)) return text(a) + " against " + text(b);
  }
  return "none";
}

}  // namespace

TEST_CASE("actors on test time play the simulator's timeline") {
  const auto kind = GENERATE(ScheduleKind::gpipe, ScheduleKind::one_f_one_b,
                             ScheduleKind::interleaved, ScheduleKind::zero_bubble_h1);
  const std::uint32_t devices = GENERATE(1U, 2U, 3U);
  const std::uint32_t microbatches = GENERATE(1U, 2U, 5U, 8U);
  const std::uint64_t seed = GENERATE(1U, 2U, 3U);
  CAPTURE(to_string(kind), devices, microbatches, seed);
  RunSpec spec = tiny_run(tiny_gpt2(), tiny_shape(microbatches), devices, kind);
  spec.plan.transfer_slots = 1 + seed % 2;
  if (kind == ScheduleKind::interleaved)
    pin_stages(spec, {1, 1, 1, 1, 1, 1});
  else
    pin_stages(spec, devices == 1   ? std::vector<std::uint32_t>{6}
                     : devices == 2 ? std::vector<std::uint32_t>{2, 4}
                                    : std::vector<std::uint32_t>{2, 3, 1});
  const Plan plan = plan_of(spec);
  const ActionSeconds seconds = random_seconds(plan, seed);
  SteppedCluster cluster(spec, plan, seconds);
  const auto news = cluster.run_steps(1, 1);
  const Timeline* played = traced(news);
  REQUIRE(played != nullptr);
  const Timeline planned = simulate(plan.schedule, seconds);
  INFO(difference(*played, planned));
  CHECK(*played == planned);
}

TEST_CASE("a superseded epoch is refused and a repeated order changes nothing") {
  RunSpec spec = tiny_run(tiny_gpt2(), tiny_shape(3), 2);
  pin_stages(spec, {3, 3});
  const Plan plan = plan_of(spec);
  const ActionSeconds seconds = random_seconds(plan, 4);
  SteppedCluster cluster(spec, plan, seconds);
  // Orders of another epoch, before anything began.
  BeginStep stale;
  stale.epoch = PlanEpoch{0};
  stale.step = 1;
  stale.sequences = 6;
  cluster.tell(DeviceId{0}, stale);
  cluster.tell(DeviceId{1}, ApplyUpdate{PlanEpoch{7}, 1, 1, 1e9, 1.0, false});
  CHECK(cluster.links().sent == 0);
  const auto news = cluster.run_steps(2, 2);
  const std::uint64_t sent = cluster.links().sent;
  // A step that is over is not run again.
  BeginStep repeated = stale;
  repeated.epoch = PlanEpoch{1};
  cluster.tell(DeviceId{0}, repeated);
  CHECK(cluster.links().sent == sent);
  const Timeline* played = traced(news);
  REQUIRE(played != nullptr);
  CHECK(*played == simulate(plan.schedule, seconds));
  std::size_t steps = 0;
  for (const RunNews& one : news) steps += one.kind == RunNews::Kind::step ? 1 : 0;
  CHECK(steps == 2);
}

TEST_CASE("L034 tokens of another step, plan or number of microbatches are refused") {
  RunSpec spec = tiny_run(tiny_gpt2(), tiny_shape(3), 2);
  pin_stages(spec, {3, 3});
  const Plan plan = plan_of(spec);
  const ActionSeconds seconds = random_seconds(plan, 4);
  struct Forgery {
    std::function<void(Tokens&, troupe::TokenBatch&)> change;
    std::string complaint;
  };
  const Forgery forgeries[] = {
      {[](Tokens&, troupe::TokenBatch& batch) { batch.step = 1; }, "3 microbatches of step 1 came"},
      {[](Tokens& tokens, troupe::TokenBatch&) { tokens.step = 1; },
       "those of step 1 of plan 1 came"},
      {[](Tokens& tokens, troupe::TokenBatch&) { tokens.epoch = PlanEpoch{9}; }, "of plan 9 came"},
      {[](Tokens&, troupe::TokenBatch& batch) { batch.microbatches.pop_back(); }, "2 microbatches"},
      {[](Tokens&, troupe::TokenBatch& batch) { batch.sequence_length = 15; },
       "sequences of 15 tokens"}};
  for (const Forgery& forgery : forgeries) {
    INFO(forgery.complaint);
    // The first step's tokens are right, the second's are not.
    SteppedCluster cluster(spec, plan, seconds, [&](caf::actor_system& system) -> caf::actor {
      return system.spawn([&]() -> caf::behavior {
        return {[&](const NeedTokens& need) {
          RandomTokens source(spec.model, spec.shape);
          auto batch = std::make_shared<troupe::TokenBatch>(source.batch_for_step(need.step));
          Tokens tokens{need.epoch, need.step, nullptr};
          if (need.step == 2) forgery.change(tokens, *batch);
          tokens.batch = std::move(batch);
          return tokens;
        }};
      });
    });
    const auto news = cluster.run_steps(3, 0);
    std::size_t steps = 0;
    for (const RunNews& one : news) steps += one.kind == RunNews::Kind::step ? 1 : 0;
    CHECK(steps == 1);
    REQUIRE_FALSE(news.empty());
    REQUIRE(news.back().failure != nullptr);
    INFO(news.back().failure->text);
    CHECK(news.back().failure->code == ErrorCode::protocol);
    CHECK(news.back().failure->text.find(forgery.complaint) != std::string::npos);
  }
}
