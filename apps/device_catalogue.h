/// The catalogue of accelerators: peak rates and memory that emulated devices play and plans for
/// hardware elsewhere are priced with. Its text form is conf/devices.toml.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/config_tree.h"
#include "planner/cost.h"

namespace troupe {

/// One device (half a card where a card holds two). Peaks are dense vendor peaks.
struct CatalogueDevice {
  std::string id;    ///< "v100_pcie_16"
  std::string name;  ///< "Tesla V100 PCIe 16GB"
  FlopsPerSecond fp32 = 0;
  FlopsPerSecond bf16 = 0;  ///< 0: the device has no bf16
  Bytes memory = 0;         ///< GB as 10^9
  BytesPerSecond memory_rate = 0;
  std::string certainty;  ///< "found", "partly" or "recalled"
  std::string source;
};

/// Reads a catalogue; `name` is the file's name in positions.
std::vector<CatalogueDevice> parse_catalogue(std::string_view text,
                                             const std::string& name,
                                             std::vector<ConfigProblem>& problems);

/// conf/devices.toml as it was when the program was built.
const std::vector<CatalogueDevice>& built_in_catalogue();

/// What the device is taken to reach: 0.6 of a matrix peak, 0.8 of the memory rate, `launch` per
/// op; all `time_scale` times slower.
DeviceRates achievable_rates(const CatalogueDevice& device, Seconds launch, double time_scale);

}  // namespace troupe
