// The door admits who belongs and says why others do not; the planner actor keeps means; the data
// actor answers for any step.
#include "actors/errors.h"
#include "actors/interfaces.h"
#include "actors/launch.h"
#include "actors/system_config.h"
#include "tests/support/catch.h"
#include "tests/support/run_fixture.h"

using namespace troupe;
using namespace troupe::test;

namespace {

struct World {
  SystemConfig config;
  caf::actor_system system{config};
  caf::scoped_actor self{system};

  template <class Reply, class Message>
  Result<Reply> ask(const caf::actor& actor, const Message& message) {
    Result<Reply> result = Error{};
    self->request(actor, std::chrono::seconds{20}, message)
        .receive([&](const Reply& reply) { result = reply; },
                 [&](caf::error& error) { result = from_caf(error, system); });
    return result;
  }
};

}  // namespace

TEST_CASE("L104 a node of another version is refused with both versions") {
  World world;
  const auto door = spawn_door_actor(
      world.system, {{"n0", "n1"}, build_text(), caf::actor_cast<caf::actor>(world.self.ptr())});
  Hello hello;
  hello.build = build_text();
  hello.node = "n0";
  hello.agent = door;  // any actor will do here
  Hello other = hello;
  other.build = "9.9.9";
  const auto refused = world.ask<Welcome>(door, other);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::protocol);
  CHECK(refused.error().text.find("9.9.9") != std::string::npos);
  CHECK(refused.error().text.find(build_text()) != std::string::npos);
  other = hello;
  other.protocol = protocol_version + 1;
  CHECK_FALSE(world.ask<Welcome>(door, other).ok());
  other = hello;
  other.node = "n2";
  CHECK(world.ask<Welcome>(door, other).error().code == ErrorCode::not_found);
  CHECK(world.ask<Welcome>(door, hello).ok());
  CHECK_FALSE(world.ask<Welcome>(door, hello).ok());  // twice
  std::size_t joined = 0;
  while (!world.self->mailbox().empty())
    world.self->receive([&](const NodeJoined& news) {
      ++joined;
      CHECK(news.hello.node == "n0");
    });
  CHECK(joined == 1);
  world.self->send_exit(door, caf::exit_reason::user_shutdown);
}

TEST_CASE("the planner actor proposes, refuses by name and keeps means without the first step") {
  World world;
  const auto planner = spawn_planner_actor(world.system);
  const RunSpec spec = tiny_run(tiny_gpt2(), tiny_shape(2), 2);
  auto request = std::make_shared<OwnedPlanRequest>(
      OwnedPlanRequest{spec.model, spec.cluster, profile_model(spec.model, spec.shape), spec.plan});
  const auto made = world.ask<PlanProposed>(planner, ProposePlan{PlanEpoch{4}, 0, request});
  REQUIRE(made.ok());
  CHECK(made->plan->epoch == PlanEpoch{4});
  auto small = std::make_shared<OwnedPlanRequest>(*request);
  for (DeviceSpec& device : small->cluster.devices) device.memory = 1000;
  CHECK(world.ask<PlanProposed>(planner, ProposePlan{PlanEpoch{4}, 0, small}).error().code ==
        ErrorCode::does_not_fit);
  for (const double seconds : {100.0, 1.0, 3.0}) {
    StepRow row;
    row.seconds = seconds;
    row.devices = {{DeviceId{1}, seconds / 2, static_cast<Bytes>(seconds), 9}};
    world.self->send(planner, StepObserved{PlanEpoch{4}, 1, row});
  }
  const auto seen = world.ask<Observed>(planner, NeedObservations{PlanEpoch{4}, 3});
  REQUIRE(seen.ok());
  CHECK(seen->observations.steps == 2);
  CHECK(seen->observations.step_seconds == 2);
  REQUIRE(seen->observations.devices.size() == 1);
  CHECK(seen->observations.devices[0].busy == 1);
  CHECK(seen->observations.devices[0].peak == 3);
  world.self->send_exit(planner, caf::exit_reason::user_shutdown);
}

TEST_CASE("the data actor gives the same tokens in any order, and says when there are no more") {
  World world;
  const RunSpec spec = tiny_run(tiny_gpt2(), tiny_shape(2), 1);
  auto source = std::make_shared<RandomTokens>(spec.model, spec.shape);
  const auto data = spawn_data_actor(world.system, source);
  for (const std::uint64_t step : {1U, 2U, 7U, 3U, 2U}) {
    const auto reply = world.ask<Tokens>(data, NeedTokens{PlanEpoch{1}, step, false, 0});
    REQUIRE(reply.ok());
    CHECK(reply->batch->microbatches[1].tokens ==
          source->batch_for_step(step).microbatches[1].tokens);
  }
  CHECK(world.ask<Tokens>(data, NeedTokens{PlanEpoch{1}, 1, true, 1})->batch != nullptr);
  CHECK(world.ask<Tokens>(data, NeedTokens{PlanEpoch{1}, 1, true, 2})->batch == nullptr);
  world.self->send_exit(data, caf::exit_reason::user_shutdown);
}

TEST_CASE("L141 what fails while stages are filled is what the run ends with, not its silence") {
  World world;
  RunSpec spec = tiny_run(tiny_gpt2(), tiny_shape(2), 2);
  const auto planned = plan_training(spec);
  REQUIRE(planned.ok());
  const auto run = spawn_run_actor(world.system);
  DeviceFailed lost;
  lost.epoch = planned->plan.epoch;
  lost.device = DeviceId{1};
  lost.code = static_cast<std::uint8_t>(ErrorCode::peer_lost);
  lost.text = "link to node n1: it went away";
  world.self->send(run, lost);
  auto setup = std::make_shared<RunActorSetup>();
  setup->plan = std::make_shared<const Plan>(planned->plan);
  setup->device_names = {"fast", "slow"};
  setup->observer = caf::actor_cast<caf::actor>(world.self.ptr());
  world.self->send(run, StartRun{planned->plan.epoch, 0, setup});
  std::shared_ptr<const Error> failure;
  world.self->receive([&](const RunNews& news) { failure = news.failure; },
                      caf::after(std::chrono::seconds{20}) >> [] {});
  REQUIRE(failure != nullptr);
  CHECK(failure->code == ErrorCode::peer_lost);
  CHECK(failure->text == "device slow (d1), step 0: link to node n1: it went away");
  world.self->send_exit(run, caf::exit_reason::user_shutdown);
}
