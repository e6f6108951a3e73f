#include "planner/graph_partition.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <random>

#include "planner/ideals.h"
#include "planner/piper_partition.h"
#include "tests/support/catch.h"

using namespace troupe;
using Catch::Matchers::Contains;

namespace {

GraphNode node(double time, double transfer = 0, double bytes = 1) {
  GraphNode result;
  result.time = time;
  result.host_time = 3 * time;
  result.transfer_time = transfer;
  result.bytes = bytes;
  return result;
}

PartitionGraph chain(std::size_t length) {
  PartitionGraph graph;
  for (std::uint32_t i = 0; i < length; ++i) {
    graph.nodes.push_back(node(1, 0.25));
    if (i > 0) graph.edges.push_back({i - 1, i});
  }
  return graph;
}

GraphPartitionOptions devices(std::uint32_t count, double memory = 1000) {
  GraphPartitionOptions options;
  options.devices = count;
  options.memory_bytes = memory;
  return options;
}

PartitionGraph random_graph(std::mt19937& random, bool training) {
  const auto any = [&](std::uint32_t most) { return static_cast<std::uint32_t>(random() % most); };
  PartitionGraph graph;
  const std::uint32_t forward = 2 + any(5);
  for (std::uint32_t i = 0; i < forward; ++i) {
    graph.nodes.push_back(node(any(8), any(4), 1 + any(4)));
    graph.nodes.back().host_only = any(12) == 0;
    if (any(4) == 0) graph.nodes.back().colocation = 100 + any(2);
    for (std::uint32_t j = 0; j < i; ++j)
      if (any(3) == 0) graph.edges.push_back({j, i});
  }
  if (!training) return graph;
  // Each forward node has a backward one, and some backward nodes stand alone.
  std::vector<std::uint32_t> backward_of(forward);
  const auto edges = graph.edges;
  for (std::uint32_t i = forward; i-- > 0;) {
    backward_of[i] = static_cast<std::uint32_t>(graph.nodes.size());
    if (!graph.nodes[i].colocation) graph.nodes[i].colocation = i;
    auto back = node(any(8), any(4), 1 + any(4));
    back.backward = true;
    back.colocation = graph.nodes[i].colocation;
    graph.edges.push_back({i, backward_of[i]});
    for (const auto& edge : edges)
      if (edge.source == i) graph.edges.push_back({backward_of[edge.destination], backward_of[i]});
    graph.nodes.push_back(back);
  }
  auto alone = node(any(8), any(4), 1);
  alone.backward = true;
  graph.nodes.push_back(alone);
  graph.edges.push_back(
      {backward_of[any(forward)], static_cast<std::uint32_t>(graph.nodes.size() - 1)});
  return graph;
}

/// The least load of all assignments, by trying each.
std::optional<double> brute_force(const PartitionGraph& graph,
                                  const GraphPartitionOptions& options,
                                  bool contiguous) {
  const auto count = graph.nodes.size();
  const std::uint32_t places = options.devices + options.hosts;
  std::map<std::uint32_t, std::uint32_t> first_of_class;
  std::vector<std::uint32_t> leader(count);
  std::map<std::uint32_t, bool> has_forward;
  for (std::uint32_t i = 0; i < count; ++i) {
    leader[i] = i;
    if (graph.nodes[i].colocation)
      leader[i] = first_of_class.try_emplace(*graph.nodes[i].colocation, i).first->second;
    has_forward[leader[i]] = has_forward[leader[i]] || !graph.nodes[i].backward;
  }
  std::optional<double> best;
  std::vector<std::uint32_t> place(count, 0);
  const std::function<void(std::size_t)> assign = [&](std::size_t at) {
    if (at < count) {
      if (leader[at] != at) {
        place[at] = place[leader[at]];
        assign(at + 1);
        return;
      }
      for (place[at] = 0; place[at] < places; ++place[at]) assign(at + 1);
      return;
    }
    const auto priced = price_partition(graph, place, options.devices);
    REQUIRE(priced.ok());
    for (const auto& part : priced->parts) {
      if (part.host) continue;
      if (part.bytes > options.memory_bytes) return;
      for (const auto i : part.nodes)
        if (graph.nodes[i].host_only) return;
    }
    if (contiguous) {
      // Parts that depend on each other in a circle have no order.
      std::vector<std::vector<bool>> before(places, std::vector<bool>(places, false));
      for (const auto& edge : graph.edges) {
        const auto& from = graph.nodes[edge.source];
        const auto& to = graph.nodes[edge.destination];
        const bool both = has_forward[leader[edge.source]] && has_forward[leader[edge.destination]];
        if (!to.backward) {
          before[place[edge.source]][place[edge.destination]] = true;
        } else if (from.backward && !both) {
          before[place[edge.destination]][place[edge.source]] = true;
        }
      }
      for (std::uint32_t k = 0; k < places; ++k)
        for (std::uint32_t i = 0; i < places; ++i)
          for (std::uint32_t j = 0; j < places; ++j)
            if (i != k && j != k && before[i][k] && before[k][j]) before[i][j] = true;
      for (std::uint32_t i = 0; i < places; ++i)
        for (std::uint32_t j = 0; j < i; ++j)
          if (before[i][j] && before[j][i]) return;
    }
    if (!best || priced->max_load < *best) best = priced->max_load;
  };
  assign(0);
  return best;
}

LayerVariant variant(double time, double parameters, double in_flight, double fixed) {
  LayerVariant result;
  result.name = "v";
  result.time = time;
  result.parameter_bytes = parameters;
  result.bytes_in_flight = in_flight;
  result.bytes_fixed = fixed;
  return result;
}

LayerGraph two_layers() {
  LayerGraph graph;
  graph.layers.resize(2);
  graph.edges.push_back({0, 1, 2});
  graph.layers[0].variants[1] = {variant(4, 1, 1, 1)};
  graph.layers[1].variants[1] = {variant(4, 1, 1, 1)};
  graph.layers[0].variants[1][0].output_bytes = {{1, 0}};
  graph.layers[1].variants[1][0].input_bytes = {{0, 0}};
  return graph;
}

StageOptions stage_options(std::uint32_t count, double memory, std::uint32_t microbatches) {
  StageOptions options;
  options.devices = count;
  options.memory_bytes = memory;
  options.bandwidth = 1;
  options.microbatches = microbatches;
  return options;
}

}  // namespace

