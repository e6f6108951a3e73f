/// What `troupe profile` measured, and its file: TOML in the form of the device catalogue, with
/// processors as [cpu.id], links as [link.id] and disks as [disk.id]. A configuration names it with
/// [cluster] profile. Layers that were measured are [layer.id]: how many times as long as by the
/// rates each action took.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/config_tree.h"
#include "kernels/probe_kernels.h"
#include "planner/cluster.h"
#include "planner/layer_ratios.h"

namespace troupe {

/// The processor with some number of compute threads.
struct ProfiledCpu {
  std::string id;    ///< "threads_2"
  std::string name;  ///< as the system calls the processor
  std::uint32_t threads = 1;
  Bytes memory = 0;  ///< of the machine
  kernels::KernelRates reached;
  /// What the rates do not know of layers, by size; empty: plans go by the rates alone.
  std::vector<LayerRatio> layers;
};

struct ProfiledLink {
  std::string id;  ///< "in_process" or "between_processes"
  std::string name;
  LinkSpec reached;
};

struct ProfiledDisk {
  std::string id;    ///< "disk_1"
  std::string name;  ///< its folder
  BytesPerSecond read = 0, write = 0;
  Seconds read_latency = 0;
};

struct MachineProfile {
  std::string source;  ///< machine, day and program
  std::vector<ProfiledCpu> cpus;
  std::vector<ProfiledLink> links;
  std::vector<ProfiledDisk> disks;

  const ProfiledCpu* cpu(std::uint32_t threads) const;
  /// Of the most threads; nothing where none was measured.
  const ProfiledCpu* largest_cpu() const;
  const ProfiledLink* link(std::string_view id) const;
};

/// Keys of `to_toml` and of --json, each with its unit in its name.
std::string to_toml(const MachineProfile& profile);
std::string to_json(const MachineProfile& profile);

/// Reads what `to_toml` wrote. `name` is the file's name in positions. Every row needs the figures
/// of its kind, all positive; unknown keys and kinds get the nearest known one.
MachineProfile parse_machine_profile(std::string_view text,
                                     const std::string& name,
                                     std::vector<ConfigProblem>& problems);

}  // namespace troupe
