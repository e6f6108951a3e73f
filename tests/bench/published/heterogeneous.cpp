// Mixed clusters: heterogeneous_papers. HetPipe's virtual workers (Park et al. 2020,
// arXiv:2005.14038) and HeterMoE's zebra parallelism (Wu et al. 2025, arXiv:2504.03871), planned by
// the planner's own strategies. Rows that do not say what was run are counted by reason.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include "planner/collectives.h"
#include "planner/device_model.h"
#include "planner/virtual_workers.h"
#include "planner/zebra.h"
#include "tests/bench/published/fit.h"

namespace troupe::published {
namespace {

const std::string table_name = "heterogeneous_papers";

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// ---- HetPipe: ResNet-152 on TITAN V, TITAN RTX, GeForce RTX 2060 and Quadro P4000 ----

/// Letters, cores and memory of HetPipe's cards, as its table of hardware prints them. Its text
/// orders them V, R, G, Q by speed: the order of their cores.
struct Card {
  char letter;
  double cores, gib;
};
constexpr std::array cards{Card{'V', 5120, 12}, Card{'R', 4608, 24}, Card{'G', 1920, 6},
                           Card{'Q', 1792, 8}};

std::uint32_t card_of(const Row& row, char letter) {
  for (std::uint32_t i = 0; i < cards.size(); ++i)
    if (cards[i].letter == letter) return i;
  throw BadTable(row.place() + ": there is no card '" + std::string(1, letter) + "'");
}

/// One node of four for each letter.
WorkerCluster nodes_of(const Row& row, const std::string& letters) {
  WorkerCluster out;
  for (std::uint32_t node = 0; node < letters.size(); ++node) {
    const std::uint32_t kind = card_of(row, letters[node]);
    for (int i = 0; i < 4; ++i)
      out.devices.push_back({kind, NodeId{node}, cards[kind].gib * static_cast<double>(1_GiB)});
  }
  // PCIe 3.0 x16 and InfiniBand of 56 Gb/s, at the share that messages reach.
  const Interconnect net;
  out.within_node = {net.transfer_start, 15.75e9 * net.node_achievable};
  out.between_nodes = {net.transfer_start, 7e9 * net.node_achievable};
  return out;
}

/// A block of ResNet: flops of a forward (a multiply-add counts as two), parameters, floats kept
/// for backward and floats handed on, of one image.
struct ResidualBlock {
  double flops = 0, parameters = 0, kept = 0, output = 0;
};

/// ResNet-152 (He et al. 2016, table 1): a stem, 3 + 8 + 36 + 3 bottlenecks, a classifier.
std::vector<ResidualBlock> resnet152() {
  std::vector<ResidualBlock> out;
  const double stem = 112 * 112 * 64;
  out.push_back({2 * 49 * 3 * stem, 49 * 3 * 64, 2 * stem, 56 * 56 * 64});
  double channels = 64, side = 56, width = 64;
  for (const int count : {3, 8, 36, 3}) {
    for (int i = 0; i < count; ++i) {
      const double pixels = side * side;
      const double weights = channels * width + 9 * width * width + 4 * width * width +
                             (i == 0 ? channels * 4 * width : 0);
      // Output of each convolution and of the norm behind it.
      const double kept = 2 * 6 * width * pixels + (i == 0 ? 2 * 4 * width * pixels : 0);
      out.push_back({2 * weights * pixels, weights, kept, 4 * width * pixels});
      channels = 4 * width;
    }
    width *= 2;
    side /= 2;
  }
  out.push_back({2 * 2048 * 1000, 2048 * 1000, 2048, 1000});
  return out;
}

constexpr double minibatch = 32;  // images

/// `image_seconds`: of a V for one image, forward and backward.
WorkerCosts resnet_costs(double image_seconds) {
  const std::vector<ResidualBlock> blocks = resnet152();
  double flops = 0;
  for (const ResidualBlock& block : blocks) flops += block.flops;
  WorkerCosts out;
  out.seconds.resize(cards.size());
  for (const ResidualBlock& block : blocks) {
    // f32: weights, gradients, momentum.
    out.layers.push_back({12 * block.parameters, 4 * block.parameters, 4 * minibatch * block.kept,
                          4 * minibatch * block.output});
    for (std::size_t kind = 0; kind < cards.size(); ++kind)
      out.seconds[kind].push_back(minibatch * image_seconds * block.flops / flops *
                                  cards.front().cores / cards[kind].cores);
  }
  return out;
}

/// "VVQQ x2, RRGG x2" as the sorted names of its workers.
std::multiset<std::string> workers_in(const std::string& text) {
  std::multiset<std::string> out;
  std::stringstream list(text);
  for (std::string entry; std::getline(list, entry, ',');) {
    std::stringstream words(entry);
    std::string name, times;
    words >> name >> times;
    std::sort(name.begin(), name.end());
    const int count = times.size() > 1 ? std::stoi(times.substr(1)) : 1;
    for (int i = 0; i < count; ++i) out.insert(name);
  }
  return out;
}

/// Whether the policy makes of the row's cards the workers that it prints.
bool allocates(const Row& row) {
  std::map<char, std::size_t> count;
  for (const std::string& worker : workers_in(row.text("value")))
    for (const char letter : worker) ++count[letter];
  std::string letters;
  for (const auto& [letter, devices] : count) letters += std::string(devices / 4, letter);
  std::string policy = row.text("system");
  for (char& letter : policy) letter = static_cast<char>(std::tolower(letter));
  const auto allocation = parse_worker_allocation(policy);
  if (!allocation) throw BadTable(row.place() + ": " + allocation.error().text);
  const WorkerCluster cluster = nodes_of(row, letters);
  const auto groups = allocate_workers(cluster, resnet_costs(1), *allocation);
  if (!groups) throw BadTable(row.place() + ": " + groups.error().text);
  std::multiset<std::string> names;
  for (const auto& members : *groups) {
    std::string name;
    for (const std::uint32_t member : members) name += cards[cluster.devices[member].kind].letter;
    std::sort(name.begin(), name.end());
    names.insert(name);
  }
  return names == workers_in(row.text("value"));
}

/// "VRQ nodes of 4 (...)": VRQ.
std::string letters_of(const Row& row) {
  const std::string& text = row.text("cluster");
  return text.substr(0, text.find(' '));
}

struct HetPipe {
  Errors speed_up, equal_shares;
  std::size_t trends = 0, right_trends = 0, verdicts = 0, right_verdicts = 0;
  FittedValue image_seconds;  ///< of a TITAN V
};

/// Images a second of data parallelism with equal shares: the slowest card's pace, then a ring of
/// all gradients between the nodes; nothing where a card cannot hold the model.
std::optional<double> data_parallel(const WorkerCluster& cluster, const WorkerCosts& costs) {
  double slowest = 0, bytes = 0, state = 0;
  for (const WorkerLayer& layer : costs.layers) {
    bytes += layer.gradient_bytes;
    state += layer.state_bytes + layer.kept_bytes;
  }
  // What the driver and the libraries take of a card before any tensor.
  constexpr double context = 0.5e9;
  std::set<NodeId> nodes;
  for (const WorkerDevice& device : cluster.devices) {
    if (state + context > device.memory_bytes) return std::nullopt;
    double own = 0;
    for (const Seconds seconds : costs.seconds[device.kind]) own += seconds;
    slowest = std::max(slowest, own);
    nodes.insert(device.node);
  }
  const double n = static_cast<double>(nodes.size());
  const double rate =
      nodes.size() > 1 ? cluster.between_nodes.bandwidth : cluster.within_node.bandwidth;
  const double ring = nodes.size() > 1 ? 2 * (n - 1) / n * bytes / rate : 1.5 * bytes / rate;
  return minibatch * static_cast<double>(cluster.devices.size()) / (slowest + ring);
}

/// Fitted: a V's pace, on the row of data parallelism over V alone. All other cards follow by their
/// cores.
FittedValue fitted_pace(const std::vector<Row>& rows) {
  for (const Row& row : rows)
    if (holds(row.text("system"), "DP") && letters_of(row) == "V")
      return {row.positive("gpus") / row.positive("value"), 1};
  return {};
}

std::vector<Row> hetpipe_rows(const Table& table) {
  std::vector<Row> out;
  for (const Row& row : table.sound_rows())
    if (row.text("item") == "HetPipe adding whimpy GPUs") out.push_back(row);
  return out;
}

/// Where a folder lacks the row to fit on, that of the project's own copy.
HetPipe score_hetpipe(const std::vector<Row>& rows) {
  HetPipe out;
  out.image_seconds = fitted_pace(rows);
  if (out.image_seconds.rows == 0) {
    const Table own(own_folder(), table_name);
    out.image_seconds = {fitted_pace(hetpipe_rows(own)).value, 0};
  }
  const double image_seconds = out.image_seconds.value;
  if (image_seconds == 0 || rows.empty()) return out;
  const WorkerCosts costs = resnet_costs(image_seconds);
  std::map<double, std::pair<double, double>> planned;  // by devices: predicted and measured
  for (const Row& row : rows) {
    const WorkerCluster cluster = nodes_of(row, letters_of(row));
    if (holds(row.text("system"), "DP")) {
      const auto predicted = data_parallel(cluster, costs);
      ++out.verdicts;
      const bool fits = row.text("value") != "does not fit";
      out.right_verdicts += predicted.has_value() == fits ? 1 : 0;
      if (fits && predicted && letters_of(row) != "V")
        out.equal_shares.add(*predicted, row.number("value"));
      continue;
    }
    const auto plan = plan_workers(cluster, costs, WorkerAllocation::equal_distribution, 1);
    if (!plan) throw BadTable(row.place() + ": " + plan.error().text);
    planned[row.number("gpus")] = {minibatch * plan->microbatches_per_second, row.number("value")};
  }
  if (planned.empty()) return out;
  const auto [first, base] = *planned.begin();
  auto before = base;
  for (const auto& [gpus, now] : planned) {
    if (gpus == first) continue;
    out.speed_up.add(now.first / base.first, now.second / base.second);
    ++out.trends;
    out.right_trends += (now.first > before.first) == (now.second > before.second) ? 1 : 0;
    before = now;
  }
  return out;
}

// ---- HeterMoE: Mixtral-like models on new and old GPUs ----

struct MoeModel {
  double layers = 0, hidden = 0, experts = 0, top_k = 0;
};

/// Published dense 16-bit rates and memory. FlashAttention-2 runs on Ampere and later; its paper
/// (Dao 2023, arXiv:2307.08691) finds the kernels that older cards have to use half as fast.
struct MoeCard {
  const char* name;
  double peak, memory, processors, gib;
  bool fast_attention;
};
constexpr std::array moe_cards{
    MoeCard{"A40", 149.7e12, 696e9, 84, 48, true}, MoeCard{"V100", 125e12, 900e9, 80, 32, false},
    MoeCard{"L40S", 362e12, 864e9, 142, 48, true}, MoeCard{"T4", 65e12, 320e9, 40, 16, false}};
/// Mixtral's block: gated experts of 3.5 h, heads of 128, 32 thousand words.
constexpr double expert_width = 3.5, head_width = 128, moe_words = 32'000;
constexpr std::uint32_t moe_microbatches = 8;

LayerOp product(double m, double n, double k, double batch = 1) {
  return {m, n, k, batch, 2 * batch * (m * k + k * n + m * n), 1};
}

AcceleratorRates rates_of(const MoeCard& card) {
  AcceleratorRates out;
  out.peak = card.peak;
  out.memory = card.memory;
  out.processors = card.processors;
  return out;
}

/// Seconds of a microbatch of `sequences` on one card.
ZebraKind kind_of(const MoeCard& card,
                  std::uint32_t devices,
                  const MoeModel& model,
                  double sequence,
                  double sequences) {
  const AcceleratorRates rates = rates_of(card);
  BlockShape shape;
  shape.hidden = model.hidden;
  shape.heads = shape.kv_heads = model.hidden / head_width;
  shape.sequence = sequence;
  shape.vocabulary = moe_words;
  shape.dropout = false;
  BlockCut cut;
  cut.microbatch = sequences;
  cut.flash_attention = true;
  const double h = model.hidden, tokens = sequence * sequences;
  const BlockOps block = block_ops(shape, cut);
  // Causal: half of the scores; without the fast kernels twice the time.
  const double attention = card.fast_attention ? 0.5 : 1;
  const auto seconds = [&](const LayerOps& ops) { return ops_seconds(ops, rates); };
  const Seconds projections = seconds({product(tokens, 3 * h, h), product(tokens, h, h)});
  // Padded to what tensor cores take.
  const double each = 8 * std::ceil(tokens * model.top_k / model.experts / 8);
  const Seconds experts = seconds({product(each, 2 * expert_width * h, h, model.experts),
                                   product(each, h, expert_width * h, model.experts)});
  ZebraKind out;
  out.devices = devices;
  out.memory_bytes = card.gib * static_cast<double>(1_GiB);
  out.attention_forward = projections + attention * seconds(block.attention_forward);
  out.attention_backward = 2 * projections + attention * seconds(block.attention_backward);
  out.experts_forward = experts;
  out.experts_backward = 2 * experts;
  const Seconds head = seconds(output_ops(shape, cut));
  out.head_forward = head / 3;
  out.head_backward = head - out.head_forward;
  return out;
}

/// A mix of cards: "4xA40+8xV100, 100 Gb/s".
struct MoeCluster {
  std::vector<std::pair<const MoeCard*, std::uint32_t>> parts;
  BytesPerSecond bandwidth = 0;
};

MoeCluster cluster_of(const Row& row, const std::string& text) {
  MoeCluster out;
  std::stringstream list(text.substr(0, text.find(',')));
  for (std::string part; std::getline(list, part, '+');) {
    const auto times = part.find('x');
    const auto card = std::find_if(moe_cards.begin(), moe_cards.end(), [&](const MoeCard& one) {
      return times != std::string::npos && part.substr(times + 1) == one.name;
    });
    if (card == moe_cards.end()) throw BadTable(row.place() + ": unknown card in " + text);
    out.parts.emplace_back(card, static_cast<std::uint32_t>(std::stoul(part)));
  }
  const auto comma = text.find(',');
  if (comma == std::string::npos) throw BadTable(row.place() + ": no bandwidth in " + text);
  out.bandwidth = std::stod(text.substr(comma + 1)) * 1e9 / 8 * Interconnect{}.node_achievable;
  return out;
}

struct MoeSetting {
  std::vector<ZebraKind> kinds;
  ZebraCosts costs;
};

MoeSetting setting_of(const MoeCluster& cluster, const MoeModel& model, double sequence) {
  MoeSetting out;
  // One sequence a microbatch on each device.
  double devices = 0;
  for (const auto& [card, count] : cluster.parts) devices += count;
  for (const auto& [card, count] : cluster.parts)
    out.kinds.push_back(kind_of(*card, count, model, sequence, devices));
  out.costs.layers = static_cast<std::uint32_t>(model.layers);
  out.costs.experts = static_cast<std::uint32_t>(model.experts);
  out.costs.microbatches = moe_microbatches;
  out.costs.exchange_bytes = 2 * sequence * devices * model.top_k * model.hidden;
  out.costs.bandwidth = cluster.bandwidth;
  out.costs.latency = Interconnect{}.inter_start;
  return out;
}

/// Zebra with moved experts against plain expert parallelism.
double speed_up(const MoeSetting& setting) {
  const auto plan = plan_zebra(setting.kinds, setting.costs);
  if (!plan) throw BadTable(table_name + ": " + plan.error().text);
  return expert_parallel_seconds(setting.kinds, setting.costs) / plan->step;
}

/// Against each kind alone, their rates added.
double speed_up_ideal(const MoeSetting& setting) {
  const auto plan = plan_zebra(setting.kinds, setting.costs);
  if (!plan) throw BadTable(table_name + ": " + plan.error().text);
  double rate = 0;
  for (const ZebraKind& kind : setting.kinds)
    rate += 1 / expert_parallel_seconds({kind}, setting.costs);
  return 1 / rate / plan->step;
}

/// "32K" in a text: 32,768.
std::optional<double> sequence_in(const std::string& text) {
  const auto at = text.find('K');
  if (at == std::string::npos || at == 0 || std::isdigit(text[at - 1]) == 0) return std::nullopt;
  auto begin = at;
  while (begin > 0 && std::isdigit(text[begin - 1]) != 0) --begin;
  return 1024 * std::stod(text.substr(begin, at - begin));
}

class HeterMoe {
 public:
  void read(const Row& row) {
    const std::string& value = row.text("value");
    if (holds(row.text("item"), "model config")) models_[row.text("model")] = model_of(value);
    if (holds(row.text("item"), "cluster config"))
      clusters_[row.text("system")] = cluster_of(row, value);
  }

