#include "devices/meta_device.h"

namespace troupe {

MetaDevice::MetaDevice(DeviceSpec spec)
    : spec_(std::move(spec)),
      arena_(spec_.name, spec_.memory, Arena::Backing::counting),
      stream_(Stream::Body::meta, nullptr) {}

void MetaDevice::submit(Work work) {
  if (work.body) work.body(stream_);
  const WorkTimes times{now_, now_ + work.modelled};
  now_ = times.end;
  if (work.done) work.done(times);
}

}  // namespace troupe
