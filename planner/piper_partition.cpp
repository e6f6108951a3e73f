#include "planner/piper_partition.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <set>

#include "planner/ideals.h"
#include "planner/printable.h"

namespace troupe {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

Error invalid(std::string text) {
  return Error{ErrorCode::invalid_input, std::move(text)};
}

std::string named(const LayerGraph& graph, std::size_t layer) {
  const auto& name = graph.layers[layer].name;
  return name.empty() ? fmt::format("layer {}", layer)
                      : fmt::format("layer {} ({})", layer, printable(name));
}

bool bad(double value) {
  return !(value >= 0) || !std::isfinite(value);
}

struct Adjacency {
  std::vector<std::vector<LayerEdge>> in, out;
};

/// Each edge of `layer` has its bytes in `bytes`, and nothing else has.
bool matches(const std::map<std::uint32_t, double>& bytes, const std::set<std::uint32_t>& ends) {
  return bytes.size() == ends.size() &&
         std::all_of(ends.begin(), ends.end(), [&](auto end) { return bytes.contains(end); });
}

Result<Adjacency> check(const LayerGraph& graph, const StageOptions& options) {
  if (graph.layers.empty()) return invalid("the graph has no layers");
  if (options.devices == 0) return invalid("there is no device to place the graph on");
  if (options.microbatches == 0) return invalid("a batch has no microbatches");
  if (!(options.memory_bytes > 0))
    return invalid(fmt::format("a device has {} bytes of memory", options.memory_bytes));
  if (!(options.bandwidth > 0) || !std::isfinite(options.bandwidth))
    return invalid(fmt::format("the bandwidth is {} bytes/s", options.bandwidth));
  Adjacency adjacency{std::vector<std::vector<LayerEdge>>(graph.layers.size()),
                      std::vector<std::vector<LayerEdge>>(graph.layers.size())};
  std::vector<std::set<std::uint32_t>> sources(graph.layers.size()), readers(graph.layers.size());
  for (const auto& edge : graph.edges) {
    for (const auto end : {edge.source, edge.destination}) {
      if (end >= graph.layers.size()) {
        return invalid(fmt::format("the edge {} -> {} names layer {}, but the graph has {} layers",
                                   edge.source, edge.destination, end, graph.layers.size()));
      }
    }
    if (edge.source == edge.destination)
      return invalid(named(graph, edge.source) + " has an edge to itself");
    if (bad(edge.bytes)) {
      return invalid(
          fmt::format("the edge {} -> {} has {} bytes", edge.source, edge.destination, edge.bytes));
    }
    if (!readers[edge.source].insert(edge.destination).second)
      return invalid(fmt::format("the edge {} -> {} repeats", edge.source, edge.destination));
    sources[edge.destination].insert(edge.source);
    adjacency.in[edge.destination].push_back(edge);
    adjacency.out[edge.source].push_back(edge);
  }
  for (std::size_t i = 0; i < graph.layers.size(); ++i) {
    bool any = false;
    for (const auto& [degree, variants] : graph.layers[i].variants) {
      if (degree == 0) return invalid(named(graph, i) + " has a tensor-parallel degree of 0");
      for (const auto& variant : variants) {
        any = true;
        const std::string where = fmt::format("{}, tensor-parallel degree {}, variant {}",
                                              named(graph, i), degree, printable(variant.name));
        bool wrong = bad(variant.time) || bad(variant.parameter_bytes) ||
                     bad(variant.bytes_in_flight) || bad(variant.bytes_fixed);
        for (const auto& [end, bytes] : variant.input_bytes) wrong = wrong || bad(bytes);
        for (const auto& [end, bytes] : variant.output_bytes) wrong = wrong || bad(bytes);
        if (wrong) return invalid(where + ": its numbers must be finite and not negative");
        if (!matches(variant.input_bytes, sources[i]) || !matches(variant.output_bytes, readers[i]))
          return invalid(where + ": it must give bytes for each edge of the layer, and no other");
      }
    }
    if (!any) return invalid(named(graph, i) + " has no variant to run");
  }
  return adjacency;
}

/// What one variant adds to its stage.
struct Choice {
  double time = 0, in_flight = 0, fixed = 0;
};

class StageSearch {
 public:
  StageSearch(const LayerGraph& graph, const StageOptions& options, const Adjacency& adjacency)
      : graph_(graph),
        options_(options),
        adjacency_(adjacency),
        most_(std::min(options.devices, options.microbatches)),
        inside_(graph.layers.size(), false) {
    for (const auto& layer : graph.layers)
      for (const auto& [degree, variants] : layer.variants)
        if (degree <= options.devices && !variants.empty()) degrees_.insert(degree);
  }

