// NVIDIA's Megatron Bridge on Hopper and Blackwell: nemo_megatron_bridge_perf, dense models and
// models with experts, BF16, FP8, MXFP8 and NVFP4.
#include <map>
#include <optional>
#include <string>
#include <tuple>

#include "tests/bench/published/architecture_runs.h"

namespace troupe::published {
namespace {

/// One GPU of a system. Peaks are dense.
struct System {
  FlopsPerSecond bf16, fp8, fp4;
  BytesPerSecond memory;
  double processors;
  double linked;        ///< GPUs that NVLink joins
  BytesPerSecond link;  ///< of a GPU in NCCL's rings, one direction
  BytesPerSecond port;  ///< of a GPU to the network, one direction
};

/// Rates: NVIDIA's datasheets of H100 SXM, HGX B200 and B300, GB200 and GB300 NVL72 (also in
/// stas00/ml-engineering, compute/accelerator); NVLink 4 has 450 and NVLink 5 900 GB/s a direction,
/// of which rings carry four fifths; 400 Gb/s a GPU, 800 with ConnectX-8 (B300, GB300).
System system_of(const Row& row) {
  static const std::map<std::string, System> all = {
      {"DGX-H100", {989e12, 1979e12, 0, 3.35e12, 132, 8, 360e9, 50e9}},
      {"DGX-B200", {2250e12, 4500e12, 9000e12, 8e12, 148, 8, 720e9, 50e9}},
      {"DGX-B300", {2250e12, 4500e12, 13500e12, 8e12, 148, 8, 720e9, 100e9}},
      {"DGX-GB200", {2500e12, 5000e12, 10000e12, 8e12, 148, 72, 720e9, 50e9}},
      {"DGX-GB300", {2500e12, 5000e12, 15000e12, 8e12, 148, 72, 720e9, 100e9}}};
  const auto found = all.find(row.text("system"));
  if (found == all.end())
    throw BadTable(row.place() + ": system " + row.text("system") +
                   " is none of DGX-H100, -B200, -B300, -GB200, -GB300");
  return found->second;
}

enum class Precision : std::uint8_t { bf16, fp8, mxfp8, nvfp4 };

/// Of the value in the column of tokens: the first one where a row gives two. Nothing where the row
/// does not say.
std::optional<Precision> precision_of(const Row& row) {
  const std::string& text = row.text("precision");
  if (text.empty()) return std::nullopt;
  if (text == "BF16") return Precision::bf16;
  if (text == "NVFP4") return Precision::nvfp4;
  if (text == "MXFP8" || text == "FP8-MX") return Precision::mxfp8;
  if (text.rfind("FP8", 0) == 0) return Precision::fp8;
  throw BadTable(row.place() + ": precision " + text + " is none of BF16, FP8, MXFP8, NVFP4");
}

Architecture with_experts(Architecture model, std::uint32_t blocks, std::uint32_t experts) {
  model.blocks = blocks;
  model.moe.experts = experts;
  return model;
}

/// What models.csv lacks, from the public configurations of the larger sisters: Qwen3-235B-A22B,
/// gpt-oss-120b and Kimi-K2 (config.json on Hugging Face).
std::optional<Architecture> architecture_of(const std::string& model) {
  static const std::map<std::string, std::string> listed = {
      {"LLAMA3_8B", "llama-3-8b"},
      {"LLAMA3_70B", "llama-3.1-70b"},
      {"LLAMA3.1_405B", "llama-3.1-405b"},
      {"Qwen3_30B_a3B", "qwen3-30b-a3b"},
      {"DeepSeekV3 (w/o MTP)", "deepseek-v3"}};
  if (const auto name = listed.find(model); name != listed.end()) return find_model(name->second);
  if (model == "Qwen3_235B_a22B") {
    Architecture out = with_experts(*find_model("qwen3-30b-a3b"), 94, 128);
    out.width = 4096;
    out.attention.heads = 64;
    out.moe.ffn_width = 1536;
    return out;
  }
  if (model == "GPT OSS 120B") return with_experts(*find_model("gpt-oss-20b"), 36, 128);
  Architecture deepseek = *find_model("deepseek-v3");
  if (model == "Kimi_K2") {
    Architecture out = with_experts(deepseek, 61, 384);
    out.attention.heads = out.attention.kv_heads = 64;
    out.moe.first_dense_blocks = 1;
    out.vocabulary = 163840;
    return out;
  }
  if (model == "DeepSeekV3" || model == "DeepSeekV3 (w/ MTP)") {
    // One more token is predicted: a further block and the head once more (DeepSeek-V3,
    // arXiv:2412.19437, section 2.2).
    deepseek.blocks += 1;
    deepseek.vocabulary *= 2;
    return deepseek;
  }
  return std::nullopt;
}

/// Releases from 26.06 on capture whole steps with experts in graphs; they are told apart from the
/// ones before as another framework is.
bool recent(const Row& row) {
  return row.text("container") >= "26.06";
}

using FitKey = std::tuple<std::string, Precision, bool>;

/// Fitted, one share of the peak for each GPU, precision and framework, on the rows of this table
/// that tests/data/published holds: large products reach it. The last number is for what is not
/// listed: the median of those that are.
double fitted_share(const FitKey& key) {
  static const std::map<FitKey, double> fitted = {
      {{"DGX-H100", Precision::bf16, false}, 0.27},  {{"DGX-H100", Precision::fp8, false}, 0.22},
      {{"DGX-H100", Precision::fp8, true}, 0.14},    {{"DGX-B200", Precision::bf16, false}, 0.25},
      {{"DGX-B200", Precision::fp8, false}, 0.44},   {{"DGX-B200", Precision::mxfp8, false}, 0.21},
      {{"DGX-B300", Precision::mxfp8, false}, 0.26}, {{"DGX-B300", Precision::mxfp8, true}, 0.32},
      {{"DGX-GB200", Precision::bf16, false}, 0.42}, {{"DGX-GB200", Precision::fp8, false}, 0.48},
      {{"DGX-GB200", Precision::fp8, true}, 0.50},   {{"DGX-GB200", Precision::mxfp8, false}, 0.34},
      {{"DGX-GB200", Precision::mxfp8, true}, 0.44}, {{"DGX-GB200", Precision::nvfp4, false}, 0.35},
      {{"DGX-GB200", Precision::nvfp4, true}, 0.36}, {{"DGX-GB300", Precision::bf16, false}, 0.35},
      {{"DGX-GB300", Precision::fp8, false}, 0.54},  {{"DGX-GB300", Precision::mxfp8, false}, 0.36},
      {{"DGX-GB300", Precision::mxfp8, true}, 0.70}};
  const auto found = fitted.find(key);
  return found == fitted.end() ? 0.35 : found->second;
}

TrainingCluster cluster_of(const Row& row, Precision precision) {
  const System system = system_of(row);
  TrainingCluster out;
  out.device.peak = precision == Precision::bf16    ? system.bf16
                    : precision == Precision::nvfp4 ? system.fp4
                                                    : system.fp8;
  out.device.achievable = fitted_share({row.text("system"), precision, recent(row)});
  out.device.memory = system.memory;
  out.device.processors = system.processors;
  if (precision != Precision::bf16) {
    out.device.wide_peak = system.bf16;
    out.device.wide_achievable = 0.75;
  }
  out.net.devices_per_node = system.linked;
  out.net.intra = system.link;
  out.net.node = system.port * system.linked;
  return out;
}

std::uint64_t degree(const Row& row, const char* column) {
  return static_cast<std::uint64_t>(
      row.text(column) == "n/a" ? 1 : row.maybe_number(column).value_or(1));
}

Layout layout_of(const Row& row) {
  Layout out;
  out.tensor = degree(row, "tp");
  out.pipeline = degree(row, "pp");
  out.context = degree(row, "cp");
  out.expert = degree(row, "ep");
  out.chunks = degree(row, "vp");
  out.data = row.integer("gpus") / (out.tensor * out.pipeline * out.context);
  out.microbatch = row.integer("mbs");
  out.batch = row.integer("gbs");
  out.sequence_parallel = out.tensor > 1;
  out.zero = ZeroStage::optimizer;
  out.flash_attention = out.causal = true;
  return out;
}

/// Transformer Engine fuses pointwise ops and overlaps tensor-parallel traffic piece by piece;
/// gradients in f32 are reduced and parameters gathered beside the arithmetic.
Framework megatron_bridge(const Layout& layout) {
  Framework out;
  out.fused = true;
  out.gradient_bytes = out.reduced_bytes = 4;
  out.reduction_hidden = out.gather_hidden = out.transfers_hidden = out.balanced_stages = true;
  out.tensor_exposed = 1.0 / static_cast<double>(layout.tensor);
  return out;
}

}  // namespace

std::vector<Score> score_nemo(const std::filesystem::path& folder) {
  const Table table(folder, "nemo_megatron_bridge_perf");
  Runs dense, experts;
  for (const Row& row : table.sound_rows()) {
    const auto precision = precision_of(row);
    const auto model = architecture_of(row.text("model"));
    if (!precision || !model || row.text("task") != "Pre-Training Performance") continue;
    const ArchitectureRun run{*model, row.number("seq")};
    const Layout layout = checked(row, run, layout_of(row));
    const double tokens = run.sequence * static_cast<double>(layout.batch) / row.number("gpus");
    (model->has_experts() ? experts : dense)
        .add(
            step_seconds(run, layout, megatron_bridge(layout), cluster_of(row, *precision)).total(),
            tokens / row.number("tokens_per_s_gpu"), device_flops(run, layout));
  }
  Score of_dense = dense.score("nemo_megatron_bridge_perf", "step time, dense", table.size());
  Score of_experts = experts.score("nemo_megatron_bridge_perf", "step time, experts", table.size());
  for (Score* score : {&of_dense, &of_experts}) {
    require_mean(*score, 0.15);
    score->notes.push_back(
        "left out: fine-tuning, rows without a precision or with dropped tokens, hybrid and "
        "unpublished architectures (Nemotron 3, DeepSeek V4)");
    score->notes.push_back(
        "fitted: the share of the peak that large products reach, one for each GPU, precision and "
        "framework (releases before 26.06, and from it on), on the project's copy of the table");
  }
  return {of_dense, of_experts};
}

}  // namespace troupe::published
