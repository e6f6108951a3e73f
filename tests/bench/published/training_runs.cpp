#include "tests/bench/published/training_runs.h"

#include <algorithm>

namespace troupe::published {

TransformerStack gpt_of(const Row& row) {
  TransformerStack out;
  out.layers = row.count("layers");
  out.block.hidden = row.positive("hidden");
  out.block.heads = out.block.kv_heads = row.positive("heads");
  out.block.ffn = 4 * out.block.hidden;
  out.block.sequence = row.positive("seq");
  out.block.vocabulary = row.positive("vocab");
  return out;
}

Layout layout_of(const Row& row, const TransformerStack& model) {
  Layout out;
  out.tensor = row.count("tp");
  out.pipeline = row.count("pp");
  out.data = row.count("dp");
  out.batch = row.count("gbs");
  out.microbatch = row.count("mbs");
  const std::string& recompute = row.text("recompute");
  out.recompute = recompute == "full"        ? Recompute::full
                  : recompute == "selective" ? Recompute::selective
                                             : Recompute::none;
  const auto faults = layout_faults(model, out);
  if (!faults.empty()) throw BadTable(row.place() + ": " + faults.front());
  return out;
}

double device_flops(const TransformerStack& model, const Layout& layout) {
  const GptShape shape{static_cast<double>(model.layers), model.block.hidden, model.block.heads,
                       model.block.sequence, model.block.vocabulary};
  return gpt_step_flops(shape, static_cast<double>(layout.batch), layout.recompute) /
         static_cast<double>(layout.devices());
}

TrainingCluster a100_cluster(BytesPerSecond network) {
  TrainingCluster out;
  out.device = a100_rates();
  out.net.node = network;
  return out;
}

void Runs::add(double predicted, double measured, double flops) {
  errors_.add(predicted, measured);
  measured_.push_back(measured);
  flops_.push_back(flops);
}

Score Runs::score(const std::string& table, const std::string& quantity, std::size_t rows) const {
  Score out = errors_.score(table, quantity);
  out.left_out = rows - errors_.count();
  out.median = errors_.median();
  if (measured_.empty()) return out;
  std::vector<double> rates;
  for (std::size_t i = 0; i < measured_.size(); ++i) rates.push_back(flops_[i] / measured_[i]);
  std::sort(rates.begin(), rates.end());
  const double median = rates[rates.size() / 2];
  if (median <= 0) return out;  // no times
  Errors constant;
  for (std::size_t i = 0; i < measured_.size(); ++i) constant.add(flops_[i] / median, measured_[i]);
  out.baseline = constant.mean();
  return out;
}

}  // namespace troupe::published
