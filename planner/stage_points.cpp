#include "planner/stage_points.h"

#include <fmt/format.h>

#include <algorithm>

#include "planner/counted.h"
#include "planner/stage_memory.h"
#include "planner/step_costs.h"

namespace troupe {
namespace {

double real_bytes(Bytes bytes) {
  return static_cast<double>(bytes);
}

/// What one action moves, in bytes.
struct Moves {
  double up = 0, down = 0;       ///< over the device's way to its host
  double host = 0;               ///< read and written in host memory by arithmetic there
  double read = 0, written = 0;  ///< on disk
  /// Out of `tier` to the device, or to arithmetic of the host.
  void fetch(StateTier tier, double bytes, bool to_device = true) {
    if (tier == StateTier::device) return;
    if (to_device) down += bytes;
    if (tier == StateTier::disk) read += bytes;
  }
  void store(StateTier tier, double bytes, bool from_device = true) {
    if (tier == StateTier::device) return;
    if (from_device) up += bytes;
    if (tier == StateTier::disk) written += bytes;
  }
};

Seconds seconds_of(const Moves& moves, const TierShare& share) {
  const auto at = [](double bytes, BytesPerSecond rate) { return rate > 0 ? bytes / rate : 0.0; };
  // Every byte that crosses the link or the disk is read or written in host memory too.
  const double touched = moves.up + moves.down + moves.host + moves.read + moves.written;
  if (touched == 0) return 0;
  return share.link.latency +
         std::max({at(moves.up, share.link.bandwidth), at(moves.down, share.link.bandwidth),
                   at(touched, share.host_rate),
                   at(moves.read, share.disk_read) + at(moves.written, share.disk_write)});
}

/// Puts the time of an action in, and how much of it is waiting.
void take(Seconds& seconds, Seconds& waits, Seconds arithmetic, Seconds moving) {
  seconds = std::max(arithmetic, moving);
  waits = seconds - arithmetic;
}

/// As quick in every action.
bool covers(const StagePoint& a, const StagePoint& b) {
  const LayerSeconds& x = a.seconds;
  const LayerSeconds& y = b.seconds;
  return x.forward <= y.forward &&
         x.backward_input + x.backward_weight <= y.backward_input + y.backward_weight &&
         x.norm <= y.norm && x.update <= y.update;
}

/// Where states lie that leave the device: the host's memory, or the disk behind buffers.
void put(StagePoint& point, StateTier tier, Bytes bytes, Bytes buffers) {
  if (tier == StateTier::host) point.host += bytes;
  if (tier != StateTier::disk) return;
  point.disk += bytes;
  point.host += std::min(bytes, 2 * buffers);
}

std::string_view place_of(StateTier tier) {
  return tier == StateTier::host ? "in host memory" : "on disk";
}

}  // namespace

std::string to_text(const StageChoices& choices) {
  std::string text;
  const auto add = [&](const std::string& one) { text += (text.empty() ? "" : ", ") + one; };
  const auto [full, selective] = choices.recompute;
  const auto again = [](std::uint32_t blocks) {
    return counted(blocks, "block") + (blocks == 1 ? " computes" : " compute");
  };
  if (full > 0) add(again(full) + " again");
  if (selective > 0) add(again(selective) + " again selectively");
  for (const auto& [what, tier] : {std::pair{"weights", choices.weights},
                                   {"gradients", choices.gradients},
                                   {"optimizer", choices.optimizer},
                                   {"activations", choices.activations}})
    if (tier != StateTier::device) add(fmt::format("{} {}", what, place_of(tier)));
  if (choices.host_update) add("updated by the host");
  return text;
}

void StagePoints::Again::add(Bytes less, Seconds longer, Bytes needs) {
  saved.push_back(saved.back() + less);
  seconds.push_back(seconds.back() + longer);
  workspace.push_back(needs);
}

void StagePoints::Again::repeat() {
  add(saved_of(0, 1), seconds_of(0, 1), workspace.front());
}

Bytes StagePoints::Again::saved_of(std::uint32_t first, std::uint32_t count) const {
  return count == 0 ? 0 : saved.at(first + count) - saved.at(first);
}

Seconds StagePoints::Again::seconds_of(std::uint32_t first, std::uint32_t count) const {
  return count == 0 ? 0 : seconds.at(first + count) - seconds.at(first);
}

Bytes StagePoints::Again::workspace_of(std::uint32_t first, std::uint32_t count, bool alike) const {
  if (count == 0) return 0;
  const auto begin = workspace.begin() + first;
  return alike ? *begin : *std::max_element(begin, begin + count);
}

StagePoints::StagePoints(const ModelSpec& model,
                         const ClusterSpec& cluster,
                         const ModelProfile& profile,
                         DType compute,
                         StageFreedom freedom)
    : model_(model),
      cluster_(cluster),
      profile_(profile),
      compute_(compute),
      freedom_(freedom),
      shares_(tier_shares(cluster)) {}

StagePoints::Stage StagePoints::stage_of(DeviceId device, LayerRange layers) const {
  const DeviceSpec& spec = cluster_.devices.at(device.index());
  Stage stage;
  stage.memory = stage_memory(model_, profile_, layers, 1, 0);
  stage.arithmetic = stage_seconds(spec, model_, profile_, layers, compute_);
  for (std::uint32_t l = layers.first; l < layers.last; ++l) {
    const LayerProfile& layer = profile_.layer(model_, l);
    // Arithmetic in 16 bits reads the copies alone; the vectors, which have none, are small.
    stage.moved_weights += compute_ == DType::bf16 && layer.weight_bytes > layer.gradient_bytes
                               ? layer.weight_bytes - layer.gradient_bytes
                               : layer.weight_bytes;
    stage.largest_weights = std::max(stage.largest_weights, layer.weight_bytes);
    stage.largest_gradients = std::max(stage.largest_gradients, layer.gradient_bytes);
    stage.largest_optimizer = std::max(stage.largest_optimizer, layer.optimizer_bytes);
    stage.update_bytes += real_bytes(layer.update.bytes_moved);
    if (layer.kind != LayerKind::block || !freedom_.recompute) continue;
    if (++stage.blocks > 1 && blocks_alike()) {
      stage.full.repeat();
      stage.selective.repeat();
      continue;
    }
    const Seconds forward = layer_seconds(spec, layer, compute_).forward;
    for (const auto& [policy, again] : {std::pair{Recompute::full, &stage.full},
                                        std::pair{Recompute::selective, &stage.selective}}) {
      const LayerProfile made = recomputed(layer, policy);
      again->add(layer.saved_bytes - made.saved_bytes,
                 again_seconds(made, forward, spec.rates, compute_),
                 std::max(made.forward_workspace_bytes, made.backward_workspace_bytes));
    }
  }
  return stage;
}

StagePoint StagePoints::priced(DeviceId device,
                               const Stage& stage,
                               std::uint32_t in_flight,
                               Bytes edges,
                               const StageChoices& choices) const {
  const TierShare& share = shares_.at(device.index());
  const StateTier weights = choices.weights, gradients = choices.gradients,
                  optimizer = choices.optimizer, activations = choices.activations;
  StagePoint out;
  out.choices = choices;
  LayerSeconds arithmetic = stage.arithmetic;
  Bytes saved = stage.memory.activations;
  Bytes workspace = stage.memory.workspace;
  const auto [full, selective] = choices.recompute;
  saved -= stage.full.saved_of(0, full) + stage.selective.saved_of(full, selective);
  workspace = std::max({workspace, stage.full.workspace_of(0, full, blocks_alike()),
                        stage.selective.workspace_of(full, selective, blocks_alike())});
  arithmetic.backward_input +=
      stage.full.seconds_of(0, full) + stage.selective.seconds_of(full, selective);

  Moves forward, backward, norm, update;
  const double kept = real_bytes(saved), gradient = real_bytes(stage.memory.gradients);
  forward.fetch(weights, real_bytes(stage.moved_weights));
  forward.store(activations, kept);
  backward.fetch(weights, real_bytes(stage.moved_weights));
  backward.fetch(activations, kept);
  if (gradients != StateTier::device) {
    // They are added to the sum there, which is read and written.
    backward.up += gradient;
    backward.host += 2 * gradient;
    backward.fetch(gradients, gradient, false);
    backward.store(gradients, gradient, false);
    norm.host += gradient;
    norm.fetch(gradients, gradient, false);
  }
  const double state = real_bytes(stage.memory.optimizer);
  const double all_weights = real_bytes(stage.memory.weights);
  const bool on_host = choices.host_update;
  update.fetch(optimizer, state, !on_host);
  update.store(optimizer, state, !on_host);
  update.fetch(gradients, gradient, !on_host);
  update.fetch(weights, all_weights, !on_host);
  update.store(weights, all_weights, !on_host);
  if (on_host) {
    update.host += stage.update_bytes;
    if (gradients == StateTier::device) update.up += gradient;
    if (weights == StateTier::device) update.down += gradient;
  }

  take(out.seconds.forward, out.waits.forward, arithmetic.forward, seconds_of(forward, share));
  take(out.seconds.backward_input, out.waits.backward_input,
       arithmetic.backward_input + arithmetic.backward_weight, seconds_of(backward, share));
  out.seconds.backward_weight = arithmetic.backward_weight;
  out.seconds.backward_input -= arithmetic.backward_weight;
  take(out.seconds.norm, out.waits.norm, gradients == StateTier::device ? arithmetic.norm : 0,
       seconds_of(norm, share));
  take(out.seconds.update, out.waits.update, on_host ? 0 : arithmetic.update,
       seconds_of(update, share));

  const auto held = [](StateTier tier, Bytes bytes, Bytes largest) {
    return tier == StateTier::device ? bytes : std::min(bytes, 2 * largest);
  };
  out.memory.weights = held(weights, stage.memory.weights, stage.largest_weights);
  out.memory.gradients = held(gradients, stage.memory.gradients, stage.largest_gradients);
  out.memory.optimizer =
      on_host ? 0 : held(optimizer, stage.memory.optimizer, stage.largest_optimizer);
  const std::uint32_t here = activations == StateTier::device ? in_flight : std::min(in_flight, 2u);
  out.memory.activations = here * saved;
  out.memory.workspace = workspace;
  out.memory.transfer = edges;
  put(out, weights, stage.memory.weights, stage.largest_weights);
  put(out, gradients, stage.memory.gradients, stage.largest_gradients);
  put(out, optimizer, stage.memory.optimizer, stage.largest_optimizer);
  put(out, activations, (in_flight - here) * saved, saved);
  return out;
}

StagePoint StagePoints::point(DeviceId device,
                              LayerRange layers,
                              std::uint32_t in_flight,
                              Bytes edges,
                              const StageChoices& choices) const {
  return priced(device, stage_of(device, layers), in_flight, edges, choices);
}

bool StagePoints::fits(DeviceId device, const StagePoint& point) const {
  const TierShare& share = shares_.at(device.index());
  return point.memory.total() <= cluster_.devices.at(device.index()).memory &&
         point.host <= share.host && point.disk <= share.disk;
}

std::vector<StageChoices> StagePoints::placements(const TierShare& share,
                                                  std::uint32_t in_flight) const {
  std::vector<StateTier> tiers{StateTier::device};
  for (const StateTier tier : {StateTier::host, StateTier::disk})
    if (freedom_.tiers && share.has(tier)) tiers.push_back(tier);
  std::vector<StageChoices> all;
  for (const StateTier weights : tiers)
    for (const StateTier gradients : tiers)
      for (const StateTier optimizer : tiers)
        for (const StateTier activations : tiers) {
          if (activations != StateTier::device && in_flight <= 2) continue;
          StageChoices one{{}, weights, gradients, optimizer, activations, false};
          all.push_back(one);
          if (optimizer == StateTier::device) continue;
          one.host_update = true;
          all.push_back(one);
        }
  return all;
}

std::vector<StagePoint> StagePoints::front(DeviceId device,
                                           LayerRange layers,
                                           std::uint32_t in_flight,
                                           Bytes edges) const {
  const Stage stage = stage_of(device, layers);
  std::vector<StagePoint> kept;
  const auto offer = [&](const StageChoices& choices) {
    StagePoint point = priced(device, stage, in_flight, edges, choices);
    if (!fits(device, point)) return false;
    const bool known = std::any_of(kept.begin(), kept.end(),
                                   [&](const StagePoint& one) { return covers(one, point); });
    if (!known) {
      std::erase_if(kept, [&](const StagePoint& one) { return covers(point, one); });
      kept.push_back(point);
    }
    return true;
  };
  const auto fits_with = [&](StageChoices choices, StageRecompute recompute) {
    choices.recompute = recompute;
    return fits(device, priced(device, stage, in_flight, edges, choices));
  };
  const std::uint32_t blocks = stage.blocks;
  const std::uint32_t eighth = std::max(1u, blocks / 8);
  bool fits_plain = false;
  for (StageChoices choices : placements(shares_.at(device.index()), in_flight)) {
    const bool moved = choices.activations != StateTier::device;
    // Where everything fits, the host may still be quicker with the optimizer.
    if (fits_plain && (moved || !choices.host_update)) continue;
    for (std::uint32_t full = 0; full <= blocks; full += moved ? eighth : 1) {
      choices.recompute = {full, 0};
      const bool fit = offer(choices);
      fits_plain |= fit && choices.plain();
      if (moved) continue;
      // More blocks only take longer, where nothing waits for what they leave out.
      if (fit) break;
      // As few of the others as it takes, selectively: beyond the first, each only leaves out more.
      std::uint32_t enough = blocks - full, least = 1;
      if (enough == 0 || !fits_with(choices, {full, enough})) continue;
      while (least < enough) {
        const std::uint32_t half = least + (enough - least) / 2;
        if (fits_with(choices, {full, half}))
          enough = half;
        else
          least = half + 1;
      }
      choices.recompute = {full, enough};
      offer(choices);
    }
  }
  return kept;
}

std::optional<StagePoint> StagePoints::quickest(DeviceId device,
                                                LayerRange layers,
                                                std::uint32_t in_flight,
                                                Bytes edges,
                                                std::uint32_t microbatches) const {
  std::optional<StagePoint> best;
  const auto busy = [&](const StagePoint& point) { return step_sum(point.seconds, microbatches); };
  for (const StagePoint& point : front(device, layers, in_flight, edges))
    if (!best || busy(point) < busy(*best)) best = point;
  return best;
}

}  // namespace troupe
