// Step time and memory of measured pipelines on mixed clusters, from the layer profiles and link
// bandwidths of the same source: sailor_measured.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <tuple>

#include "planner/profiled_pipeline.h"
#include "tests/bench/published/fit.h"

namespace troupe::published {
namespace {

// NCCL's buffer per connection (NCCL_BUFFSIZE): what fits is sent without the receiver.
constexpr double buffer_bytes = 4.0 * 1024 * 1024;
// Driver, kernels and communicators on GH200: as the source of the table says. On other devices it
// is fitted.
constexpr double gh200_context = 5e9;

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> out;
  std::stringstream in(text);
  for (std::string part; std::getline(in, part, separator);) {
    const auto first = part.find_first_not_of(' ');
    const auto last = part.find_last_not_of(' ');
    if (first != std::string::npos) out.push_back(part.substr(first, last - first + 1));
  }
  return out;
}

struct Memory {
  double parameters = 0, kept = 0;
};

struct Inputs {
  // (model, gpu, tp, layer) -> microbatch size -> seconds
  std::map<std::tuple<std::string, std::string, std::uint64_t, std::uint64_t>,
           std::map<std::uint64_t, ProfiledStage>>
      layers;
  std::map<std::pair<std::string, std::string>, std::uint64_t> last_layer;  // of the profile
  std::map<std::tuple<std::string, std::uint64_t, std::uint64_t>, Memory> memory;
  std::map<std::pair<std::string, std::uint64_t>, BandwidthCurve> links;

  explicit Inputs(const std::filesystem::path& folder) {
    const Table profiles(folder, "sailor_layer_profiles");
    for (const Row& row : profiles.sound_rows()) {
      for (std::uint64_t l = row.integer("layer_from"); l <= row.integer("layer_to"); ++l)
        layers[{row.text("model"), row.text("gpu"), row.count("tp"), l}][row.count("mbs")] = {
            row.number("fwd_s"), row.number("bwd_s"), row.number("update_s")};
      auto& last = last_layer[{row.text("model"), row.text("gpu")}];
      last = std::max(last, row.integer("layer_to"));
    }
    const Table sizes(folder, "sailor_layer_memory");
    for (const Row& row : sizes.sound_rows())
      for (std::uint64_t l = row.integer("layer_from"); l <= row.integer("layer_to"); ++l)
        memory[{row.text("model"), row.count("tp"), l}] = {row.number("params_bytes"),
                                                           row.number("act_mem_bytes")};
    const Table network(folder, "sailor_network");
    for (const Row& row : network.sound_rows())
      if (row.text("link") == "inter")
        links[{row.text("gpu"), row.count("gpus_sharing")}] = {
            row.number("coef2"), row.number("coef1"), row.number("coef0"),
            row.number("max_bw_bytes_s"), 1e6};
  }

