/// The ids that everything is named by. Different things have different types: a StageId does not
/// convert to a DeviceId. All ids count from 0 and are dense.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace troupe {

/// A counted name. `Tag` only keeps the types apart.
template <class Tag>
struct Id {
  std::uint32_t value = 0;
  constexpr Id() = default;
  constexpr explicit Id(std::uint32_t v) : value(v) {}
  constexpr std::size_t index() const { return value; }
  friend constexpr auto operator<=>(const Id&, const Id&) = default;
};

/// A virtual stage: a contiguous range of layers. With one chunk a device, stage and virtual stage
/// are the same; interleaved schedules give a device several.
using StageId = Id<struct StageTag>;
using MicrobatchId = Id<struct MicrobatchTag>;
/// A device of the cluster, counted over all nodes in the order of the cluster specification.
using DeviceId = Id<struct DeviceTag>;
using NodeId = Id<struct NodeTag>;

/// The number of the plan in force. Messages of an older epoch are refused.
struct PlanEpoch {
  std::uint64_t value = 0;
  friend constexpr auto operator<=>(const PlanEpoch&, const PlanEpoch&) = default;
};

}  // namespace troupe

template <class Tag>
struct std::hash<troupe::Id<Tag>> {
  std::size_t operator()(const troupe::Id<Tag>& id) const noexcept { return id.value; }
};
