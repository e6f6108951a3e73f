// MosaicML's llm-foundry on A100 and H100: mosaicml_mpt_fsdp. FSDP without compilation, the first
// FlashAttention in Triton.
#include <map>

#include "tests/bench/published/architecture_runs.h"

namespace troupe::published {
namespace {

struct MptSize {
  std::uint32_t blocks, width, heads;
};

/// llm-foundry, scripts/train/yamls/pretrain/mpt-*.yaml.
Architecture mpt_of(const Row& row) {
  static const std::map<std::string, MptSize> sizes = {
      {"MPT-125m", {12, 768, 12}}, {"MPT-350m", {24, 1024, 16}}, {"MPT-760m", {24, 1536, 12}},
      {"MPT-1b", {24, 2048, 16}},  {"MPT-3b", {32, 2560, 20}},   {"MPT-7b", {32, 4096, 32}},
      {"MPT-13b", {40, 5120, 40}}, {"MPT-30b", {48, 7168, 56}},  {"MPT-70b", {80, 8192, 64}}};
  const auto size = sizes.find(row.text("model"));
  if (size == sizes.end())
    throw BadTable(row.place() + ": model " + row.text("model") +
                   " is none of MPT-125m to MPT-70b");
  Architecture out;
  out.family = "mpt";
  out.blocks = size->second.blocks;
  out.width = size->second.width;
  out.attention.heads = out.attention.kv_heads = size->second.heads;
  out.attention.head_width = out.width / out.attention.heads;
  out.attention.qkv_bias = out.attention.out_bias = out.mlp_bias = true;
  out.ffn_width = 4 * out.width;
  out.ffn_matrices = 2;
  out.vocabulary = 50368;
  out.context = out.position_rows = static_cast<std::uint32_t>(row.integer("seq"));
  out.position = PositionKind::learned;
  out.tied = true;
  out.norm = NormKind::layer_norm;
  return out;
}

/// Fitted, one share of the peak for each GPU and precision, on the rows of this table that
/// tests/data/published holds: large products reach it.
struct FittedShares {
  double a100 = 0.75, h100 = 0.59, h100_fp8 = 0.41;
};

/// The first FlashAttention reaches 25 to 40 % on A100, the second 50 to 73 % (Dao 2023,
/// arXiv:2307.08691, abstract) and on H100 35 % (Shah et al. 2024, arXiv:2407.08608, abstract). The
/// first one on H100 by the same proportion.
constexpr double first_flash_a100 = (0.25 + 0.40) / 2;
constexpr double first_flash_h100 = first_flash_a100 * 0.35 / ((0.50 + 0.73) / 2);

TrainingCluster cluster_of(const Row& row) {
  const FittedShares fitted;
  const std::string& gpu = row.text("gpu");
  TrainingCluster out;
  if (gpu == "a100_40gb" || gpu == "a100_80gb") {
    out = a100_cluster(200e9);  // 1600 Gb/s a node, as the section says
    out.device = a100_rates(gpu == "a100_40gb" ? 1.555e12 : 2.039e12);
    out.device.achievable = fitted.a100;
    out.device.attention_forward = out.device.attention_backward = first_flash_a100;
    return out;
  }
  if (gpu != "h100_80gb")
    throw BadTable(row.place() + ": gpu " + gpu + " is none of a100_40gb, a100_80gb, h100_80gb");
  out.device = h100_rates();
  out.net = h100_network();
  out.device.achievable = fitted.h100;
  out.device.attention_forward = out.device.attention_backward = first_flash_h100;
  if (row.text("precision") == "amp_fp8") {
    out.device.wide_peak = out.device.peak;
    out.device.wide_achievable = fitted.h100;
    out.device.peak *= 2;
    out.device.achievable = fitted.h100_fp8;
  }
  return out;
}

Layout layout_of(const Row& row) {
  Layout out;
  out.data = row.integer("gpus");
  out.microbatch = row.integer("mbs");
  out.batch = row.integer("gbs");
  const std::string& sharding = row.text("sharding");
  out.zero = sharding == "FULL_SHARD"      ? ZeroStage::parameters
             : sharding == "SHARD_GRAD_OP" ? ZeroStage::gradients
                                           : ZeroStage::none;
  out.recompute = row.text("recompute") == "full" ? Recompute::full : Recompute::none;
  out.flash_attention = out.causal = true;
  return out;
}

/// FSDP's mixed precision PURE reduces in 16 bits, DEFAULT in f32 (Composer).
Framework llm_foundry(const Row& row) {
  Framework out;
  out.weight_bytes = out.gradient_bytes = 4;
  out.optimizer_bytes = 8;
  out.reduced_bytes = row.text("fsdp_mp") == "PURE" ? 2 : 4;
  out.gathers_layers = true;
  return out;
}

}  // namespace

std::vector<Score> score_mosaicml(const std::filesystem::path& folder) {
  const Table table(folder, "mosaicml_mpt_fsdp");
  Runs runs;
  Errors parameters;
  for (const Row& row : table.sound_rows()) {
    const ArchitectureRun run{mpt_of(row), row.number("seq")};
    parameters.add(static_cast<double>(parameter_count(run.model)), row.number("num_params"));
    const Layout layout = checked(row, run, layout_of(row));
    const double tokens = run.sequence * static_cast<double>(layout.batch) / row.number("gpus");
    runs.add(step_seconds(run, layout, llm_foundry(row), cluster_of(row)).total(),
             tokens / row.number("tokens_per_s_gpu"), device_flops(run, layout));
  }
  Score time = runs.score("mosaicml_mpt_fsdp", "step time", table.size());
  require_mean(time, 0.10);
  time.notes.push_back(
      "fitted: the share of the peak that large products reach, one for A100 bf16, H100 bf16 and "
      "H100 fp8, on the project's copy of the table");
  Score count = parameters.score("mosaicml_mpt_fsdp", "parameters");
  require_exact(count);
  return {time, count};
}

}  // namespace troupe::published
