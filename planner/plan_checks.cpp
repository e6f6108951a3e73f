#include "planner/plan_checks.h"
#include "planner/counted.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

namespace troupe {
namespace {

Error refuse(std::string text) {
  return {ErrorCode::invalid_input, "plan: " + std::move(text)};
}

bool holds(double value) {
  return std::isfinite(value) && value >= 0;
}

Status check_measured(const DeviceSpec& device, const LayerSeconds& seconds) {
  for (const Seconds value : {seconds.forward, seconds.backward_input, seconds.backward_weight,
                              seconds.norm, seconds.update})
    if (!holds(value))
      return refuse(fmt::format("device {} was measured at {} s; a time is at least 0 s",
                                device.name, value));
  return {};
}

/// Rates are needed for the layer kinds that were not measured.
Status check_rates(const DeviceSpec& device, DType compute) {
  const DeviceRates& rates = device.rates;
  for (const auto& [name, value] :
       {std::pair{"launch", rates.launch}, std::pair{"action_overhead", rates.action_overhead}})
    if (!holds(value))
      return refuse(fmt::format("device {} has {} = {}; it is a time of at least 0 s", device.name,
                                name, value));
  for (const auto& [kind, seconds] : device.measured) TROUPE_TRY(check_measured(device, seconds));
  for (const auto& [kind, known] : device.measured_by_size)
    for (const auto& [size, seconds] : known) TROUPE_TRY(check_measured(device, seconds));
  if (device.measured.size() == 3) return {};  // every kind of layer
  const bool bf16 = compute == DType::bf16;
  for (const auto& [name, value] :
       {std::pair{bf16 ? "matmul_bf16" : "matmul_f32", bf16 ? rates.matmul_bf16 : rates.matmul_f32},
        std::pair{"vector_f32", rates.vector_f32}, std::pair{"memory", rates.memory}}) {
    if (holds(value) && value > 0) continue;
    if (bf16 && std::string_view(name) == "matmul_bf16" && rates.matmul_f32 > 0)
      return refuse(
          fmt::format("device {} has no rate for bf16 matrix products; compute in f32, "
                      "or leave the device out",
                      device.name));
    return refuse(
        fmt::format("device {} has {} = {} and was not measured; give it a rate above 0 "
                    "(conf/devices.toml has those of known devices), or leave it out",
                    device.name, name, value));
  }
  return {};
}

Status check_link(const LinkSpec& link, const std::string& name) {
  if (std::isinf(link.latency) && link.latency > 0)
    return refuse(
        fmt::format("{} is disconnected: its latency is endless; give it a time, or keep "
                    "the devices that it joins out of one plan",
                    name));
  if (!holds(link.latency))
    return refuse(
        fmt::format("{} has a latency of {} s; it is a time of at least 0 s", name, link.latency));
  if (!holds(link.bandwidth))
    return refuse(fmt::format("{} has a bandwidth of {} bytes/s; it is a rate above 0", name,
                              link.bandwidth));
  return {};
}

Status check_links(const ClusterSpec& cluster) {
  TROUPE_TRY(check_link(cluster.same_process, "the link within a process"));
  TROUPE_TRY(check_link(cluster.between_processes, "the link between processes"));
  const std::size_t count = cluster.devices.size();
  for (const auto& [ends, link] : cluster.overrides) {
    const auto [from, to] = ends;
    if (from >= count || to >= count)
      return refuse(fmt::format("a link joins devices {} and {}, but there {} {}", from, to,
                                count == 1 ? "is" : "are", counted(count, "device")));
    const std::string name =
        fmt::format("the link from {} to {}", cluster.devices[from].name, cluster.devices[to].name);
    TROUPE_TRY(check_link(link, name));
    if (link.bandwidth == 0 && cluster.crosses_processes(DeviceId{from}, DeviceId{to}))
      return refuse(
          fmt::format("{} is disconnected: it has no bandwidth, and the two are in "
                      "different processes; give it one, or leave out {} or {}",
                      name, cluster.devices[from].name, cluster.devices[to].name));
  }
  return {};
}

}  // namespace

bool computes_again(const PlanOptions& options) {
  if (options.pinned.empty()) return options.recompute != Recompute::none;
  return std::any_of(options.pinned.begin(), options.pinned.end(),
                     [](const StagePlan& stage) { return !stage.recompute.none(); });
}

Status check_request(const ModelSpec& model,
                     const ClusterSpec& cluster,
                     const PlanOptions& options) {
  TROUPE_TRY(validate(model));
  if (cluster.devices.empty()) return refuse("there is no device; at least 1 is needed");
  for (const DeviceSpec& device : cluster.devices) {
    if (device.node.index() >= cluster.nodes.size())
      return refuse(fmt::format("device {} is on node {}, but there are {} nodes", device.name,
                                device.node.value, cluster.nodes.size()));
    if (device.memory == 0)
      return refuse(
          fmt::format("device {} has no memory; give it some, or leave it out", device.name));
    TROUPE_TRY(check_rates(device, options.shape.compute));
  }
  TROUPE_TRY(check_links(cluster));
  if (options.shape.microbatch_count == 0)
    return refuse("microbatch_count is 0; at least 1 is needed");
  if (options.transfer_slots == 0) return refuse("transfer_slots is 0; at least 1 is needed");
  if (options.schedule == ScheduleKind::zero_bubble_h1 && !options.choose_schedule &&
      !options.choose_recompute && computes_again(options))
    return refuse(
        "zero-bubble H1 cuts the backward in two, and a cut one computes nothing again; nearest: "
        "schedule = \"1f1b\", or recompute = \"none\"");
  if (options.chunks == 0) return refuse("chunks is 0; at least 1 is needed");
  if (options.schedule == ScheduleKind::interleaved && options.chunks > layer_count(model))
    return refuse(
        fmt::format("{} chunks of {} layers (embedding and head are layers too); "
                    "the most is {}",
                    options.chunks, layer_count(model), layer_count(model)));
  return {};
}

}  // namespace troupe
