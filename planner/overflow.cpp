#include "planner/overflow.h"

#include <fmt/format.h>

#include <algorithm>

#include "planner/memory.h"
#include "planner/stage_memory.h"
#include "planner/step_costs.h"
#include "planner/strategies.h"

namespace troupe {
namespace {

struct StageNeed {
  std::uint32_t in_flight = 1;
  Bytes each = 0;           ///< of one microbatch in flight
  std::uint32_t units = 0;  ///< microbatches that have to go
};

struct Way {
  Seconds seconds = 0;  ///< of one microbatch, one direction
  std::uint32_t stage = 0, to = 0;
};

class Shipping {
 public:
  Shipping(const std::vector<StagePlan>& stages, const PlanRequest& request)
      : stages_(stages), request_(request), room_(request.cluster.devices.size()) {
    for (std::size_t d = 0; d < room_.size(); ++d) room_[d] = request.cluster.devices[d].memory;
  }

  std::optional<Overflow> run() {
    for (std::uint32_t s = 0; s < stages_.size(); ++s)
      if (!take(s)) return std::nullopt;
    Overflow made;
    for (const Way& way : ways()) {
      StageNeed& need = needs_[way.stage];
      const auto fit = static_cast<std::uint32_t>(
          std::min<Bytes>(need.units, room_[way.to] / std::max<Bytes>(need.each, 1)));
      if (fit == 0) continue;
      need.units -= fit;
      room_[way.to] -= fit * need.each;
      made.shipments.push_back({way.stage, DeviceId{way.to}, fit, fit * need.each});
    }
    for (const StageNeed& need : needs_)
      if (need.units > 0) return std::nullopt;
    made.exposed = exposed(made);
    return made;
  }

 private:
  /// What stage s leaves of its device, or how many microbatches it is over by.
  bool take(std::uint32_t s) {
    const auto count = static_cast<std::uint32_t>(stages_.size());
    StageMap map;
    map.tied = request_.model.tied;
    map.transfer_slots = request_.options.transfer_slots;
    for (const StagePlan& stage : stages_) map.device_of_stage.push_back(stage.device);
    StageNeed need;
    need.in_flight = std::min(count - s, request_.options.shape.microbatch_count);
    const auto bytes = [&](std::uint32_t flight) {
      return stage_memory(request_.model, request_.profile, stages_[s].layers, flight, 0,
                          stages_[s].recompute)
          .total();
    };
    need.each = bytes(1) - bytes(0);
    const Bytes all =
        bytes(need.in_flight) + edge_bytes(edge_buffers(StageId{s}, map, request_.cluster),
                                           request_.model, request_.profile);
    Bytes& room = room_[stages_[s].device.index()];
    if (all <= room) {
      room -= all;
    } else {
      need.units = static_cast<std::uint32_t>((all - room + need.each - 1) / need.each);
      room = 0;
    }
    needs_.push_back(need);
    return need.units == 0 || need.units + 2 <= need.in_flight;
  }

  /// From stages that are over to devices with room, the quickest first.
  std::vector<Way> ways() const {
    std::vector<Way> all;
    for (std::uint32_t s = 0; s < needs_.size(); ++s)
      for (std::uint32_t d = 0; needs_[s].units > 0 && d < room_.size(); ++d) {
        if (room_[d] < needs_[s].each) continue;
        const DeviceId from = stages_[s].device;
        const Seconds out =
            transfer_seconds(request_.cluster.link(from, DeviceId{d}), needs_[s].each);
        const Seconds back =
            transfer_seconds(request_.cluster.link(DeviceId{d}, from), needs_[s].each);
        all.push_back({std::max(out, back), s, d});
      }
    std::stable_sort(all.begin(), all.end(),
                     [](const Way& a, const Way& b) { return a.seconds < b.seconds; });
    return all;
  }

  Seconds exposed(const Overflow& made) const {
    Seconds pace = 0;
    for (const StagePlan& stage : stages_) {
      const LayerSeconds one = stage_seconds(request_.cluster.devices[stage.device.index()],
                                             request_.model, request_.profile, stage.layers,
                                             request_.options.shape.compute, stage.recompute);
      pace = std::max(pace, one.forward + one.backward_input + one.backward_weight);
    }
    std::vector<Seconds> moving(stages_.size());  // for each microbatch, on average
    for (const Shipment& one : made.shipments) {
      const DeviceId from = stages_[one.stage].device;
      const StageNeed& need = needs_[one.stage];
      moving[one.stage] +=
          one.microbatches *
          std::max(transfer_seconds(request_.cluster.link(from, one.to), need.each),
                   transfer_seconds(request_.cluster.link(one.to, from), need.each)) /
          need.in_flight;
    }
    const Seconds most = moving.empty() ? 0 : *std::max_element(moving.begin(), moving.end());
    return std::max(0.0, most - pace) * request_.options.shape.microbatch_count;
  }

  const std::vector<StagePlan>& stages_;
  const PlanRequest& request_;
  std::vector<Bytes> room_;  ///< by device
  std::vector<StageNeed> needs_;
};

}  // namespace

std::optional<Overflow> ship_overflow(const std::vector<StagePlan>& stages,
                                      const PlanRequest& request) {
  return Shipping(stages, request).run();
}

std::string to_text(const Overflow& overflow,
                    const std::vector<StagePlan>& stages,
                    const ClusterSpec& cluster) {
  std::string text;
  for (const Shipment& one : overflow.shipments)
    text += fmt::format("{}{} microbatch{} of {} to {}", text.empty() ? "" : ", ", one.microbatches,
                        one.microbatches == 1 ? "" : "es",
                        cluster.devices[stages[one.stage].device.index()].name,
                        cluster.devices[one.to.index()].name);
  return text;
}

}  // namespace troupe
