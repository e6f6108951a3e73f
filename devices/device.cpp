#include "devices/device.h"

#include <fmt/core.h>

#include "devices/compute_pool.h"
#include "devices/cpu_device.h"
#include "devices/meta_device.h"

namespace troupe {

Result<std::unique_ptr<Device>> open_device(const DeviceSpec& spec, const std::vector<int>& cores) {
  if (spec.threads < 1 || spec.threads > max_pool_threads) {
    return Error{
        ErrorCode::invalid_input,
        fmt::format("{}: {} threads; a device has 1 to {}, use {}", spec.name, spec.threads,
                    max_pool_threads, spec.threads < 1 ? 1 : max_pool_threads)};
  }
  std::unique_ptr<Device> device;
  switch (spec.kind) {
    case DeviceKind::cpu: device = std::make_unique<CpuDevice>(spec, cores, false); break;
    case DeviceKind::emulated: device = std::make_unique<CpuDevice>(spec, cores, true); break;
    case DeviceKind::meta: device = std::make_unique<MetaDevice>(spec); break;
  }
  EXPECTS(device != nullptr);
  return device;
}

}  // namespace troupe