  /// What the row says, predicted; nothing where it does not say what was run.
  std::optional<double> predict(const Row& row) const {
    const std::string& item = row.text("item");
    const std::string where =
        row.text("note") + " " + row.text("cluster") + " " + row.text("model");
    const auto sequence = sequence_in(where);
    if (!sequence) return std::nullopt;
    if (item == "HeterMoE vs EP") return over(where, *sequence, row, false);
    if (item == "HeterMoE EP relative to HeterMoE") {
      const auto found = over(where, *sequence, row, false);
      return found ? std::optional(1 / *found) : std::nullopt;
    }
    if (item == "HeterMoE vs EP (ideal)") return over(where, *sequence, row, true);
    return std::nullopt;
  }

 private:
  static MoeModel model_of(const std::string& text) {
    std::map<std::string, double> values;
    std::stringstream list(text);
    for (std::string entry; std::getline(list, entry, ';');) {
      const auto equals = entry.find('=');
      if (equals != std::string::npos)
        values[entry.substr(0, equals)] = std::stod(entry.substr(equals + 1));
    }
    return {values["layers"], values["hidden"], values["experts"], values["top_k"]};
  }

  /// The mean over the models and clusters that the text names; over all of the kind it names where
  /// it names none; over clusters the most for a single model ("up to").
  std::optional<double> over(const std::string& where,
                             double sequence,
                             const Row& row,
                             bool ideal) const {
    std::vector<MoeModel> models;
    if (holds(where, "Mixtral-")) {
      for (const auto& [name, model] : models_)
        if (holds(where, name)) models.push_back(model);
    } else {
      for (const auto& [name, model] : models_) models.push_back(model);
    }
    const std::vector<MoeCluster> clusters = clusters_in(where, row);
    double sum = 0, count = 0, most = 0;
    for (const MoeModel& model : models)
      for (const MoeCluster& cluster : clusters) {
        const MoeSetting setting = setting_of(cluster, model, sequence);
        const double one = ideal ? speed_up_ideal(setting) : speed_up(setting);
        sum += one;
        most = std::max(most, one);
        ++count;
      }
    if (count == 0) return std::nullopt;
    return holds(row.text("metric"), "mean") || ideal ? sum / count : most;
  }

