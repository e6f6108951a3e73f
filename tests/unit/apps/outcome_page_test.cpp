/// The page of a strategy: what it plays takes as long as was predicted.
#include "apps/outcome_page.h"

#include <algorithm>
#include <random>

#include "planner/automatic.h"
#include "tests/support/catch.h"
#include "tests/support/program_call.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/planner/plan_fixture.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

struct Problem {
  ModelSpec model;
  ClusterSpec cluster;
  ModelProfile profile;
  PlanOptions options;
  PlanRequest request() const { return {model, cluster, profile, options}; }
};

/// Small devices beside a host: replicas, recomputation and tiers all occur.
Problem random_problem(std::uint32_t seed) {
  std::mt19937 random(seed);
  const auto pick = [&](int from, int to) {
    return from + static_cast<int>(random() % static_cast<unsigned>(to - from + 1));
  };
  std::vector<double> speeds(static_cast<std::size_t>(pick(1, 6)));
  for (double& speed : speeds) speed = pick(1, 3);
  Problem made{small_model(static_cast<std::uint32_t>(pick(2, 8)), pick(0, 1) > 0),
               cluster_of(speeds), round_profile(pick(2, 20) / 10.0),
               options_of(static_cast<std::uint32_t>(pick(2, 9)))};
  made.cluster.nodes[0].host = {Bytes{1024} * static_cast<Bytes>(pick(2000, 20000)), 4e9};
  for (DeviceSpec& device : made.cluster.devices) {
    device.memory = Bytes{1024} * static_cast<Bytes>(pick(1500, 6000));
    device.host_link = {1e-6, 1e9};
  }
  return made;
}

}  // namespace

TEST_CASE("what the page plays takes as long as was predicted, on the devices that were chosen") {
  int plans = 0, replicas = 0, moved = 0;
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    INFO("seed " << seed);
    const Problem given = random_problem(seed);
    const PlanRequest request = given.request();
    for (const StrategyOutcome& outcome :
         {run_strategy(Strategy::automatic, request), trained_outcome(request)}) {
      if (outcome.refused) continue;
      const std::vector<PagePlan> pages = outcome_pages(outcome, request);
      if (outcome.plan) {
        REQUIRE(pages.size() == 1);
        CHECK(pages[0].step.seconds == Approx(outcome.plan->predicted_step).epsilon(1e-9));
        ++plans;
      }
      if (!outcome.joint) continue;
      const JointPlan& joint = *outcome.joint;
      REQUIRE(pages.size() == joint.replicas.size());
      Seconds slowest = 0;
      for (std::size_t r = 0; r < pages.size(); ++r) {
        const ChosenPipeline& pipeline = joint.replicas[r].pipeline;
        CHECK(pages[r].step.seconds == Approx(joint.replicas[r].step).epsilon(1e-9));
        slowest = std::max(slowest, pages[r].step.seconds);
        REQUIRE(pages[r].plan.stages.size() == pipeline.stages.size());
        for (std::size_t s = 0; s < pipeline.stages.size(); ++s) {
          const std::size_t here = pages[r].plan.stages[s].device.index();
          CHECK(pages[r].plan.cluster.devices.at(here).name ==
                given.cluster.devices.at(pipeline.stages[s].device.index()).name);
          CHECK(pages[r].plan.memory.at(here).total() == pipeline.points[s].memory.total());
        }
        CHECK(shortfall_text(pages[r].plan).empty());
      }
      CHECK(slowest + joint.exchange == Approx(outcome.step).epsilon(1e-9));
      replicas += joint.replicas.size() > 1 ? 1 : 0;
      moved += joint.replicas.size() == 1 ? 1 : 0;
    }
  }
  CHECK(plans > 20);
  CHECK(replicas > 5);
  CHECK(moved > 5);
}

TEST_CASE("a page has what a strategy came to, and why nothing trains beside it") {
  Problem given{small_model(6), cluster_of({1.0, 2.0}), round_profile(), options_of(4)};
  for (DeviceSpec& device : given.cluster.devices) {
    device.memory = 1'800_KiB;
    device.host_link = {1e-6, 1e9};
  }
  given.cluster.nodes[0].host = {16_MiB, 4e9};
  const PlanRequest request = given.request();
  const StrategyOutcome best = run_strategy(Strategy::automatic, request);
  REQUIRE(best.joint);
  const StrategyOutcome none = trained_outcome(request);
  REQUIRE(none.refused);
  const std::string page = outcome_page("a run", "a note <of mine>", best, none, request);
  const auto holds = [&](const std::string& part) {
    INFO(part);
    CHECK(page.find(part) != std::string::npos);
  };
  holds("strategy auto: predicted step " + format_seconds(best.step));
  holds("priced, does not train yet: ");
  holds("a note &lt;of mine&gt;");
  holds("Memory by device and tier");
  holds("in host memory");
  holds("aria-label=\"Timeline\"");
  holds("the plan that trains");
  holds("does not fit");
}

TEST_CASE("plan --strategy NAME --html: every strategy that has a plan has a page") {
  const TemporaryFolder folder;
  const std::string file = (folder / "page.html").string();
  for (const char* strategy : {"auto", "even", "edgepipe", "hetpipe", "memory-balanced"}) {
    INFO(strategy);
    std::filesystem::remove(file);
    const auto made = call({"plan", "conf/demo.toml", "--set", "emulation.memory_scale=0.01",
                            "--strategy", strategy, "--html", file});
    INFO(made.err);
    REQUIRE(made.code == 0);
    const std::string page = content_of(file);
    for (const std::string& part :
         {std::string("strategy ") + strategy + ": predicted step ",
          std::string("the plan that trains"), std::string("aria-label=\"Timeline\"")}) {
      INFO(part);
      CHECK(page.find(part) != std::string::npos);
    }
  }
  // What is refused leaves no page.
  std::filesystem::remove(file);
  const auto zebra = call({"plan", "conf/demo.toml", "--strategy", "zebra", "--html", file});
  CHECK(zebra.code == 2);
  CHECK_FALSE(std::filesystem::exists(file));
  const auto compared = call({"plan", "conf/demo.toml", "--compare", "--html", file});
  CHECK(compared.code == 2);
  CHECK(compared.err.find("leave out --compare") != std::string::npos);
}
