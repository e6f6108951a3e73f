// Planning at scale: how long it takes, how far the plan is from that of a search a hundred times
// longer, how its time grows with the devices.
//
//   bench_plan_scale [quality] [growth]
#include <fmt/format.h>

#include <string>

#include "tests/bench/plan_scale/plan_scale.h"

int main(int argc, char** argv) {
  bool quality = argc == 1;
  bool growth = argc == 1;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    quality |= name == "quality";
    growth |= name == "growth";
    if (name == "quality" || name == "growth") continue;
    fmt::print(stderr, "error: no measurement \"{}\"; there are quality growth\n", name);
    return 2;
  }
  if (growth) troupe::bench::growth_of_planning();
  if (quality) troupe::bench::planning_at_scale();
  return 0;
}
