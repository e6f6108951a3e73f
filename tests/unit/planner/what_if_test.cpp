#include "planner/what_if.h"

#include "planner/schedules.h"
#include "tests/support/catch.h"

using namespace troupe;

namespace {

Schedule pipeline(std::uint32_t stages, std::uint32_t microbatches) {
  return make_schedule(ScheduleKind::one_f_one_b, looped_stages(stages, microbatches)).value();
}

Seconds one_second(const Action& action) {
  return action.op == Op::norm || action.op == Op::update ? 0 : 1;
}

PlayedStep played(const Schedule& schedule, const WhatIf& what_if) {
  return play_step(schedule, disturbed(schedule, one_second, what_if));
}

WhatIf lossy(double loss, std::uint64_t seed) {
  WhatIf what_if;
  what_if.links.push_back({DeviceId{0}, DeviceId{1}, {}, {}, loss});
  what_if.seed = seed;
  return what_if;
}

}  // namespace

TEST_CASE("without a change the step is the simulated one") {
  const Schedule schedule = pipeline(3, 4);
  const PlayedStep step = played(schedule, {});
  CHECK(step.ended());
  CHECK(step.timeline == simulate(schedule, one_second));
  CHECK(hang_lines(schedule, step, {}, {"a", "b", "c"}).empty());
}

TEST_CASE("a slow device lengthens its own actions alone") {
  const Schedule schedule = pipeline(2, 3);
  WhatIf what_if;
  what_if.slow[1] = 2.5;
  for (const Span& span : played(schedule, what_if).timeline.spans)
    CHECK(span.end - span.begin == (span.lane == "d1" ? 2.5 : 1.0) * one_second(span.action));
}

TEST_CASE("jitter stays within its bounds and is a function of the seed and the action") {
  const Schedule schedule = pipeline(3, 8);
  WhatIf what_if;
  what_if.jitter = 0.25;
  const PlayedStep step = played(schedule, what_if);
  Seconds least = 2, most = 0;
  for (const Span& span : step.timeline.spans) {
    if (one_second(span.action) == 0) continue;
    least = std::min(least, span.end - span.begin);
    most = std::max(most, span.end - span.begin);
  }
  CHECK(least >= 0.75 - 1e-12);
  CHECK(most <= 1.25 + 1e-12);
  CHECK(most - least > 0.3);  // of about a hundred draws over 0.5
  CHECK(played(schedule, what_if).timeline == step.timeline);
  what_if.seed = 2;
  CHECK_FALSE(played(schedule, what_if).timeline == step.timeline);
}

TEST_CASE("a lossy link sends again, and after three repeats never ends") {
  const Schedule schedule = pipeline(2, 64);
  std::size_t sent = 0, repeated = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    INFO("seed " << seed);
    const PlayedStep step = played(schedule, lossy(0.1, seed));
    for (const Span& span : step.timeline.spans) {
      if (span.lane != "d0>d1") continue;
      const Seconds takes = span.end - span.begin;
      CHECK((takes == 1 || takes == 2 || takes == 3 || takes == 4));
      ++sent;
      repeated += takes > 1 ? 1 : 0;
    }
  }
  CHECK(sent > 1000);
  CHECK(static_cast<double>(repeated) / static_cast<double>(sent) == Approx(0.1).margin(0.03));
  const PlayedStep broken = played(schedule, lossy(1, 1));
  CHECK_FALSE(broken.ended());
  const auto lines = hang_lines(schedule, broken, lossy(1, 1), {"left", "right"});
  CHECK(lines.back() == "culprit: left to right, which loses XF0.0 4 times");
}

TEST_CASE("a device that stops: who waits for whom, and the culprit") {
  const Schedule schedule = pipeline(3, 2);
  WhatIf what_if;
  what_if.stops[2] = 4.5;  // F0.0 XF0.0 F1.0 XF1.0 end at 4; F2.0 would end at 5
  const PlayedStep step = played(schedule, what_if);
  CHECK(hang_lines(schedule, step, what_if, {"a", "b", "c"}) ==
        std::vector<std::string>{
            "a: B0.0 <- XB1.0 (b to a) <- B1.0 (b) <- XB2.0 (c to b) <- B2.0 (c) behind F2.0, "
            "which never ends",
            "b: B1.0 <- XB2.0 (c to b) <- B2.0 (c) behind F2.0, which never ends",
            "culprit: c, which stops at 4.50 s"});
  for (const Span& span : step.timeline.spans)
    if (span.lane == "d2") CHECK(span.end <= 4.5);
  what_if.stops[2] = 1000;  // later than the step
  CHECK(played(schedule, what_if).ended());
}

TEST_CASE("changed links keep what was not changed") {
  ClusterSpec cluster;
  cluster.nodes.push_back({"n", false});
  cluster.devices.resize(2);
  cluster.same_process = {0.5, 100};
  WhatIf what_if;
  what_if.links.push_back({DeviceId{0}, DeviceId{1}, 2.0, {}, 0});
  const ClusterSpec other = changed(cluster, what_if);
  CHECK(other.link(DeviceId{0}, DeviceId{1}).latency == 2);
  CHECK(other.link(DeviceId{0}, DeviceId{1}).bandwidth == 100);
  CHECK(other.link(DeviceId{1}, DeviceId{0}).latency == 0.5);
}

TEST_CASE("several changes of one link add up") {
  const Schedule schedule = pipeline(2, 16);
  WhatIf what_if = lossy(0.5, 3);
  const Seconds once = played(schedule, what_if).timeline.makespan();
  REQUIRE(once > played(schedule, {}).timeline.makespan());
  what_if.links.push_back({DeviceId{0}, DeviceId{1}, 1.0, {}, {}});
  CHECK(played(schedule, what_if).timeline.makespan() == once);
  ClusterSpec cluster;
  cluster.devices.resize(2);
  cluster.nodes.resize(1);
  what_if.links.push_back({DeviceId{0}, DeviceId{1}, {}, 2e9, {}});
  CHECK(changed(cluster, what_if).link(DeviceId{0}, DeviceId{1}).latency == 1.0);
  CHECK(changed(cluster, what_if).link(DeviceId{0}, DeviceId{1}).bandwidth == 2e9);
}