TEST_CASE("ideals of a chain, of an antichain and of a diamond") {
  CHECK(IdealLattice::make({{}, {0}, {1}}, 100)->size() == 4);
  CHECK(IdealLattice::make({{}, {}, {}}, 100)->size() == 8);
  const auto diamond = IdealLattice::make({{}, {0}, {0}, {1, 2}}, 100);
  REQUIRE(diamond.ok());
  CHECK(diamond->size() == 6);
  CHECK(diamond->nodes(diamond->full()) == std::vector<std::uint32_t>{0, 1, 2, 3});
  CHECK(IdealLattice::make({{}, {}, {}}, 7).error().code == ErrorCode::out_of_memory);
  CHECK(IdealLattice::make({{1}, {0}}, 7).error().code == ErrorCode::invalid_input);

  // Each superset of the empty ideal is shown once.
  struct Count {
    std::vector<int> seen;
    bool add(std::uint32_t) { return true; }
    void remove(std::uint32_t) {}
    void visit(std::uint32_t ideal) { ++seen[ideal]; }
  } count{std::vector<int>(6, 0)};
  diamond->each_superset(0, count);
  CHECK(count.seen == std::vector<int>{0, 1, 1, 1, 1, 1});
}

TEST_CASE("a chain splits evenly, and transfers count at both ends") {
  const auto split = partition_contiguous(chain(6), devices(3));
  REQUIRE(split.ok());
  CHECK(split->proven);
  CHECK(split->parts.size() == 3);
  CHECK(split->max_load == 2.5);
  CHECK(partition_contiguous(chain(6), devices(1))->max_load == 6);
  // More devices than nodes.
  CHECK(partition_contiguous(chain(2), devices(50))->max_load == 1.25);
}