  Result<ParallelPlan> run() {
    // An ideal holds with every layer all that follow it: its stages are the last of the pipeline.
    std::vector<std::vector<std::uint32_t>> followers(graph_.layers.size());
    for (const auto& edge : graph_.edges) followers[edge.source].push_back(edge.destination);
    auto made = IdealLattice::make(followers, options_.ideal_limit);
    if (!made) return made.error();
    const IdealLattice& lattice = *made;
    row_ = std::size_t{options_.devices} + 1;
    column_ = std::size_t{most_} + 1;
    const double size = static_cast<double>(lattice.size()) * static_cast<double>(row_) *
                        static_cast<double>(column_) * static_cast<double>(sizeof(Cell));
    if (size > static_cast<double>(options_.table_limit)) {
      return Error{
          ErrorCode::out_of_memory,
          fmt::format("{} ideals, {} devices and up to {} replicas need a table of {:.3g} "
                      "bytes; the limit is {}",
                      lattice.size(), options_.devices, most_, size, options_.table_limit)};
    }
    cells_.assign(lattice.size() * row_ * column_, Cell{});
    for (std::size_t i = 0; i < row_ * column_; ++i) cells_[i].time = 0;
    // Every pair of ideals shows up from the smaller one; all pairs that end at an ideal come
    // before those that begin there.
    lattice_ = &lattice;
    for (std::size_t i = 0; i < lattice.size(); ++i) {
      base_ = static_cast<IdealLattice::Ideal>(i);
      if (i > 0) settle(base_);
      if (i + 1 < lattice.size() && at(base_, options_.devices, most_).time < infinity)
        lattice.each_superset(base_, *this);
    }
    return trace();
  }

  bool add(std::uint32_t layer) {
    part_.push_back(layer);
    inside_[layer] = true;
    return true;
  }
  void remove(std::uint32_t layer) {
    part_.pop_back();
    inside_[layer] = false;
  }
  void visit(IdealLattice::Ideal ideal) {
    for (const auto tensor : degrees_) {
      if (!runs(tensor)) continue;
      for (std::uint32_t data = 1; data <= most_ && data * tensor <= options_.devices; ++data) {
        if (options_.microbatches % data == 0) extend(ideal, data, tensor);
      }
    }
  }

 private:
  struct Cell {
    double time = infinity;
    IdealLattice::Ideal from = 0;
    std::uint32_t data = 0;  ///< degree; the tensor-parallel one follows from the devices
    std::uint32_t tensor = 0;
  };

  /// For at most that many devices and replicas.
  Cell& at(IdealLattice::Ideal ideal, std::size_t devices, std::size_t replicas) {
    return cells_[(ideal * row_ + devices) * column_ + replicas];
  }

  bool runs(std::uint32_t tensor) const {
    return std::all_of(part_.begin(), part_.end(), [&](auto layer) {
      const auto found = graph_.layers[layer].variants.find(tensor);
      return found != graph_.layers[layer].variants.end() && !found->second.empty();
    });
  }

  /// Fills choices_ for the part, by layer.
  void list_choices(std::uint32_t data, std::uint32_t tensor) {
    const double replicas = data;
    choices_.resize(part_.size());
    for (std::size_t i = 0; i < part_.size(); ++i) {
      const auto& variants = graph_.layers[part_[i]].variants.at(tensor);
      choices_[i].clear();
      for (const auto& variant : variants) {
        double edges = 0;
        for (const auto& edge : adjacency_.in[part_[i]])
          if (!inside_[edge.source])
            edges += 2 * (edge.bytes + variant.input_bytes.at(edge.source));
        for (const auto& edge : adjacency_.out[part_[i]])
          if (!inside_[edge.destination])
            edges += 2 * (edge.bytes + variant.output_bytes.at(edge.destination));
        const double gradients =
            4 * (replicas - 1) * variant.parameter_bytes / replicas / options_.microbatches;
        choices_[i].push_back(
            {variant.time / replicas + (edges / replicas + gradients) / options_.bandwidth,
             variant.bytes_in_flight, variant.bytes_fixed});
      }
    }
  }

