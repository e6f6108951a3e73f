#include "planner/device_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "planner/result.h"

namespace troupe {
namespace {

/// A block of the output that one multiprocessor computes, and its rate relative to the largest,
/// which reuses most from shared memory.
struct Tile {
  double rows, columns, rate;
};
constexpr std::array tiles{Tile{256, 128, 1}, Tile{128, 128, .92}, Tile{128, 64, .8},
                           Tile{64, 64, .6}};

/// Of the tensor cores' rate: that of the other pipes in f32 (19.5 of an A100's 312 Tflop/s), where
/// matrices of a batch begin at addresses that tensor cores cannot load from.
constexpr double scalar_rate = 1.0 / 16;

bool aligned(double size) {
  return std::fmod(size, 8) == 0;
}

FlopsPerSecond wide_peak(const AcceleratorRates& rates) {
  return rates.wide_peak > 0 ? rates.wide_peak : rates.peak;
}

Seconds attention_seconds(const LayerOp& op, const AcceleratorRates& rates) {
  const bool forward = op.kind == OpKind::attention_forward;
  const double share = forward ? rates.attention_forward : rates.attention_backward;
  return op.flops() / (wide_peak(rates) * share);
}

Seconds product_seconds(const LayerOp& op, const AcceleratorRates& rates) {
  const bool wide = op.kind == OpKind::wide_product && rates.wide_peak > 0;
  const FlopsPerSecond peak = wide ? rates.wide_peak : rates.peak;
  const bool whole_tiles = op.grouped || (aligned(op.m) && aligned(std::min(op.n, op.k)));
  const double whole = whole_tiles ? 1 : op.batch > 1 ? scalar_rate : 0.5;
  // To fill a tile's pipe takes as long at a lower rate: only the arithmetic slows down.
  const double share =
      (wide ? rates.wide_achievable : rates.achievable) / (1 / whole + rates.ramp_k / op.k);
  double best = std::numeric_limits<double>::infinity();
  for (const Tile& tile : tiles) {
    const double count = std::ceil(op.m / tile.rows) * std::ceil(op.n / tile.columns) * op.batch;
    const double waves = std::ceil(count / rates.processors);
    const double paid = waves > 4 ? count + rates.processors / 2 : waves * rates.processors;
    best = std::min(best, 2 * paid * tile.rows * tile.columns * op.k / (peak * tile.rate));
  }
  return best / share;
}

Seconds arithmetic_seconds(const LayerOp& op, const AcceleratorRates& rates) {
  if (op.m == 0) return 0;
  const bool product = op.kind == OpKind::product || op.kind == OpKind::wide_product;
  return product ? product_seconds(op, rates) : attention_seconds(op, rates);
}

}  // namespace

AcceleratorRates a100_rates(BytesPerSecond memory) {
  AcceleratorRates out;
  out.peak = 312e12;
  out.memory = memory;
  out.processors = 108;
  return out;
}

AcceleratorRates h100_rates() {
  AcceleratorRates out;
  out.peak = 989e12;
  out.memory = 3.35e12;
  out.achievable = 0.80;
  out.processors = 132;
  return out;
}

Seconds moved_seconds(double bytes, const AcceleratorRates& rates) {
  return bytes / (rates.memory * rates.memory_achievable);
}

Seconds op_seconds(const LayerOp& op, const AcceleratorRates& rates) {
  EXPECTS(rates.peak > 0 && rates.memory > 0 && rates.processors >= 1);
  const Seconds memory = moved_seconds(op.bytes, rates);
  return std::max(memory, arithmetic_seconds(op, rates)) + op.launches * rates.launch;
}

Seconds ops_seconds(const LayerOps& ops, const AcceleratorRates& rates) {
  Seconds sum = 0;
  for (const LayerOp& op : ops) sum += op_seconds(op, rates);
  return sum;
}

}  // namespace troupe
