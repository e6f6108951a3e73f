/// The catalogue of hardware: peak rates and memory that emulated devices play and plans for
/// hardware elsewhere are priced with. Its text form is conf/devices.toml.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/config_tree.h"
#include "planner/cluster.h"
#include "planner/cost.h"
#include "planner/device_model.h"

namespace troupe {

/// What every row has. `id` is the row's name in its kind: "v100_pcie_16".
struct CatalogueRow {
  std::string id;
  std::string name;       ///< "Tesla V100 PCIe 16GB"
  std::string certainty;  ///< "found", "partly" or "recalled"
  std::string source;
};

/// One accelerator (half a card where a card holds two). Peaks are dense vendor peaks.
struct CatalogueDevice : CatalogueRow {
  FlopsPerSecond fp32 = 0;
  FlopsPerSecond bf16 = 0;           ///< 0: the device has no bf16
  FlopsPerSecond bf16_measured = 0;  ///< the best product that was measured; 0: not known
  FlopsPerSecond fp16 = 0;           ///< with f32 accumulation; 0: not known
  double processors = 0;             ///< multiprocessors or compute units; 0: not known
  /// To a device of the same node, one direction: NVLink or its like, else PCIe.
  BytesPerSecond peer_rate = 0;
  BytesPerSecond host_rate = 0;  ///< to the memory of its node, one direction: PCIe; 0: not known
  Bytes memory = 0;              ///< GB as 10^9
  BytesPerSecond memory_rate = 0;
};

/// One socket. Peaks are cores x base clock x operations a cycle.
struct CatalogueCpu : CatalogueRow {
  std::uint32_t cores = 0;
  FlopsPerSecond fp32 = 0;
  FlopsPerSecond bf16 = 0;  ///< 0: no instructions for bf16 products
  BytesPerSecond memory_rate = 0;
};

struct CatalogueDisk : CatalogueRow {
  BytesPerSecond read = 0;  ///< sequential
  BytesPerSecond write = 0;
  Seconds latency = 0;  ///< of one read
};

struct CatalogueLink : CatalogueRow {
  BytesPerSecond rate = 0;  ///< one direction, all lanes or links of one device
  Seconds latency = 0;      ///< of a small message
};

struct DeviceCatalogue {
  std::vector<CatalogueDevice> accelerators;
  std::vector<CatalogueCpu> cpus;
  std::vector<CatalogueDisk> disks;
  std::vector<CatalogueLink> links;
};

/// Reads a catalogue; `name` is the file's name in positions. Rows with a problem are left out: an
/// unknown key, a value of another type or out of range, a rate that is missing or 0.
DeviceCatalogue parse_catalogue(std::string_view text,
                                const std::string& name,
                                std::vector<ConfigProblem>& problems);

/// conf/devices.toml as it was when the program was built.
const DeviceCatalogue& built_in_catalogue();

/// What the device is taken to reach: 0.6 of a matrix peak, 0.8 of the memory rate, `launch` per
/// op; all `time_scale` times slower.
DeviceRates achievable_rates(const CatalogueDevice& device, Seconds launch, double time_scale);

/// The way to the memory of its node, each direction: 0.8 of PCIe's rate, `launch` before the first
/// byte; `time_scale` times slower. Bandwidth 0 where the row does not say.
LinkSpec achievable_host_link(const CatalogueDevice& device, Seconds launch, double time_scale);

/// What the cores of a processor reach together: 0.8 of the memory rate.
BytesPerSecond achievable_memory_rate(const CatalogueCpu& cpu);

/// For pricing layouts in 16 bits (planner/device_model.h). Nothing where the row lacks a rate in
/// 16 bits, multiprocessors, or the way to its peers.
std::optional<AcceleratorRates> accelerator_rates(const CatalogueDevice& device);

}  // namespace troupe
