/// Stages of layer graphs against all plans there are, on small instances.
#include "planner/piper_partition.h"

#include <algorithm>
#include <limits>
#include <random>

#include "tests/support/catch.h"

using namespace troupe;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

/// One plan's stages while they are chosen: layers by stage, degrees, a variant for each layer.
struct Choice {
  std::vector<std::uint32_t> stage_of, variant_of;
  std::vector<std::uint32_t> data, tensor;
};

/// The objective as the header states it; infinity for what does not fit.
double price(const LayerGraph& graph, const StageOptions& options, const Choice& choice) {
  double slowest = 0;
  std::uint32_t behind = 0;  // replicas of this stage and those after it
  for (std::size_t s = choice.data.size(); s-- > 0;) {
    behind += choice.data[s];
    const double d = choice.data[s];
    const double in_flight = (behind + choice.data[s] - 1) / choice.data[s];
    double time = 0, bytes = 0, border = 0, gradients = 0;
    for (std::uint32_t i = 0; i < graph.layers.size(); ++i) {
      if (choice.stage_of[i] != s) continue;
      const LayerVariant& own = graph.layers[i].variants.at(choice.tensor[s])[choice.variant_of[i]];
      time += own.time / d;
      bytes += own.bytes_fixed + in_flight * own.bytes_in_flight;
      gradients += 4 * (d - 1) / d * own.parameter_bytes / options.microbatches;
      for (const LayerEdge& edge : graph.edges) {
        if (edge.source == i && choice.stage_of[edge.destination] != s)
          border += 2 * (edge.bytes + own.output_bytes.at(edge.destination)) / d;
        if (edge.destination == i && choice.stage_of[edge.source] != s)
          border += 2 * (edge.bytes + own.input_bytes.at(edge.source)) / d;
      }
    }
    if (bytes > options.memory_bytes) return infinity;
    slowest = std::max(slowest, time + (border + gradients) / options.bandwidth);
  }
  return slowest;
}

/// All plans, by depth-first choice: stages of the layers, degrees of the stages, variants.
class AllPlans {
 public:
  AllPlans(const LayerGraph& graph, const StageOptions& options)
      : graph_(graph), options_(options) {}

  double best() {
    choice_.stage_of.assign(graph_.layers.size(), 0);
    choice_.variant_of.assign(graph_.layers.size(), 0);
    for (std::uint32_t stages = 1; stages <= graph_.layers.size(); ++stages) assign(0, stages);
    return best_;
  }

 private:
  void assign(std::size_t layer, std::uint32_t stages) {
    if (layer < graph_.layers.size()) {
      for (std::uint32_t s = 0; s < stages; ++s) {
        choice_.stage_of[layer] = s;
        assign(layer + 1, stages);
      }
      return;
    }
    for (const LayerEdge& edge : graph_.edges)
      if (choice_.stage_of[edge.source] > choice_.stage_of[edge.destination]) return;
    for (std::uint32_t s = 0; s < stages; ++s)
      if (std::count(choice_.stage_of.begin(), choice_.stage_of.end(), s) == 0) return;
    degrees(stages, options_.devices, options_.microbatches);
  }

  void degrees(std::uint32_t stages, std::uint32_t devices, std::uint32_t replicas) {
    if (choice_.data.size() == stages) return variants(0);
    for (std::uint32_t d = 1; d <= replicas; ++d)
      for (std::uint32_t t = 1; d * t <= devices; ++t) {
        if (options_.microbatches % d != 0) continue;
        choice_.data.push_back(d);
        choice_.tensor.push_back(t);
        degrees(stages, devices - d * t, replicas - d);
        choice_.data.pop_back();
        choice_.tensor.pop_back();
      }
  }

  void variants(std::size_t layer) {
    if (layer == graph_.layers.size()) {
      best_ = std::min(best_, price(graph_, options_, choice_));
      return;
    }
    const auto found = graph_.layers[layer].variants.find(choice_.tensor[choice_.stage_of[layer]]);
    if (found == graph_.layers[layer].variants.end()) return;
    for (std::uint32_t v = 0; v < found->second.size(); ++v) {
      choice_.variant_of[layer] = v;
      variants(layer + 1);
    }
  }

  const LayerGraph& graph_;
  const StageOptions& options_;
  Choice choice_;
  double best_ = infinity;
};

struct Instance {
  LayerGraph graph;
  StageOptions options;
};

Instance random_instance(std::mt19937& random, std::uint32_t most_variants) {
  const auto any = [&](std::uint32_t most) { return static_cast<std::uint32_t>(random() % most); };
  Instance out;
  const std::uint32_t layers = 1 + any(4);
  out.graph.layers.resize(layers);
  for (std::uint32_t i = 1; i < layers; ++i)
    for (std::uint32_t j = 0; j < i; ++j)
      if (any(2) == 0) out.graph.edges.push_back({j, i, static_cast<double>(any(4))});
  for (std::uint32_t i = 0; i < layers; ++i)
    for (const std::uint32_t tensor : {1U, 2U}) {
      if (tensor == 2 && any(3) == 0) continue;
      const std::uint32_t count = 1 + any(most_variants);
      for (std::uint32_t v = 0; v < count; ++v) {
        LayerVariant one;
        one.time = 2 + any(12);
        one.parameter_bytes = any(4);
        one.bytes_in_flight = any(4);
        one.bytes_fixed = any(4);
        for (const LayerEdge& edge : out.graph.edges) {
          if (edge.destination == i) one.input_bytes[edge.source] = any(2);
          if (edge.source == i) one.output_bytes[edge.destination] = any(2);
        }
        out.graph.layers[i].variants[tensor].push_back(one);
      }
    }
  out.options.devices = 1 + any(4);
  out.options.memory_bytes = 4 + any(12);
  out.options.bandwidth = 1 + any(4);
  out.options.microbatches = 1U << any(3);
  return out;
}

}  // namespace

TEST_CASE("stages of random layer graphs: the objective is the optimum of all plans") {
  std::size_t feasible = 0, refused = 0;
  for (std::uint32_t seed = 0; seed < 400; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    const auto [graph, options] = random_instance(random, 1);
    const double best = AllPlans(graph, options).best();
    const auto plan = plan_stages(graph, options);
    REQUIRE(plan.ok() == (best < infinity));
    ++(plan.ok() ? feasible : refused);
    if (!plan.ok()) {
      CHECK(plan.error().code == ErrorCode::does_not_fit);
      continue;
    }
    CHECK(plan->time_per_microbatch == Approx(best));
    CHECK(price_stages(graph, options, plan->stages).value() == Approx(best));
  }
  CHECK(feasible > 100);
  CHECK(refused > 20);
}

TEST_CASE("stages of random layer graphs with several variants: as feasible, and close") {
  // Choosing variants for a memory limit is the one step that is not exact.
  std::size_t feasible = 0, equal = 0;
  for (std::uint32_t seed = 0; seed < 400; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    const auto [graph, options] = random_instance(random, 3);
    const double best = AllPlans(graph, options).best();
    const auto plan = plan_stages(graph, options);
    REQUIRE(plan.ok() == (best < infinity));
    if (!plan.ok()) continue;
    ++feasible;
    CHECK(plan->time_per_microbatch >= Approx(best));
    CHECK(price_stages(graph, options, plan->stages).value() == Approx(plan->time_per_microbatch));
    equal += plan->time_per_microbatch == Approx(best) ? 1 : 0;
  }
  INFO(equal << " of " << feasible << " are optimal");
  CHECK(equal * 20 >= feasible * 19);
}
