#include "planner/plan_choice.h"

#include <algorithm>

#include "tests/support/catch.h"
#include "tests/unit/planner/plan_fixture.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

/// Work and activations grow with the microbatch; starting an op does not.
ModelProfile profile_at(const StepShape& shape) {
  ModelProfile profile = round_profile();
  for (LayerProfile* layer : {&profile.embedding, &profile.block, &profile.head}) {
    for (OpCount* count : {&layer->forward, &layer->backward_input, &layer->backward_weight}) {
      count->matmul_flops *= shape.microbatch_size;
      count->launches = 1;
    }
    layer->saved_bytes *= shape.microbatch_size;
    layer->output_bytes *= shape.microbatch_size;
  }
  return profile;
}

PlanOptions open_options(std::uint32_t batch, bool microbatches, bool schedule) {
  PlanOptions options = options_of(1);
  options.shape.batch_size = options.shape.microbatch_size = batch;
  options.choose_microbatches = microbatches;
  options.choose_schedule = schedule;
  return options;
}

Result<Plan> chosen(const ModelSpec& model,
                    const ClusterSpec& cluster,
                    const PlanOptions& options) {
  return choose_plan(model, cluster, profile_at(options.shape), options, profile_at);
}

}  // namespace

TEST_CASE("shapes are every count of microbatches that leaves none empty") {
  StepShape given;
  given.batch_size = 10;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> cuts;  // count, size
  for (const StepShape& shape : step_shapes(given))
    cuts.emplace_back(shape.microbatch_count, shape.microbatch_size);
  CHECK(cuts == std::vector<std::pair<std::uint32_t, std::uint32_t>>{
                    {1, 10}, {2, 5}, {3, 4}, {4, 3}, {5, 2}, {10, 1}});
  given.batch_size = 1'000'000;
  for (const StepShape& shape : step_shapes(given)) {
    CHECK(shape.microbatch_count <= most_microbatches);
    CHECK((shape.microbatch_count - 1) * shape.microbatch_size < 1'000'000);
  }
}

TEST_CASE("nothing left open is the plan as it stands, without a word of choices") {
  const ModelSpec model = small_model(6);
  const ClusterSpec cluster = cluster_of({1, 2});
  const PlanOptions options = open_options(8, false, false);
  const auto plan = chosen(model, cluster, options);
  REQUIRE(plan.ok());
  CHECK(*plan == make_plan(model, cluster, profile_at(options.shape), options).value());
  CHECK(choice_notes(*plan).empty());
}

TEST_CASE("one device that starts ops for nothing gets one microbatch under 1F1B") {
  const auto plan = chosen(small_model(6), cluster_of({1}), open_options(8, true, true));
  REQUIRE(plan.ok());
  CHECK(plan->shape.microbatch_count == 1);
  CHECK(plan->shape.microbatch_size == 8);
  CHECK(plan->schedule_kind == ScheduleKind::one_f_one_b);
}

TEST_CASE("starting ops costs: as many microbatches as the pipeline gains from, no more") {
  ClusterSpec cluster = cluster_of({1, 1});
  const ModelSpec model = small_model(6);
  const auto count = [&](Seconds launch) {
    for (DeviceSpec& device : cluster.devices) device.rates.launch = launch;
    const auto plan = chosen(model, cluster, open_options(16, true, false));
    REQUIRE(plan.ok());
    CHECK(plan->schedule_kind == ScheduleKind::one_f_one_b);
    return plan->shape.microbatch_count;
  };
  CHECK(count(0) > count(2e-3));
  CHECK(count(2e-3) > 1);
  CHECK(count(1) == 1);  // a second for each op: one device, one microbatch
}

TEST_CASE("memory takes choices away: where the batch does not fit in one, it is cut") {
  const ModelSpec model = small_model(6);
  ClusterSpec cluster = cluster_of({1});
  CHECK(chosen(model, cluster, open_options(64, true, true))->shape.microbatch_count == 1);
  cluster.devices[0].memory = 20_MiB;  // of 64 KiB a sequence and layer, 8 layers: 32 MiB
  const auto cut = chosen(model, cluster, open_options(64, true, true));
  REQUIRE(cut.ok());
  CHECK(cut->shape.microbatch_count > 1);
  CHECK(cut->memory[0].total() <= 20_MiB);
  cluster.devices[0].memory = 1_MiB;
  const auto none = chosen(model, cluster, open_options(64, true, true));
  REQUIRE_FALSE(none.ok());
  CHECK(none.error().code == ErrorCode::does_not_fit);
  CHECK(none.error().text.find("memory of dev0 at least") != std::string::npos);
}

