// Closed forms of training state and of offloading: zero_model_states, deepspeed_memory_estimator,
// zero_infinity_memory, zero_infinity_bandwidth.
#include "planner/zero_memory.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>

#include "tests/bench/published/score.h"
#include "tests/support/printed.h"

namespace troupe::published {
namespace {

using testing::agrees_as_printed;
using testing::Printed;

/// Takes a figure that agrees with the printed one for the printed one.
void add_printed(Errors& errors,
                 double value,
                 const Row& row,
                 const std::string& column,
                 Printed how = Printed::rounded) {
  const double printed = row.number(column);
  errors.add(agrees_as_printed(value, row.text(column), 0, how) ? printed : value, printed);
}

/// Two decimals, whose zeros at the end the file dropped.
void add_two_decimals(Errors& errors, double value, const Row& row, const std::string& column) {
  const double printed = row.number(column);
  errors.add(agrees_as_printed(value, row.text(column), 2) ? printed : value, printed);
}

Score exact(const Errors& errors, const Table& table, const std::string& name, const char* what) {
  Score score = errors.score(name, what);
  score.left_out = table.size() - errors.count();
  require_exact(score);
  return score;
}

}  // namespace

std::vector<Score> score_zero_model_states(const std::filesystem::path& folder) {
  const Table table(folder, "zero_model_states");
  Errors errors;
  for (const Row& row : table.sound_rows()) {
    const auto parameters = static_cast<std::uint64_t>(row.number("params_b") * 1e9);
    const auto stage = row.integer("zero_stage");
    if (stage > 3) throw BadTable(row.place() + ": zero_stage is above 3");
    const Bytes bytes =
        state_memory(parameters, static_cast<ZeroStage>(stage), row.integer("dp")).total();
    // The paper's table rounds some figures and cuts others off (4011.7 is printed as 4011).
    add_printed(errors, static_cast<double>(bytes) / 1e9, row, "model_state_gb_per_gpu",
                Printed::rounded_or_cut);
  }
  return {exact(errors, table, "zero_model_states", "bytes per device")};
}

namespace {

/// A T5 of one of the published sizes: heads of 128 (3B and 11B) or 64, vocabulary 32,128, one
/// table for both halves and the output.
struct T5Shape {
  std::uint64_t layers, width, ffn, attention;
};

std::optional<T5Shape> t5_shape(const std::string& name) {
  if (name == "t5-small") return T5Shape{6, 512, 2048, 512};
  if (name == "t5-base") return T5Shape{12, 768, 3072, 768};
  if (name == "t5-large") return T5Shape{24, 1024, 4096, 1024};
  if (name == "t5-3b") return T5Shape{24, 1024, 16384, 4096};
  if (name == "t5-11b") return T5Shape{24, 1024, 65536, 16384};
  return std::nullopt;
}

/// What the estimator was asked about: a count, or a model of which the file gives rounded counts.
struct Asked {
  std::uint64_t parameters = 0, largest_layer = 0;
};

std::optional<Asked> asked_of(const Row& row) {
  const std::string& text = row.text("total_params");
  const auto shape = t5_shape(text.substr(0, text.find(' ')));
  if (!shape) {
    char* end = nullptr;
    const double count = std::strtod(text.c_str(), &end);
    if (text.empty() || *end != '\0') return std::nullopt;
    return Asked{static_cast<std::uint64_t>(count),
                 static_cast<std::uint64_t>(row.maybe_number("largest_layer_params").value_or(0))};
  }
  constexpr std::uint64_t vocabulary = 32128;
  constexpr std::uint64_t buckets = 32;  // of relative positions, each with a value a head
  const auto [layers, width, ffn, attention] = *shape;
  const std::uint64_t heads = attention / (width == 1024 && ffn > 4096 ? 128 : 64);
  const std::uint64_t encoder = 4 * width * attention + 2 * width * ffn + 2 * width;
  const std::uint64_t decoder = 8 * width * attention + 2 * width * ffn + 3 * width;
  Asked asked;
  asked.largest_layer = vocabulary * width;
  asked.parameters = asked.largest_layer + layers * (encoder + decoder) +
                     2 * (buckets * heads + width);  // positions and last norm of either half
  return asked;
}

}  // namespace

std::vector<Score> score_deepspeed_estimator(const std::filesystem::path& folder) {
  const Table table(folder, "deepspeed_memory_estimator");
  Errors device, host;
  std::size_t unknown = 0;
  for (const Row& row : table.sound_rows()) {
    const auto asked = asked_of(row);
    const std::uint64_t stage = row.integer("stage");
    if (!asked || stage < 2 || stage > 3) {
      ++unknown;
      continue;
    }
    EstimatorRequest request;
    request.parameters = asked->parameters;
    request.largest_layer = asked->largest_layer;
    request.devices_per_node = row.integer("gpus_per_node");
    request.nodes = row.integer("nodes");
    request.offload_optimizer = row.text("offload_optimizer") == "cpu";
    request.offload_parameters = row.text("offload_param") == "cpu";
    request.sharded_start = row.maybe_number("zero_init").value_or(1) != 0;
    const EstimatedMemory memory =
        stage == 2 ? deepspeed_zero2_estimate(request) : deepspeed_zero3_estimate(request);
    // Of one document the file holds MiB that were cut off.
    const bool in_mib = row.text("note").find(">>20") != std::string::npos;
    const auto gib = [&](Bytes bytes) {
      return in_mib ? static_cast<double>(bytes >> 20) / 1024
                    : static_cast<double>(bytes) / static_cast<double>(1_GiB);
    };
    add_two_decimals(device, gib(memory.device), row, "gpu_gb");
    if (row.maybe_number("cpu_gb")) add_two_decimals(host, gib(memory.host), row, "cpu_gb");
  }
  std::vector<Score> scores{exact(device, table, "deepspeed_memory_estimator", "bytes per device"),
                            exact(host, table, "deepspeed_memory_estimator", "bytes per node")};
  if (unknown > 0)
    for (Score& score : scores)
      score.notes.push_back(
          fmt::format("{} rows left out: a model whose size is not known here", unknown));
  return scores;
}

namespace {

/// The number behind "B=" or "ci=" in a text.
std::uint64_t given_in(const std::string& text, const std::string& name, std::uint64_t otherwise) {
  const auto at = text.find(name + "=");
  if (at == std::string::npos) return otherwise;
  return std::strtoull(text.c_str() + at + name.size() + 1, nullptr, 10);
}

std::optional<double> infinity_figure(const Row& row) {
  const TransformerShape shape{row.integer("layers"), row.integer("hidden"), row.integer("heads"),
                               row.integer("seq")};
  const std::string& metric = row.text("metric");
  const std::uint64_t interval = given_in(row.text("formula"), "ci", 1);
  constexpr double gib = static_cast<double>(1_GiB);
  const auto of = [](Bytes bytes, double unit) { return static_cast<double>(bytes) / unit; };
  if (metric == "params") return of(block_parameters(shape), 1e12);
  if (metric == "model_states")
    return of(state_memory(block_parameters(shape), ZeroStage::none, 1, adam_16_bit_both_gradients)
                  .total(),
              1024 * gib);
  if (metric == "activations_full_per_node")
    return of(activation_bytes(shape, given_in(row.text("formula"), "B", 64)), 1024 * gib);
  if (metric == "activation_checkpoints_per_node")
    return of(checkpoint_bytes(shape, given_in(row.text("formula"), "B", 32), interval),
              1024 * gib);
  if (metric == "activation_working_mem_per_gpu")
    return of(activation_working_bytes(shape, given_in(row.text("formula"), "B", 4), interval),
              gib);
  if (metric == "model_state_working_mem_per_gpu") return of(largest_operator_bytes(shape), gib);
  return std::nullopt;
}

}  // namespace

std::vector<Score> score_zero_infinity_memory(const std::filesystem::path& folder) {
  const Table table(folder, "zero_infinity_memory");
  Errors errors;
  for (const Row& row : table.rows())
    if (const auto figure = infinity_figure(row)) add_two_decimals(errors, *figure, row, "value");
  return {exact(errors, table, "zero_infinity_memory", "size")};
}

std::vector<Score> score_zero_infinity_bandwidth(const std::filesystem::path& folder) {
  const Table table(folder, "zero_infinity_bandwidth");
  Errors intensity, efficiency;
  for (const Row& row : table.sound_rows()) {
    if (!row.maybe_number("efficiency_pct")) continue;
    const std::string& state = row.text("state");
    const bool checkpoints = state == "activation_checkpoints";
    TransformerShape shape;
    shape.sequence = row.integer("seq");
    if (checkpoints) shape.hidden = row.integer("hidden");
    const auto travelling = checkpoints ? TravellingState::checkpoints
                            : state == "optimizer_states"
                                ? TravellingState::optimizer
                                : TravellingState::parameters_and_gradients;
    const double ait =
        arithmetic_intensity(travelling, shape, checkpoints ? 1 : row.number("batch_per_gpu"),
                             given_in(row.text("note"), "ci", 1));
    intensity.add(ait, row.number("ait_flop_per_byte"));
    const double share = offload_efficiency(ait, row.number("bandwidth_gb_s") * 1e9,
                                            row.number("peak_tflops") * 1e12);
    add_two_decimals(efficiency, 100 * share, row, "efficiency_pct");
  }
  std::vector<Score> scores{
      exact(efficiency, table, "zero_infinity_bandwidth", "efficiency"),
      exact(intensity, table, "zero_infinity_bandwidth", "arithmetic intensity")};
  scores[0].notes.push_back("rows without a figure are sentences of the paper's text: a unit test");
  return scores;
}

}  // namespace troupe::published
