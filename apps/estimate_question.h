/// What `troupe estimate` is asked: its arguments, and the checked question that they make.
#pragma once

#include <string>
#include <vector>

#include "planner/layout_search.h"

namespace troupe {

struct EstimateArguments {
  std::string model;
  std::vector<std::string> devices;
  std::uint64_t batch = 0;
  std::uint64_t sequence = 0;
  std::string network = "roce_400 x 8";
  double headroom = 0.1;
  double efficiency = 0.75;
  LayoutChoices choices;
  std::vector<std::uint64_t> zero;
  std::vector<std::string> recompute;
  std::uint64_t keep = 5;
  bool explain = false;
  bool json = false;
};

/// What is priced.
struct Question {
  std::string model;  ///< the file
  ArchitectureRun run;
  std::vector<DeviceGroup> groups;
  std::uint64_t batch = 0;
  BytesPerSecond network = 0;  ///< of one node, one direction
  LayoutChoices choices;
  Framework framework;
  std::size_t keep = 5;
  double flops = 0;  ///< of one step
};

/// Errors name the argument, what is wrong and the nearest right thing.
Result<Question> question_of(const EstimateArguments& arguments);

/// Parameters, tokens of a step, and a line for each kind of device.
std::string heading(const Question& question);

}  // namespace troupe
