// MosaicML's llm-foundry on A100 and H100: mosaicml_mpt_fsdp. FSDP without compilation, the first
// FlashAttention in Triton.
#include <map>

#include "tests/bench/published/architecture_runs.h"
#include "tests/bench/published/fit.h"

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
  out.context = out.position_rows = static_cast<std::uint32_t>(row.count("seq"));
  out.position = PositionKind::learned;
  out.tied = true;
  out.norm = NormKind::layer_norm;
  return out;
}

/// The first FlashAttention reaches 25 to 40 % on A100, the second 50 to 73 % (Dao 2023,
/// arXiv:2307.08691, abstract) and on H100 35 % (Shah et al. 2024, arXiv:2407.08608, abstract). The
/// first one on H100 by the same proportion.
constexpr double first_flash_a100 = (0.25 + 0.40) / 2;
constexpr double first_flash_h100 = first_flash_a100 * 0.35 / ((0.50 + 0.73) / 2);

/// GPU, precision and framework: one share of the peak that large products reach is fitted.
std::string group_of(const Row& row, bool fp8) {
  return row.text("gpu").substr(0, 4) + (fp8 ? " fp8" : " bf16");
}

bool is_fp8(const Row& row) {
  return row.text("precision") == "amp_fp8";
}

/// `wide`: the share that products kept in 16 bits reach.
TrainingCluster cluster_of(const Row& row, double share, double wide) {
  const std::string& gpu = row.text("gpu");
  TrainingCluster out;
  if (gpu == "a100_40gb" || gpu == "a100_80gb") {
    out = a100_cluster(200e9);  // 1600 Gb/s a node, as the section says
    out.device = a100_rates(gpu == "a100_40gb" ? 1.555e12 : 2.039e12);
    out.device.achievable = share;
    out.device.attention_forward = out.device.attention_backward = first_flash_a100;
    return out;
  }
  if (gpu != "h100_80gb")
    throw BadTable(row.place() + ": gpu " + gpu + " is none of a100_40gb, a100_80gb, h100_80gb");
  out.device = h100_rates();
  out.net = h100_network();
  out.device.achievable = share;
  out.device.attention_forward = out.device.attention_backward = first_flash_h100;
  if (is_fp8(row)) {
    out.device.wide_peak = out.device.peak;
    out.device.wide_achievable = wide;
    out.device.peak *= 2;
  }
  return out;
}

Layout layout_of(const Row& row) {
  Layout out;
  out.data = row.count("gpus");
  out.microbatch = row.count("mbs");
  out.batch = row.count("gbs");
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

FittedRun run_of(const Row& row, const FittedValues& in_16_bits) {
  const ArchitectureRun run{mpt_of(row), row.positive("seq")};
  const Layout layout = checked(row, run, layout_of(row));
  FittedRun out{row.text("row_id"), group_of(row, is_fp8(row))};
  out.measured = run.sequence * static_cast<double>(layout.batch) /
                 static_cast<double>(row.count("gpus")) / row.positive("tokens_per_s_gpu");
  out.flops = device_flops(run, layout);
  const double wide = value_of(in_16_bits, group_of(row, false), h100_rates().achievable);
  out.predicted = [=](double share) {
    return step_seconds(run, layout, llm_foundry(row), cluster_of(row, share, wide)).total();
  };
  return out;
}

}  // namespace

std::vector<Score> score_mosaicml(const std::filesystem::path& folder) {
  const std::string name = "mosaicml_mpt_fsdp";
  const Table table(folder, name);
  const Score time = score_step_times(folder, table, name, {is_fp8, run_of});
  Errors parameters;
  std::vector<std::string> ignored;
  use_rows(table, ignored, [&](const Row& row) {
    parameters.add(static_cast<double>(parameter_count(mpt_of(row))), row.number("num_params"));
  });
  Score count = parameters.score(name, "parameters");
  require_exact(count);
  return {time, count};
}

}  // namespace troupe::published