TEST_CASE("an output that several nodes of a part read is transferred once") {
  PartitionGraph graph;
  graph.nodes = {node(5, 2), node(2), node(3)};
  graph.edges = {{0, 1}, {0, 2}};
  const auto priced = price_partition(graph, {0, 1, 1});
  REQUIRE(priced.ok());
  CHECK(priced->parts[0].load() == 7);
  CHECK(priced->parts[1].load() == 7);
}

TEST_CASE("splits of random graphs are as good as the best of all assignments") {
  const auto seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 120; ++round) {
    const auto graph = random_graph(random, round % 2 == 1);
    GraphPartitionOptions options = devices(1 + static_cast<std::uint32_t>(random() % 3),
                                            static_cast<double>(4 + random() % 20));
    options.hosts = static_cast<std::uint32_t>(random() % 2);
    INFO("round " << round << ", " << graph.nodes.size() << " nodes, " << options.devices
                  << " devices, " << options.hosts << " hosts");
    for (const bool contiguous : {true, false}) {
      const auto split =
          contiguous ? partition_contiguous(graph, options) : partition_anyhow(graph, options);
      const auto best = brute_force(graph, options, contiguous);
      REQUIRE(split.ok() == best.has_value());
      if (!best) {
        CHECK(split.error().code == ErrorCode::does_not_fit);
        continue;
      }
      CHECK(split->proven);
      CHECK(split->max_load == Approx(*best).epsilon(1e-9));
      std::size_t placed = 0;
      for (const auto& part : split->parts) {
        placed += part.nodes.size();
        if (!part.host) CHECK(part.bytes <= options.memory_bytes);
      }
      CHECK(placed == graph.nodes.size());
    }
  }
}

TEST_CASE("graphs that cannot be split are refused by name") {
  const auto refused = [](const PartitionGraph& graph, const GraphPartitionOptions& options) {
    const auto split = partition_contiguous(graph, options);
    REQUIRE(!split.ok());
    return split.error();
  };
  CHECK_THAT(refused({}, devices(1)).text, Contains("no nodes"));
  CHECK_THAT(refused(chain(2), devices(0)).text, Contains("no device"));
  CHECK_THAT(refused(chain(2), devices(1, 0)).text, Contains("0 bytes of memory"));
  auto graph = chain(3);
  graph.edges.push_back({2, 7});
  CHECK_THAT(refused(graph, devices(2)).text, Contains("2 -> 7 names node 7"));
  graph = chain(3);
  graph.edges.push_back({2, 1});
  CHECK_THAT(refused(graph, devices(2)).text, Contains("cycle"));
  CHECK_THAT(refused(graph, devices(2)).text, !Contains("node 0"));
  graph = chain(3);
  graph.edges.push_back({1, 1});
  CHECK_THAT(refused(graph, devices(2)).text, Contains("node 1 has an edge to itself"));
  graph = chain(3);
  graph.nodes[1].time = -1;
  graph.nodes[1].name = "attention";
  CHECK_THAT(refused(graph, devices(2)).text, Contains("node 1 (attention): time -1"));
  graph.nodes[1].time = std::numeric_limits<double>::quiet_NaN();
  CHECK(refused(graph, devices(2)).code == ErrorCode::invalid_input);
  graph = chain(3);
  graph.nodes[0].backward = true;
  CHECK_THAT(refused(graph, devices(2)).text, Contains("backward node 0 to the forward node 1"));
  graph = chain(3);
  graph.nodes[2].bytes = 5;
  CHECK(refused(graph, devices(2, 4)).code == ErrorCode::does_not_fit);
  CHECK_THAT(refused(graph, devices(2, 4)).text, Contains("node 2 needs 5 bytes"));
  CHECK_THAT(refused(chain(9), devices(2, 4)).text, Contains("needs 9 bytes; 2 devices have 8"));
}