  /// The time with the variants chosen for `in_flight` microbatches; infinity if none fit. Fills
  /// picked_.
  double choose(double in_flight) {
    const auto bytes = [&](const Choice& choice) {
      return choice.in_flight * in_flight + choice.fixed;
    };
    picked_.assign(choices_.size(), 0);
    double needed = 0, least = 0;
    for (std::size_t i = 0; i < choices_.size(); ++i) {
      double smallest = infinity;
      for (std::size_t v = 0; v < choices_[i].size(); ++v) {
        if (choices_[i][v].time < choices_[i][picked_[i]].time)
          picked_[i] = static_cast<std::uint32_t>(v);
        smallest = std::min(smallest, bytes(choices_[i][v]));
      }
      needed += bytes(choices_[i][picked_[i]]);
      least += smallest;
    }
    if (least > options_.memory_bytes) return infinity;
    while (needed > options_.memory_bytes) {
      // The replacement that costs least time for each byte that it saves.
      double price = infinity, saved = 0;
      std::size_t layer = 0, variant = 0;
      for (std::size_t i = 0; i < choices_.size(); ++i) {
        const auto& now = choices_[i][picked_[i]];
        for (std::size_t v = 0; v < choices_[i].size(); ++v) {
          const double gain = bytes(now) - bytes(choices_[i][v]);
          if (gain <= 0) continue;
          const double cost = (choices_[i][v].time - now.time) / gain;
          if (cost < price) {
            price = cost;
            saved = gain;
            layer = i;
            variant = v;
          }
        }
      }
      if (price == infinity) return infinity;  // within rounding of the limit
      picked_[layer] = static_cast<std::uint32_t>(variant);
      needed -= saved;
    }
    double time = 0;
    for (std::size_t i = 0; i < choices_.size(); ++i) time += choices_[i][picked_[i]].time;
    return time;
  }

  void extend(IdealLattice::Ideal ideal, std::uint32_t data, std::uint32_t tensor) {
    list_choices(data, tensor);
    const std::uint32_t used = data * tensor;
    // By microbatches in flight: more of them never make a stage faster.
    const std::uint32_t deepest = (most_ + data - 1) / data;
    for (std::uint32_t in_flight = 1; in_flight <= deepest; ++in_flight) {
      const double time = choose(in_flight);
      if (time == infinity) break;
      const std::uint32_t first = std::max(data, (in_flight - 1) * data + 1);
      const std::uint32_t last = std::min(most_, in_flight * data);
      for (std::uint32_t devices = used; devices <= options_.devices; ++devices) {
        for (std::uint32_t replicas = first; replicas <= last; ++replicas) {
          const double worst = std::max(at(base_, devices - used, replicas - data).time, time);
          Cell& cell = at(ideal, devices, replicas);
          if (worst < cell.time) cell = {worst, base_, data, tensor};
        }
      }
    }
  }

  /// Lets every cell have what fewer devices or replicas reach.
  void settle(IdealLattice::Ideal ideal) {
    for (std::size_t devices = 0; devices < row_; ++devices) {
      for (std::size_t replicas = 0; replicas < column_; ++replicas) {
        Cell& cell = at(ideal, devices, replicas);
        if (devices > 0 && at(ideal, devices - 1, replicas).time <= cell.time)
          cell = at(ideal, devices - 1, replicas);
        if (replicas > 0 && at(ideal, devices, replicas - 1).time <= cell.time)
          cell = at(ideal, devices, replicas - 1);
      }
    }
  }

  Result<ParallelPlan> trace() {
    ParallelPlan plan;
    auto ideal = lattice_->full();
    std::size_t devices = options_.devices, replicas = most_;
    plan.time_per_microbatch = at(ideal, devices, replicas).time;
    if (plan.time_per_microbatch == infinity) {
      return Error{ErrorCode::does_not_fit,
                   fmt::format("no stages of {} layers fit {} devices of {:.0f} bytes with {} "
                               "microbatches",
                               graph_.layers.size(), options_.devices, options_.memory_bytes,
                               options_.microbatches)};
    }
    while (ideal != 0) {
      // As few as reach this time, where the cell's own choice was made.
      const double time = at(ideal, devices, replicas).time;
      while (devices > 0 && at(ideal, devices - 1, replicas).time <= time) --devices;
      while (replicas > 0 && at(ideal, devices, replicas - 1).time <= time) --replicas;
      const Cell cell = at(ideal, devices, replicas);
      const auto all = lattice_->nodes(ideal), rest = lattice_->nodes(cell.from);
      ParallelStage stage;
      std::set_difference(all.begin(), all.end(), rest.begin(), rest.end(),
                          std::back_inserter(stage.layers));
      stage.data_parallel = cell.data;
      stage.tensor_parallel = cell.tensor;
      part_ = stage.layers;
      inside_.assign(graph_.layers.size(), false);
      for (const auto layer : part_) inside_[layer] = true;
      list_choices(cell.data, cell.tensor);
      const auto rounds = (replicas + cell.data - 1) / cell.data;
      choose(static_cast<double>(rounds));
      stage.variants = picked_;
      plan.stages.push_back(std::move(stage));
      devices -= std::size_t{cell.data} * cell.tensor;
      replicas -= cell.data;
      ideal = cell.from;
    }
    const auto priced = price_stages(graph_, options_, plan.stages);
    if (!priced) return priced.error();
    plan.time_per_microbatch = *priced;
    return plan;
  }

