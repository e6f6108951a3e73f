/// A device that computes nothing: its arena counts bytes, its stream counts work, and its clock
/// advances by what items are modelled to take.
#pragma once

#include "devices/device.h"

namespace troupe {

/// Work runs in submit, on the caller's thread; so does `done`.
class MetaDevice final : public Device {
 public:
  explicit MetaDevice(DeviceSpec spec);
  const DeviceSpec& spec() const override { return spec_; }
  Arena& arena() override { return arena_; }
  void submit(Work work) override;
  void drain() override {}

 private:
  DeviceSpec spec_;
  Arena arena_;
  Stream stream_;
  Seconds now_ = 0;
};

}  // namespace troupe