  // More sequences never take less time: where a profile says so, its small sizes were measured
  // cold, and the smallest figure of this or a larger size holds.
  const ProfiledStage* layer(const std::string& model,
                             const std::string& gpu,
                             std::uint64_t tp,
                             std::uint64_t l,
                             std::uint64_t mbs,
                             ProfiledStage& out) const {
    const auto found = layers.find({model, gpu, tp, l});
    if (found == layers.end() || !found->second.contains(mbs)) return nullptr;
    out = found->second.at(mbs);
    for (auto at = found->second.find(mbs); at != found->second.end(); ++at) {
      out.forward = std::min(out.forward, at->second.forward);
      out.backward = std::min(out.backward, at->second.backward);
    }
    return &out;
  }
};

struct Plan {
  std::string model;
  std::uint64_t tp = 1, mbs = 1, microbatches = 1, layers = 0;
  double hidden = 0, seq = 0;
  std::vector<std::uint64_t> layers_per_stage;
  std::vector<std::vector<std::string>> gpus;  // by stage and replica
};

Plan plan_of(const Row& row) {
  Plan plan;
  plan.model = row.text("model");
  plan.tp = row.count("tp");
  plan.mbs = row.count("mbs");
  plan.hidden = row.number("hidden");
  plan.seq = row.number("seq");
  for (const std::string& part : split(row.text("layers_per_stage"), '|')) {
    plan.layers_per_stage.push_back(std::stoull(part));
    plan.layers += plan.layers_per_stage.back();
  }
  for (const std::string& stage : split(row.text("stage_devices"), ';')) {
    plan.gpus.emplace_back();
    for (const std::string& device : split(stage, '+'))
      plan.gpus.back().push_back(device.substr(0, device.find(':')));
  }
  const std::uint64_t dp = row.integer("dp");
  if (dp == 0 || plan.mbs == 0 || plan.layers_per_stage.size() != plan.gpus.size())
    throw BadTable(row.place() + ": stages, replicas and devices disagree");
  // Some rows list a device more than there are replicas: the first dp count.
  for (auto& stage : plan.gpus) {
    if (stage.size() < dp) throw BadTable(row.place() + ": fewer devices than replicas");
    stage.resize(dp);
  }
  plan.microbatches = std::max<std::uint64_t>(1, row.count("gbs") / dp / plan.mbs);
  return plan;
}

// The text says what is missing.
Result<ProfiledPipeline> pipeline_of(const Plan& plan, const Inputs& inputs) {
  const auto missing = [](std::string text) {
    return Error{ErrorCode::not_found, std::move(text)};
  };
  ProfiledPipeline out;
  out.microbatch_count = static_cast<std::uint32_t>(plan.microbatches);
  const auto link = [&](const std::string& gpu, std::uint64_t sharing) -> const BandwidthCurve* {
    const auto found = inputs.links.find({gpu, sharing});
    return found == inputs.links.end() ? nullptr : &found->second;
  };
  const std::size_t stages = plan.gpus.size(), replicas = plan.gpus[0].size();
  // One tensor-parallel group sends its boundary tensor once, each device its slice; DeepSpeed's
  // pipeline sends the attention mask (one byte an entry) whole from every device, and no gradient
  // of it comes back. The slices of a group go one after the other over one adapter.
  const double slice = plan.hidden * plan.seq * static_cast<double>(plan.mbs) * 4;
  const double mask = plan.seq * plan.seq;
  const auto tp = static_cast<double>(plan.tp);
  for (std::size_t d = 0; d < replicas; ++d) {
    ProfiledReplica replica;
    std::uint64_t first = 0;
    for (std::size_t s = 0; s < stages; ++s) {
      const std::string& gpu = plan.gpus[s][d];
      const auto last = inputs.last_layer.find({plan.model, gpu});
      if (last == inputs.last_layer.end() || last->second + 1 != plan.layers)
        return missing(
            fmt::format("no profile of {} with {} layers on {}", plan.model, plan.layers, gpu));
      ProfiledStage sum;
      for (std::uint64_t l = first; l < first + plan.layers_per_stage[s]; ++l) {
        ProfiledStage one;
        if (inputs.layer(plan.model, gpu, plan.tp, l, plan.mbs, one) == nullptr)
          return missing(fmt::format("no profile of {} on {} at tp {} and microbatches of {}",
                                     plan.model, gpu, plan.tp, plan.mbs));
        sum.forward += one.forward;
        sum.backward += one.backward;
        sum.update += one.update;
      }
      first += plan.layers_per_stage[s];
      replica.stages.push_back(sum);
      if (s + 1 == stages) break;
      const BandwidthCurve* here = link(gpu, 1);
      const BandwidthCurve* there = link(plan.gpus[s + 1][d], 1);
      if (here == nullptr || there == nullptr) return missing("no bandwidth of " + gpu);
      replica.edges.push_back({message_seconds(*here, *there, slice + tp * mask),
                               message_seconds(*here, *there, slice),
                               std::max(slice / tp, mask) <= buffer_bytes});
    }
    out.replicas.push_back(std::move(replica));
  }
  std::uint64_t first = 0;
  for (std::size_t s = 0; s < stages; ++s) {
    double bytes = 0;
    for (std::uint64_t l = first; l < first + plan.layers_per_stage[s]; ++l) {
      const auto found = inputs.memory.find({plan.model, plan.tp, l});
      if (found == inputs.memory.end())
        return missing(fmt::format("no sizes of {} at tp {}", plan.model, plan.tp));
      bytes += found->second.parameters * tp;
    }
    first += plan.layers_per_stage[s];
    BytesPerSecond slowest = 1e18;
    for (const std::string& gpu : plan.gpus[s]) {
      const BandwidthCurve* curve = link(gpu, plan.tp);
      if (curve == nullptr) return missing("no bandwidth of " + gpu);
      slowest = std::min(slowest, curve->at(bytes));
    }
    out.synchronise.push_back(
        ring_all_reduce_seconds(slowest, bytes, static_cast<std::uint32_t>(replicas)));
  }
  return out;
}

bool on_gh200(const Plan& plan) {
  for (const auto& stage : plan.gpus)
    for (const std::string& gpu : stage)
      if (gpu == "GH-96") return true;
  return false;
}

Result<double> memory_of(const Plan& plan, const Inputs& inputs, double context) {
  std::vector<double> parameters, kept;
  std::uint64_t l = 0;
  for (const std::uint64_t count : plan.layers_per_stage) {
    parameters.push_back(0);
    kept.push_back(0);
    for (const std::uint64_t end = l + count; l < end; ++l) {
      const auto found = inputs.memory.find({plan.model, plan.tp, l});
      if (found == inputs.memory.end())
        return Error{ErrorCode::not_found,
                     fmt::format("no sizes of {} at tp {}", plan.model, plan.tp)};
      parameters.back() += found->second.parameters;
      kept.back() += found->second.kept * static_cast<double>(plan.mbs);
    }
  }
  return fullest_stage_bytes(parameters, kept, static_cast<std::uint32_t>(plan.microbatches),
                             {context, allocator_share});
}

/// Runs whose memory can be predicted; the others' reasons go to `notes`.
std::vector<FittedRun> memory_runs(const Table& table,
                                   const Inputs& inputs,
                                   std::vector<std::string>& notes) {
  std::vector<FittedRun> out;
  use_rows(table, notes, [&](const Row& row) {
    const std::string id = row.text("row_id");
    const Plan plan = plan_of(row);
    const auto bytes = memory_of(plan, inputs, gh200_context);
    // Such a row's own note says that its memory belongs to another tp.
    const bool uncertain = row.text("note").find("uncertain") != std::string::npos;
    if (!bytes || uncertain) {
      notes.push_back(id + ": " + (bytes ? "its note calls tp uncertain" : bytes.error().text));
      return;
    }
    const bool gh200 = on_gh200(plan);
    FittedRun one{id, gh200 ? "GH200" : "RTX"};
    one.measured = row.number("max_mem_bytes");
    one.predicted = [=, &inputs](double context) {
      return *memory_of(plan, inputs, gh200 ? gh200_context : context);
    };
    out.push_back(checked(one, gh200_context));
  });
  declare_every_fifth(out);
  for (FittedRun& run : out) run.declared = run.declared && run.group != "GH200";
  return out;
}

/// Context of RTX devices is fitted.
Score score_memory(const Table& table, const Inputs& inputs) {
  std::vector<std::string> notes;
  const std::vector<FittedRun> runs = memory_runs(table, inputs, notes);
  const FitRange context{0.2e9, 8e9, gh200_context};
  const FittedValues values = fit_values(runs, context);
  Score out = score_fitted(runs, values, context, "sailor_measured", "peak memory", table.size());
  out.median.reset();
  require_mean(out, 0.056);
  out.notes = {"one value, bytes of context on RTX devices, on every fifth of their rows: " +
               to_text(values) + "; on GH200 5 GB as the source says"};
  for (const FittedRun& run : runs)
    out.notes.push_back(
        fmt::format("{}: predicted {:.2f} GB, measured {:.2f} GB{}", run.id,
                    run.predicted(value_of(values, run.group, context.unfitted)) / 1e9,
                    run.measured / 1e9, run.declared ? ", fitting data" : ""));
  out.notes.insert(out.notes.end(), notes.begin(), notes.end());
  return out;
}

Score score_time(const Table& table, const Inputs& inputs, bool mixed) {
  Errors errors;
  std::vector<std::string> notes, unusable;
  use_rows(table, unusable, [&](const Row& row) {
    if (row.flag("heterogeneous") != mixed) return;
    const std::string id = row.text("row_id");
    const auto pipeline = pipeline_of(plan_of(row), inputs);
    if (!pipeline) {
      notes.push_back(id + ": " + pipeline.error().text);
      return;
    }
    const double predicted = step_seconds(*pipeline), measured = row.number("iter_time_s");
    errors.add(predicted, measured);
    notes.push_back(fmt::format("{}: predicted {:.3f} s, measured {:.3f} s, {:+.1f} %", id,
                                predicted, measured, (predicted / measured - 1) * 100));
  });
  Score out =
      errors.score("sailor_measured", mixed ? "step time, mixed devices"
                                            : "step time, one kind of device, rows with a profile");
  require_mean(out, mixed ? 0.045 : 0.06);
  out.left_out = notes.size() - errors.count() + unusable.size();
  notes.insert(notes.begin(), "nothing fitted");
  notes.insert(notes.end(), unusable.begin(), unusable.end());
  out.notes = std::move(notes);
  return out;
}

}  // namespace

std::vector<Score> score_sailor(const std::filesystem::path& folder) {
  const Table table(folder, "sailor_measured");
  const Inputs inputs(folder);
  return {score_time(table, inputs, true), score_time(table, inputs, false),
          score_memory(table, inputs)};
}

}  // namespace troupe::published