TEST_CASE("pinned stages keep their devices while the rest is chosen") {
  const ModelSpec model = small_model(6);
  const ClusterSpec cluster = cluster_of({1, 3});
  PlanOptions options = open_options(8, true, true);
  options.pinned = stages_of({4, 4});
  const auto plan = chosen(model, cluster, options);
  REQUIRE(plan.ok());
  CHECK(plan->stages == options.pinned);
  for (const StepShape& shape : step_shapes(options.shape))
    for (const ScheduleKind kind :
         {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::zero_bubble_h1}) {
      PlanOptions one = options;
      one.shape = shape;
      one.schedule = kind;
      CHECK(plan->predicted_step <=
            make_plan(model, cluster, profile_at(shape), one)->predicted_step * (1 + 1e-9));
    }
}

TEST_CASE("what was chosen is what the settled options plan, and the notes say it") {
  const ModelSpec model = small_model(14);
  const ClusterSpec cluster = cluster_of({1, 1});
  const PlanOptions options = open_options(8, true, true);
  const auto plan = chosen(model, cluster, options);
  REQUIRE(plan.ok());
  const PlanOptions fixed = settled(options, *plan);
  CHECK_FALSE(fixed.choose_microbatches);
  CHECK_FALSE(fixed.choose_schedule);
  const auto again = make_plan(model, cluster, profile_at(fixed.shape), fixed);
  REQUIRE(again.ok());
  CHECK(again->stages == plan->stages);
  CHECK(again->schedule == plan->schedule);
  CHECK(again->predicted_step == plan->predicted_step);
  CHECK(again->memory == plan->memory);
  CHECK(again->timeline == plan->timeline);
  // All but the two notes on the choice, the runner-up of the stages too.
  CHECK(again->notes == decltype(plan->notes)(plan->notes.begin() + 2, plan->notes.end()));
  const auto notes = choice_notes(*plan);
  REQUIRE(notes.size() == 2);
  CHECK(notes[0].find("the quickest of ") != std::string::npos);
  CHECK(notes[1].rfind("next choice: ", 0) == 0);
}

TEST_CASE("measured times are carried over to the microbatches that are chosen") {
  const ModelSpec model = small_model(6);
  ClusterSpec cluster = cluster_of({1, 1});
  const PlanOptions options = open_options(8, true, false);
  // 8 ms a layer and action for the whole batch: 1 ms a sequence.
  for (DeviceSpec& device : cluster.devices)
    for (const LayerKind kind : {LayerKind::embedding, LayerKind::block, LayerKind::head})
      device.measured[kind] = {8e-3, 8e-3, 8e-3, 0, 0};
  const auto plan = chosen(model, cluster, options);
  REQUIRE(plan.ok());
  // 8 layers, 3 actions each, 4 on each device; links and overheads are some microseconds.
  const double count = plan->shape.microbatch_count;
  CHECK(count == 8);
  CHECK(plan->predicted_step == Approx((count + 1) * 4 * 3 * 8e-3 / count).epsilon(0.01));
}

TEST_CASE("microbatches are chosen by what layers take at their size, not by one of them") {
  const ModelSpec model = small_model(6);
  ClusterSpec cluster = cluster_of({1, 1});
  const PlanOptions options = open_options(8, true, false);
  // Starting a layer takes 2 ms: 8 sequences take 10 ms, one takes 3 ms and not an eighth of 10.
  const auto seconds = [](std::uint32_t size) { return 2e-3 + 1e-3 * size; };
  const auto measured = [&](std::uint32_t size) {
    return LayerSeconds{seconds(size), seconds(size), seconds(size), 0, 0};
  };
  std::map<LayerKind, SecondsBySize> by_size;
  for (const LayerKind kind : {LayerKind::embedding, LayerKind::block, LayerKind::head})
    for (const std::uint32_t size : {1, 3, 8}) by_size[kind][size] = measured(size);
  for (DeviceSpec& device : cluster.devices) set_measured(device, by_size, 8);
  const auto plan = chosen(model, cluster, options);
  REQUIRE(plan.ok());
  // The best of the plans of each size, each by the seconds of that size alone.
  Seconds least = 1;
  for (const StepShape& shape : step_shapes(options.shape)) {
    PlanOptions fixed = options;
    fixed.shape = shape;
    ClusterSpec known = cluster_of({1, 1});
    for (DeviceSpec& device : known.devices)
      for (const LayerKind kind : {LayerKind::embedding, LayerKind::block, LayerKind::head})
        device.measured[kind] = measured(shape.microbatch_size);
    const auto one = make_plan(model, known, profile_at(shape), fixed);
    REQUIRE(one.ok());
    least = std::min(least, one->predicted_step);
  }
  CHECK(plan->predicted_step == Approx(least));
  // Stages of 4 layers take 3 x 12 x 6 ms; of one microbatch 2 x 12 x 10, of eight 9 x 12 x 3 ms.
  CHECK(plan->shape.microbatch_count == 2);
  // Carried over from the whole batch alone, 8 of them look quickest.
  for (DeviceSpec& device : cluster.devices) device.measured_by_size.clear();
  CHECK(chosen(model, cluster, options)->shape.microbatch_count == 8);
}

