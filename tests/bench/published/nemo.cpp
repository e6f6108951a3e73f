// NVIDIA's Megatron Bridge on Hopper and Blackwell: nemo_megatron_bridge_perf, dense models and
// models with experts, BF16, FP8, MXFP8 and NVFP4.
#include <map>
#include <optional>
#include <string>

#include "tests/bench/published/architecture_runs.h"
#include "tests/bench/published/fit.h"

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

/// GPU, precision and framework: one share of the peak that large products reach is fitted.
std::string group_of(const Row& row, Precision precision) {
  const char* const name = precision == Precision::bf16    ? " BF16"
                           : precision == Precision::fp8   ? " FP8"
                           : precision == Precision::mxfp8 ? " MXFP8"
                                                           : " NVFP4";
  return row.text("system") + name + (recent(row) ? " from 26.06" : "");
}

/// What products kept in 16 bits reach: ml-engineering measured 73 to 79 % on Blackwell, 80 % on
/// Hopper.
constexpr double wide_share = 0.75;

TrainingCluster cluster_of(const Row& row, Precision precision, double share) {
  const System system = system_of(row);
  TrainingCluster out;
  out.device.peak = precision == Precision::bf16    ? system.bf16
                    : precision == Precision::nvfp4 ? system.fp4
                                                    : system.fp8;
  out.device.achievable = share;
  out.device.memory = system.memory;
  out.device.processors = system.processors;
  if (precision != Precision::bf16) {
    out.device.wide_peak = system.bf16;
    out.device.wide_achievable = wide_share;
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
  out.data = row.count("gpus") / (out.tensor * out.pipeline * out.context);
  out.microbatch = row.count("mbs");
  out.batch = row.count("gbs");
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

struct NemoRun {
  FittedRun run;
  bool experts = false;
};

std::vector<NemoRun> nemo_runs(const Table& table, std::vector<std::string>& problems) {
  std::vector<NemoRun> out;
  use_rows(table, problems, [&](const Row& row) {
    const auto precision = precision_of(row);
    const auto model = architecture_of(row.text("model"));
    if (!precision || !model || row.text("task") != "Pre-Training Performance") return;
    const ArchitectureRun run{*model, row.positive("seq")};
    const Layout layout = checked(row, run, layout_of(row));
    NemoRun one{{row.text("row_id"), group_of(row, *precision)}, model->has_experts()};
    one.run.measured = run.sequence * static_cast<double>(layout.batch) /
                       static_cast<double>(row.count("gpus")) / row.positive("tokens_per_s_gpu");
    one.run.flops = device_flops(run, layout);
    one.run.predicted = [=](double share) {
      const TrainingCluster cluster = cluster_of(row, *precision, share);
      return step_seconds(run, layout, megatron_bridge(layout), cluster).total();
    };
    checked(one.run, wide_share);
    out.push_back(one);
  });
  return out;
}

/// Dense models and models with experts have one value together.
std::vector<FittedRun> declared_runs(const Table& table, std::vector<std::string>& problems) {
  std::vector<FittedRun> out;
  for (const NemoRun& one : nemo_runs(table, problems)) out.push_back(one.run);
  declare_every_fifth(out);
  return out;
}

}  // namespace

std::vector<Score> score_nemo(const std::filesystem::path& folder) {
  const std::string name = "nemo_megatron_bridge_perf";
  const Table table(folder, name), own(own_folder(), name);
  const auto from = [&](const std::filesystem::path& at) {
    std::vector<std::string> ignored;
    return declared_runs(at == folder ? table : own, ignored);
  };
  const FitRange shares{0.02, 1, wide_share};
  const FittedValues values = fit_values(from, folder, shares);
  std::vector<std::string> problems, ignored;
  const std::vector<NemoRun> kinds = nemo_runs(table, ignored);
  const std::vector<FittedRun> runs = declared_runs(table, problems);
  std::vector<Score> out;
  for (const bool experts : {false, true}) {
    std::vector<FittedRun> of_kind;
    for (std::size_t i = 0; i < runs.size(); ++i)
      if (kinds[i].experts == experts) of_kind.push_back(runs[i]);
    Score score = score_fitted(of_kind, values, shares, name,
                               experts ? "step time, experts" : "step time, dense", table.size());
    require_mean(score, 0.15);
    score.notes = {
        "left out: fine-tuning, rows without a precision or with dropped tokens, hybrid and "
        "unpublished architectures (Nemotron 3, DeepSeek V4)",
        "the share of the peak that large products reach, on every fifth row of a GPU, precision "
        "and framework (releases before 26.06, and from it on), dense or not; the median of all "
        "for groups of one row: " +
            to_text(values)};
    if (experts) score.notes.insert(score.notes.end(), problems.begin(), problems.end());
    out.push_back(score);
  }
  return out;
}

}  // namespace troupe::published