  const LayerGraph& graph_;
  const StageOptions& options_;
  const Adjacency& adjacency_;
  std::uint32_t most_;  ///< replicas of all stages together
  std::set<std::uint32_t> degrees_;
  const IdealLattice* lattice_ = nullptr;
  std::size_t row_ = 0, column_ = 0;
  std::vector<Cell> cells_;
  IdealLattice::Ideal base_ = 0;
  std::vector<std::uint32_t> part_;
  std::vector<bool> inside_;
  std::vector<std::vector<Choice>> choices_;
  std::vector<std::uint32_t> picked_;
};

}  // namespace

Result<ParallelPlan> plan_stages(const LayerGraph& graph, const StageOptions& options) {
  auto adjacency = check(graph, options);
  if (!adjacency) return adjacency.error();
  return StageSearch(graph, options, *adjacency).run();
}

Result<Seconds> price_stages(const LayerGraph& graph,
                             const StageOptions& options,
                             const std::vector<ParallelStage>& stages) {
  auto adjacency = check(graph, options);
  if (!adjacency) return adjacency.error();
  constexpr std::size_t nowhere = std::numeric_limits<std::size_t>::max();
  std::vector<std::size_t> stage_of(graph.layers.size(), nowhere);
  std::uint64_t devices = 0, replicas = 0;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const auto& stage = stages[s];
    if (stage.variants.size() != stage.layers.size())
      return invalid(fmt::format("stage {} does not name one variant for each layer", s));
    if (stage.data_parallel == 0 || options.microbatches % stage.data_parallel != 0) {
      return invalid(
          fmt::format("stage {}: a data-parallel degree of {} does not divide {} "
                      "microbatches",
                      s, stage.data_parallel, options.microbatches));
    }
    devices += std::uint64_t{stage.data_parallel} * stage.tensor_parallel;
    replicas += stage.data_parallel;
    for (std::size_t i = 0; i < stage.layers.size(); ++i) {
      const auto layer = stage.layers[i];
      if (layer >= graph.layers.size() || stage_of[layer] != nowhere)
        return invalid(fmt::format("stage {}: layer {} is unknown or in two places", s, layer));
      stage_of[layer] = s;
      const auto found = graph.layers[layer].variants.find(stage.tensor_parallel);
      if (found == graph.layers[layer].variants.end() || stage.variants[i] >= found->second.size())
        return invalid(fmt::format("stage {}: {} has no such variant", s, named(graph, layer)));
    }
  }
  for (std::size_t layer = 0; layer < graph.layers.size(); ++layer)
    if (stage_of[layer] == nowhere) return invalid(named(graph, layer) + " is in no stage");
  for (const auto& edge : graph.edges) {
    if (stage_of[edge.source] > stage_of[edge.destination]) {
      return invalid(fmt::format("the edge {} -> {} leads from stage {} back to {}", edge.source,
                                 edge.destination, stage_of[edge.source],
                                 stage_of[edge.destination]));
    }
  }
  if (devices > options.devices || replicas > options.microbatches) {
    return invalid(
        fmt::format("{} devices and {} replicas are used; there are {} devices and {} "
                    "microbatches",
                    devices, replicas, options.devices, options.microbatches));
  }
  Seconds slowest = 0;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const auto& stage = stages[s];
    const double data = stage.data_parallel;
    const auto rounds = (replicas + stage.data_parallel - 1) / stage.data_parallel;
    const auto in_flight = static_cast<double>(rounds);
    replicas -= stage.data_parallel;
    double time = 0, edges = 0, parameters = 0, bytes = 0;
    for (std::size_t i = 0; i < stage.layers.size(); ++i) {
      const auto layer = stage.layers[i];
      const auto& variant =
          graph.layers[layer].variants.at(stage.tensor_parallel)[stage.variants[i]];
      time += variant.time;
      parameters += variant.parameter_bytes;
      bytes += variant.bytes_in_flight * in_flight + variant.bytes_fixed;
      for (const auto& edge : adjacency->in[layer])
        if (stage_of[edge.source] != s)
          edges += 2 * (edge.bytes + variant.input_bytes.at(edge.source));
      for (const auto& edge : adjacency->out[layer])
        if (stage_of[edge.destination] != s)
          edges += 2 * (edge.bytes + variant.output_bytes.at(edge.destination));
    }
    if (bytes > options.memory_bytes * (1 + 1e-12)) {
      return Error{ErrorCode::does_not_fit,
                   fmt::format("stage {} needs {:.0f} bytes on each device; a device has {:.0f}", s,
                               bytes, options.memory_bytes)};
    }
    const double gradients = 4 * (data - 1) / data * parameters / options.microbatches;
    slowest = std::max(slowest, time / data + (edges / data + gradients) / options.bandwidth);
  }
  return slowest;
}

}  // namespace troupe