TEST_CASE("a graph with too many ideals is split along one order, and says so") {
  PartitionGraph graph;
  for (int i = 0; i < 12; ++i) graph.nodes.push_back(node(1));
  auto options = devices(3);
  options.ideal_limit = 100;
  const auto split = partition_contiguous(graph, options);
  REQUIRE(split.ok());
  CHECK(!split->proven);
  CHECK(split->max_load == 4);
}

TEST_CASE("stages: replicas against a cut") {
  // One device: 8. Two stages: 4 + 2 * 2 for the edge = 8. Two replicas: (4 + 4) / 2 and
  // 4 * (1 / 2) * 2 / 4 of gradients = 5.
  const auto plan = plan_stages(two_layers(), stage_options(2, 100, 4));
  REQUIRE(plan.ok());
  REQUIRE(plan->stages.size() == 1);
  CHECK(plan->stages[0].data_parallel == 2);
  CHECK(plan->time_per_microbatch == 5);
  CHECK(plan_stages(two_layers(), stage_options(1, 100, 4))->time_per_microbatch == 8);
  // One layer a device: the first holds two microbatches, 3 bytes.
  CHECK(plan_stages(two_layers(), stage_options(2, 3, 4))->time_per_microbatch == 8);
  CHECK(plan_stages(two_layers(), stage_options(2, 2.5, 4)).error().code ==
        ErrorCode::does_not_fit);
}

TEST_CASE("stages: a slower variant where memory is short") {
  auto graph = two_layers();
  for (auto& layer : graph.layers) {
    auto lean = layer.variants[1][0];
    lean.time = 5;
    lean.bytes_in_flight = 0;
    layer.variants[1].push_back(lean);
  }
  const auto plan = plan_stages(graph, stage_options(1, 3, 1));
  REQUIRE(plan.ok());
  CHECK(plan->time_per_microbatch == 9);
  CHECK(plan_stages(graph, stage_options(1, 2, 1))->time_per_microbatch == 10);
}

TEST_CASE("bad layer graphs are refused by name") {
  const auto text = [](const LayerGraph& graph, const StageOptions& options) {
    const auto plan = plan_stages(graph, options);
    REQUIRE(!plan.ok());
    return plan.error().text;
  };
  const auto good = stage_options(2, 100, 4);
  CHECK_THAT(text({}, good), Contains("no layers"));
  CHECK_THAT(text(two_layers(), stage_options(0, 1, 1)), Contains("no device"));
  CHECK_THAT(text(two_layers(), stage_options(1, 1, 0)), Contains("no microbatches"));
  auto graph = two_layers();
  graph.edges.push_back({0, 9, 1});
  CHECK_THAT(text(graph, good), Contains("names layer 9"));
  graph = two_layers();
  graph.edges.push_back({0, 1, 1});
  CHECK_THAT(text(graph, good), Contains("repeats"));
  graph = two_layers();
  graph.edges.push_back({1, 0, 1});
  graph.layers[0].variants[1][0].input_bytes = {{1, 0}};
  graph.layers[1].variants[1][0].output_bytes = {{0, 0}};
  CHECK_THAT(text(graph, good), Contains("cycle"));
  graph = two_layers();
  graph.layers[1].variants[1][0].input_bytes.clear();
  CHECK_THAT(text(graph, good), Contains("bytes for each edge"));
  graph = two_layers();
  graph.layers[1].variants[1][0].time = -1;
  CHECK_THAT(text(graph, good), Contains("layer 1, tensor-parallel degree 1, variant v"));
  graph = two_layers();
  graph.layers[1].variants.clear();
  CHECK_THAT(text(graph, good), Contains("layer 1 has no variant"));
}