  std::vector<MoeCluster> clusters_in(const std::string& where, const Row& row) const {
    std::vector<MoeCluster> out;
    const auto ratio = where.find("A40:V100 = ");
    if (ratio != std::string::npos) {
      std::stringstream numbers(where.substr(ratio + 11));
      std::string m, n;
      std::getline(numbers, m, ':');
      numbers >> n;
      out.push_back(
          cluster_of(row, fmt::format("{}xA40+{}xV100, 100 Gb/s", std::stoi(m), std::stoi(n))));
      return out;
    }
    for (const auto& [name, cluster] : clusters_)
      if (holds(where, ", " + name) || holds(where, name + ",")) out.push_back(cluster);
    if (!out.empty()) return out;
    for (const auto& [name, cluster] : clusters_) {
      bool all = true;
      for (const auto& [card, count] : cluster.parts) all = all && holds(where, card->name);
      if (all) out.push_back(cluster);
    }
    return out;
  }

  std::map<std::string, MoeModel> models_;
  std::map<std::string, MoeCluster> clusters_;
};

}  // namespace

std::vector<Score> score_heterogeneous_papers(const std::filesystem::path& folder) {
  const Table table(folder, table_name);
  HeterMoe moe;
  for (const Row& row : table.sound_rows()) moe.read(row);
  std::size_t policies = 0, right_policies = 0;
  Errors zebra;
  std::map<std::string, std::size_t> left_out;
  for (const Row& row : table.sound_rows()) {
    const std::string& item = row.text("item");
    if (item == "HetPipe adding whimpy GPUs") {
      continue;  // together, below
    } else if (item == "HetPipe allocation policy") {
      ++policies;
      right_policies += allocates(row) ? 1 : 0;
    } else if (holds(item, "config")) {
      ++left_out["inputs of others"];
    } else if (const auto predicted = moe.predict(row)) {
      zebra.add(*predicted, row.number("value"));
    } else if (holds(item, "HeterMoE")) {
      ++left_out["HeterMoE without sequence length or model"];
    } else if (item == "bubble rate on heterogeneous pipeline") {
      ++left_out["simulated bubbles without microbatches and layers"];
    } else {
      ++left_out["speed-ups without model, cluster or batch"];
    }
  }
  const HetPipe hetpipe = score_hetpipe(hetpipe_rows(table));
  Score one = hetpipe.speed_up.score(table_name, "HetPipe: speed-up by adding slower GPUs");
  one.target = "each within 20 %, every trend and allocation right";
  if (one.used > 0)
    one.reached =
        one.maximum <= 0.2 && hetpipe.trends == hetpipe.right_trends && policies == right_policies;
  one.notes = {fmt::format("adding slower GPUs helps in {} of {} steps where it helped",
                           hetpipe.right_trends, hetpipe.trends),
               fmt::format("{} of {} allocations as printed", right_policies, policies),
               fmt::format("{} of {} verdicts on what fits without a pipeline",
                           hetpipe.right_verdicts, hetpipe.verdicts),
               "one fitted value, the pace of a TITAN V: on the row of Horovod on four of them"};
  Score two = zebra.score(table_name, "HeterMoE: speed-up over expert parallelism");
  two.target = "each within 20 %";
  if (two.used > 0) two.reached = two.maximum <= 0.2;
  Score three = hetpipe.equal_shares.score(table_name, "Horovod with equal shares, throughput");
  two.notes.push_back(
      "nothing fitted; falls short at 32K tokens, where all hangs on how slow attention is on "
      "cards "
      "without FlashAttention-2 (taken as half its rate)");
  for (const auto& [reason, count] : left_out)
    two.notes.push_back(fmt::format("left out: {} ({})", reason, count));
  std::vector<Score> out{one, two, three};
  for (Score* score : {&out[0], &out[2]}) {
    score->fitted["ResNet-152: seconds of an image on a TITAN V"] = hetpipe.image_seconds;
    score->fitted_rows = hetpipe.image_seconds.rows;
  }
  for (Score& score : out) score.left_out = table.size() - score.used - score.fitted_rows;
  return out;
}

}  // namespace troupe::published
