// PyTorch's torchtitan on A100, H100 and H200: torchtitan_llama. FSDP2 with tensor, pipeline and
// context parallelism, bf16 and float8.
#include <fmt/format.h>

#include <regex>

#include "tests/bench/published/architecture_runs.h"
#include "tests/bench/published/fit.h"

namespace troupe::published {
namespace {

/// "fsdp8 tp8 pp8 cp2": the degree behind this name, 1 where it is not named.
std::uint64_t degree(const Row& row, const std::string& name) {
  std::smatch found;
  const std::string& text = row.text("parallelism");
  if (!std::regex_search(text, found, std::regex(name + "([0-9]+)"))) return 1;
  return std::stoull(found[1]);
}

bool uses(const Row& row, const char* technique) {
  return row.text("technique").find(technique) != std::string::npos;
}

/// "Llama3.1-8B" is llama-3-8b or llama-3.1-8b of models.csv: shapes did not change in between.
Architecture llama_of(const Row& row) {
  std::smatch name;
  const std::string& text = row.text("model");
  if (!std::regex_match(text, name, std::regex("Llama([0-9])(\\.[0-9])?-([0-9]+)B")))
    throw BadTable(row.place() + ": model " + text + " is no Llama such as Llama3.1-8B");
  const std::string major = name[1], size = name[3];
  for (const std::string& version : {major + name[2].str(), major, major + ".1"})
    if (const auto model = find_model("llama-" + version + "-" + size + "b")) return *model;
  throw BadTable(row.place() + ": the shape of " + text + " is not known");
}

/// float8 of every tensor at once or row by row, both with 16-bit outputs.
struct Precision {
  bool float8 = false, rowwise = false;
};

/// GPU, precision and framework: one share of the peak that large products reach is fitted.
std::string group_of(const Row& row, const Precision& precision) {
  const std::string gpu = row.text("gpu").substr(0, 4);
  if (!precision.float8) return gpu + " bf16";
  return gpu + (precision.rowwise ? " float8 by rows" : " float8");
}

/// Meta's H100 have 96 GB of HBM2e at 2.4 TB/s and 500 W (torchtitan, benchmarks/llama3_h100);
/// H200: 4.8 TB/s (NVIDIA). FlashAttention-2 reaches 35 % on H100 (Shah et al. 2024,
/// arXiv:2407.08608, abstract), its backward 63 / 73 of its forward (Dao 2023).
/// `wide`: the share that products kept in 16 bits reach.
TrainingCluster cluster_of(const Row& row, const Precision& precision, double share, double wide) {
  const std::string& gpu = row.text("gpu");
  if (gpu.find("A100") != std::string::npos) {
    TrainingCluster out = a100_cluster(200e9);
    out.device = a100_rates(2.039e12);
    out.device.achievable = share;
    return out;
  }
  TrainingCluster out;
  out.device = h100_rates();
  out.device.memory = gpu.find("H200") != std::string::npos ? 4.8e12 : 2.4e12;
  out.device.attention_forward = 0.35;
  out.device.attention_backward = 0.35 * 63 / 73;
  out.device.achievable = share;
  if (precision.float8) {
    out.device.wide_peak = out.device.peak;
    out.device.wide_achievable = wide;
    out.device.peak *= 2;
  }
  out.net = h100_network();
  return out;
}

Layout layout_of(const Row& row) {
  Layout out;
  out.data = degree(row, "fsdp");
  out.tensor = degree(row, "tp");
  out.pipeline = degree(row, "pp");
  out.context = degree(row, "cp");
  out.sequence_parallel = out.tensor > 1;
  out.batch = row.count("global_batch");
  // A pipeline cuts the local batch into as many microbatches as it has ranks (the default of
  // pipeline_parallel_microbatches); two stages a rank where they are interleaved.
  out.microbatch = row.count("local_batch") / out.pipeline;
  if (uses(row, "interleaved")) out.chunks = 2;
  out.zero = ZeroStage::parameters;
  out.flash_attention = out.causal = true;
  // PyTorch gives each rank a part of the head and of the tail, but the ring of 2, 4 and 8 ranks
  // was as slow as with contiguous parts.
  out.context_balanced = false;
  const std::string& recompute = row.text("recompute");
  if (recompute == "full") {
    out.recompute = Recompute::full;
  } else if (recompute == "selective layer") {
    out.recompute = Recompute::full;
    out.recomputed_blocks = 0.5;
  } else if (recompute != "none") {
    out.alternate_products = true;
  }
  return out;
}

/// f32 parameters, gradients and moments are sharded; 16 bits are gathered, f32 is scattered.
Framework torchtitan(const Row& row) {
  Framework out;
  out.weight_bytes = out.gradient_bytes = out.reduced_bytes = 4;
  out.optimizer_bytes = 8;
  out.update_bytes = 40;  // the norm and its scaling, and fused AdamW: 7 values read or written
  out.fused = uses(row, "compile");
  out.reduction_hidden = out.gather_hidden = true;
  // Asynchronous tensor parallelism cuts a product into one piece a rank; the first one waits.
  if (uses(row, "async")) out.tensor_exposed = 1.0 / static_cast<double>(degree(row, "tp"));
  // In 2025 torchtitan compiles the loss as well: logits and their gradient in 16 bits remain.
  if (row.text("source").find("_2025") != std::string::npos) out.logit_bytes = 4;
  return out;
}

FittedRun run_of(const Row& row, const FittedValues& in_16_bits) {
  const ArchitectureRun run{llama_of(row), row.positive("seq")};
  const Precision precision{uses(row, "float8"), uses(row, "rowwise")};
  const Layout layout = checked(row, run, layout_of(row));
  FittedRun out{row.text("row_id"), group_of(row, precision)};
  out.measured = run.sequence * static_cast<double>(layout.batch) /
                 static_cast<double>(row.count("gpus")) / row.positive("tokens_per_s_gpu");
  out.flops = device_flops(run, layout);
  const double wide =
      precision.float8 ? value_of(in_16_bits, group_of(row, {}), h100_rates().achievable) : 0;
  out.predicted = [=](double share) {
    return step_seconds(run, layout, torchtitan(row), cluster_of(row, precision, share, wide))
        .total();
  };
  return out;
}

}  // namespace

std::vector<Score> score_torchtitan(const std::filesystem::path& folder) {
  const std::string name = "torchtitan_llama";
  const Table table(folder, name);
  const Score time = score_step_times(folder, table, name,
                                      {[](const Row& row) { return uses(row, "float8"); }, run_of});
  Errors memory;
  std::vector<std::string> ignored;
  use_rows(table, ignored, [&](const Row& row) {
    const ArchitectureRun run{llama_of(row), row.positive("seq")};
    if (const auto peak = row.maybe_number("peak_mem_gib"))
      memory.add(step_bytes(run, checked(row, run, layout_of(row)), torchtitan(row)).total() /
                     static_cast<double>(1_GiB),
                 *peak);
  });
  Score peak = memory.score(name, "peak memory");
  peak.left_out = table.size() - memory.count();
  peak.notes.push_back("nothing fitted; published: reserved by the allocator, most of all ranks");
  return {time, peak};
}

}  // namespace troupe::published
