/// The machines: nodes (processes), their devices and the links between them.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "planner/cost.h"
#include "planner/ids.h"
#include "planner/units.h"

namespace troupe {

enum class DeviceKind : std::uint8_t { cpu, emulated, meta };

/// Latency and bandwidth of a directed link.
struct LinkSpec {
  Seconds latency = 0;
  BytesPerSecond bandwidth = 0;  ///< 0: by reference, no bytes move
};

struct DeviceSpec {
  std::string name;  ///< unique in the cluster, "n0.gpu0"
  NodeId node;
  DeviceKind kind = DeviceKind::cpu;
  std::string model;          ///< catalogue row that an emulated device plays ("V100-16GB")
  Bytes memory = 0;           ///< the arena's hard cap
  std::uint32_t threads = 1;  ///< of the compute pool
  DeviceRates rates;          ///< measured, or the catalogue's (scaled) for an emulated one
  std::string rates_from;     ///< the file that they stand in, for people; empty: measured here
  /// Measured seconds per layer kind, where the device was profiled; they beat the rates.
  std::map<LayerKind, LayerSeconds> measured;
  /// The same with microbatches of other sizes, where more than one was measured.
  std::map<LayerKind, SecondsBySize> measured_by_size;
  /// To and from the memory of its node, each direction.
  LinkSpec host_link = {};
  /// Nothing is known of its speed yet.
  bool needs_measuring() const {
    return kind == DeviceKind::cpu && measured.empty() && rates.matmul_f32 <= 0;
  }
};

/// Makes these the device's times, `measured` with microbatches of this size.
void set_measured(DeviceSpec& device,
                  const std::map<LayerKind, SecondsBySize>& by_size,
                  std::uint32_t microbatch_size);

/// Memory of a node that is no device's, where states of training may lie, and the processor that
/// works on them there.
struct HostSpec {
  Bytes memory = 0;                ///< that training may fill; 0: none
  BytesPerSecond memory_rate = 0;  ///< that its cores reach together
};

/// A disk of a node, where states may lie too.
struct DiskSpec {
  Bytes space = 0;  ///< that training may fill; 0: none
  BytesPerSecond read = 0, write = 0;
};

struct NodeSpec {
  std::string name;
  bool own_process = false;  ///< false: lives in the process of the run actor
  HostSpec host = {};
  DiskSpec disk = {};
};

/// What an emulated device, or a link, does that no plan is told: it lasts `factor` times as long
/// in steps [first_step, last_step].
struct Disturbance {
  DeviceId from, to;  ///< equal: the device; else the directed link
  double factor = 1;
  std::uint64_t first_step = 1;
  std::uint64_t last_step = ~std::uint64_t{0};
  friend bool operator==(const Disturbance&, const Disturbance&) = default;
};

struct ClusterSpec {
  std::vector<NodeSpec> nodes;
  std::vector<DeviceSpec> devices;
  LinkSpec same_process;  ///< between devices of one process
  LinkSpec between_processes;
  /// Exceptions by (from, to) device index.
  std::map<std::pair<std::uint32_t, std::uint32_t>, LinkSpec> overrides;
  LinkSpec link(DeviceId from, DeviceId to) const;
  std::vector<Disturbance> disturbances;
  /// The product of the factors that apply to this device (from = to) or link in this step.
  double disturbed(DeviceId from, DeviceId to, std::uint64_t step) const;
  bool crosses_processes(DeviceId from, DeviceId to) const;
  /// Tensors between devices of one process are copied into buffers of the receiver.
  bool copy_between_devices = false;
  /// The receiver reads a tensor where the sender keeps it: devices of one process that do not
  /// copy.
  bool by_reference(DeviceId from, DeviceId to) const {
    return !copy_between_devices && !crosses_processes(from, to);
  }
};

/// By DeviceId.
std::vector<std::string> device_names(const ClusterSpec& cluster);

}  // namespace troupe
