/// Every order of devices and every cut of layers: what exact searches for pipelines look at.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace troupe {

/// By device: devices with the same number may be exchanged, and their orders count as one.
using DeviceClasses = std::vector<std::uint32_t>;

/// Ways to choose k of n.
double binomial(std::uint32_t n, std::uint32_t k);

/// Orders of `length` devices, by length from 0 to `longest`.
std::vector<double> order_counts(const DeviceClasses& classes, std::uint32_t longest);

/// Calls with every order of `length` devices, of classes with the first devices that are left.
void each_order(const DeviceClasses& classes,
                std::uint32_t length,
                const std::function<void(const std::vector<std::uint32_t>&)>& visit);

/// Calls with the cuts of every way to divide `layers` layers into `stages` runs, rising: 0, where
/// each run ends. Promise: at least one layer for each stage.
void each_cut(std::uint32_t layers,
              std::uint32_t stages,
              const std::function<void(const std::vector<std::uint32_t>&)>& visit);

}  // namespace troupe
