// What planning costs: actions that the simulator plays in a second of one core, and how the cost
// grows with their number. One function per measurement; medians of repeated runs.
//
//   bench_planner [simulate] [growth]
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "planner/schedules.h"
#include "planner/simulate.h"

using namespace troupe;

namespace {

using Clock = std::chrono::steady_clock;

double seconds_taken(const std::function<void()>& body) {
  const auto begin = Clock::now();
  body();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Of at least `times` runs, and as many as half a second holds.
double median_seconds(const std::function<void()>& body, std::size_t times = 3) {
  std::vector<double> taken;
  for (double all = 0; taken.size() < times || (all < 0.5 && taken.size() < 1000);) {
    taken.push_back(seconds_taken(body));
    all += taken.back();
  }
  std::nth_element(taken.begin(), taken.begin() + static_cast<std::ptrdiff_t>(taken.size() / 2),
                   taken.end());
  return taken[taken.size() / 2];
}

/// Compute actions and transfers.
std::size_t action_count(const Schedule& schedule) {
  std::size_t count = 0;
  for (const auto& lane : schedule.devices) count += lane.size();
  for (const LinkLane& link : schedule.links) count += link.actions.size();
  return count;
}

/// Unlike stages and links, so that the lanes' ends do not coincide.
StepCosts uneven_costs(std::uint32_t stages) {
  StepCosts costs;
  for (std::uint32_t s = 0; s < stages; ++s) {
    const double unlike = 1 + 0.1 * (s * 7 % 5);
    costs.stages.push_back({unlike, unlike, unlike, 0.1, 0.2});
    costs.overhead.push_back(0.01);
    costs.transfer_forward.push_back(0.05 * unlike);
    costs.transfer_backward.push_back(0.05 * unlike);
    costs.transfer_tied.push_back(0);
  }
  return costs;
}

struct Pipeline {
  ScheduleKind kind;
  std::uint32_t devices, loops, microbatches;
};

Schedule schedule_of(const Pipeline& pipeline) {
  return make_schedule(pipeline.kind,
                       looped_stages(pipeline.devices, pipeline.microbatches, pipeline.loops))
      .value();
}

/// Actions a second: the step's time alone, as the search asks for it, and with every span kept.
void simulate_actions() {
  fmt::print("simulated actions per second, one core\n");
  fmt::print("  {:<12} {:>7} {:>6} {:>12} {:>10} {:>14} {:>14}\n", "schedule", "devices", "stages",
             "microbatches", "actions", "step time only", "with timeline");
  for (const Pipeline& pipeline :
       {Pipeline{ScheduleKind::one_f_one_b, 8, 1, 64},
        Pipeline{ScheduleKind::one_f_one_b, 64, 1, 512}, Pipeline{ScheduleKind::gpipe, 16, 1, 256},
        Pipeline{ScheduleKind::interleaved, 8, 4, 64},
        Pipeline{ScheduleKind::zero_bubble_h1, 16, 1, 256}}) {
    const Schedule schedule = schedule_of(pipeline);
    const StepCosts costs = uneven_costs(schedule.stages.stage_count());
    ScheduleRun run(schedule);
    const auto actions = static_cast<double>(action_count(schedule));
    const double step = median_seconds([&] { simulated_seconds(run, costs); });
    const double timeline = median_seconds([&] { simulate(schedule, costs); });
    fmt::print("  {:<12} {:>7} {:>6} {:>12} {:>10.0f} {:>12.2f} M {:>12.2f} M\n",
               to_string(pipeline.kind), pipeline.devices, schedule.stages.stage_count(),
               pipeline.microbatches, actions, actions / step / 1e6, actions / timeline / 1e6);
  }
}

/// Nanoseconds an action as microbatches or devices double; linear growth is a ratio of 1.
void growth_of_cost() {
  fmt::print("cost of an action as the step grows (1f1b, timeline included)\n");
  fmt::print("  {:>7} {:>12} {:>10} {:>10} {:>15}\n", "devices", "microbatches", "actions",
             "ns/action", "against first");
  double first = 0;
  for (const auto& [devices, microbatches] : std::vector<std::pair<std::uint32_t, std::uint32_t>>{
           {8, 64}, {8, 256}, {8, 1024}, {8, 4096}, {32, 256}, {128, 256}, {512, 256}}) {
    const Schedule schedule = schedule_of({ScheduleKind::one_f_one_b, devices, 1, microbatches});
    const StepCosts costs = uneven_costs(devices);
    const auto actions = static_cast<double>(action_count(schedule));
    const double each = median_seconds([&] { simulate(schedule, costs); }) / actions * 1e9;
    if (first == 0) first = each;
    fmt::print("  {:>7} {:>12} {:>10.0f} {:>10.1f} {:>15.2f}\n", devices, microbatches, actions,
               each, each / first);
  }
}

struct Measurement {
  const char* name;
  void (*run)();
};
constexpr Measurement measurements[]{{"simulate", simulate_actions}, {"growth", growth_of_cost}};

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> asked(argv + 1, argv + argc);
  for (const std::string& name : asked)
    if (std::none_of(std::begin(measurements), std::end(measurements),
                     [&](const Measurement& one) { return name == one.name; })) {
      fmt::print(stderr, "error: no measurement \"{}\"; there are", name);
      for (const Measurement& one : measurements) fmt::print(stderr, " {}", one.name);
      fmt::print(stderr, "\n");
      return 2;
    }
  for (const Measurement& one : measurements)
    if (asked.empty() || std::find(asked.begin(), asked.end(), one.name) != asked.end()) one.run();
  return 0;
}