TEST_CASE("many devices and a large batch: fewer choices, and the plan says that they are") {
  std::vector<double> speeds(48);
  for (std::size_t d = 0; d < speeds.size(); ++d) speeds[d] = 1.0 + static_cast<double>(d % 3);
  const auto plan = chosen(small_model(60), cluster_of(speeds), open_options(256, true, true));
  REQUIRE(plan.ok());
  CHECK(plan->shape.microbatch_count > 16);
  CHECK(choice_notes(*plan).at(0).find("the quickest found of ") != std::string::npos);
}

TEST_CASE(
    "what is computed again is chosen under every schedule, and by stage where stages differ") {
  const ModelSpec model = small_model(6);
  ClusterSpec cluster = cluster_of({1, 1});
  PlanOptions options = open_options(16, false, false);
  options.shape.microbatch_count = 8;
  options.shape.microbatch_size = 2;
  options.choose_recompute = true;
  for (const ScheduleKind kind : {ScheduleKind::one_f_one_b, ScheduleKind::gpipe,
                                  ScheduleKind::zero_bubble_h1, ScheduleKind::interleaved}) {
    INFO(to_string(kind));
    options.schedule = kind;
    options.chunks = kind == ScheduleKind::interleaved ? 2 : 1;
    for (DeviceSpec& device : cluster.devices) device.memory = 1_GiB;
    const auto roomy = chosen(model, cluster, options);
    REQUIRE(roomy.ok());
    CHECK(settled(options, *roomy).recompute == Recompute::none);
    CHECK_FALSE(settled(options, *roomy).choose_recompute);
    Bytes most = 0;
    for (const MemoryPlan& memory : roomy->memory) most = std::max(most, memory.total());
    for (DeviceSpec& device : cluster.devices) device.memory = most - 64_KiB;
    PlanOptions fixed = options;
    fixed.choose_recompute = false;
    const auto kept = make_plan(model, cluster, profile_at(options.shape), fixed);
    const auto tight = chosen(model, cluster, options);
    if (kind == ScheduleKind::zero_bubble_h1) {
      CHECK(tight.ok() == kept.ok());
      continue;
    }
    REQUIRE(tight.ok());
    if (kept) CHECK(tight->predicted_step <= kept->predicted_step * (1 + 1e-9));
    fixed.recompute = Recompute::full;
    const auto full = make_plan(model, cluster, profile_at(options.shape), fixed);
    REQUIRE(full.ok());
    CHECK(tight->predicted_step <= full->predicted_step * (1 + 1e-9));
    for (std::size_t d = 0; d < tight->memory.size(); ++d)
      CHECK(tight->memory[d].total() <= cluster.devices[d].memory);
  }
}

TEST_CASE("pinned stages compute again what each has to, and a refusal has tried everything") {
  const ModelSpec model = small_model(6);
  ClusterSpec cluster = cluster_of({1, 1});
  PlanOptions options = open_options(16, false, false);
  options.shape.microbatch_count = 8;
  options.shape.microbatch_size = 2;
  options.pinned = stages_of({4, 4});
  const auto roomy = chosen(model, cluster, options);
  REQUIRE(roomy.ok());
  // The first stage keeps two microbatches, the last one.
  REQUIRE(roomy->memory[0].total() > roomy->memory[1].total());
  for (DeviceSpec& device : cluster.devices) device.memory = roomy->memory[0].total() - 64_KiB;
  CHECK_FALSE(chosen(model, cluster, options).ok());
  options.choose_recompute = true;
  const auto plan = chosen(model, cluster, options);
  REQUIRE(plan.ok());
  CHECK_FALSE(plan->stages[0].recompute.none());
  CHECK(plan->stages[1].recompute.none());
  CHECK(choice_notes(*plan).front().find("computed again by stage: 1 full | none") !=
        std::string::npos);
  const PlanOptions fixed = settled(options, *plan);
  CHECK_FALSE(fixed.choose_recompute);
  CHECK(fixed.pinned == plan->stages);
  for (DeviceSpec& device : cluster.devices) device.memory = 1_MiB;
  const auto none = chosen(model, cluster, options);
  REQUIRE_FALSE(none.ok());
  options.choose_recompute = false;
  for (StagePlan& stage : options.pinned)
    stage.recompute = recompute_all(model, stage.layers, Recompute::full);
  CHECK(none.error().text == chosen(model, cluster, options).error().text);
}
