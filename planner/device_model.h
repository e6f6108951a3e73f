/// Seconds of one op on one accelerator: the slower of arithmetic and memory, with the losses that
/// follow from its shape.
#pragma once

#include "planner/layer_ops.h"
#include "planner/units.h"

namespace troupe {

/// One kind of accelerator. All values are of one device.
struct AcceleratorRates {
  FlopsPerSecond peak = 0;          ///< dense products in the precision of the run
  double achievable = 0.86;         ///< best measured share of the peak on large products
  BytesPerSecond memory = 0;        ///< of the datasheet
  double memory_achievable = 0.80;  ///< share that streaming kernels reach
  double processors = 1;            ///< multiprocessors: output tiles run in waves over them
  Seconds launch = 2.5e-6;          ///< between two kernels
  double ramp_k = 200;              ///< inner length at which a tile loses half to filling its pipe
  /// Rate and best share of products in 16 bits, where `peak` is of a narrower type; 0: as `peak`.
  FlopsPerSecond wide_peak = 0;
  double wide_achievable = 0;
  /// Shares of the 16-bit peak inside fused attention. FlashAttention-2 on A100: up to 73 % forward
  /// and 63 % backward, less with short heads and a mask (Dao 2023, arXiv:2307.08691, figures 4-6).
  double attention_forward = 0.6, attention_backward = 0.5;
};

/// A100-SXM4: 312 Tflop/s, 108 multiprocessors; 86.9 % is the best product that ml-engineering
/// measured.
AcceleratorRates a100_rates(BytesPerSecond memory = 2.0e12);
/// H100-SXM5: 989 Tflop/s, 132 multiprocessors, 3.35 TB/s; 80.3 % is the best product that
/// ml-engineering measured.
AcceleratorRates h100_rates();

/// Of a kernel that only moves bytes, without its launch.
Seconds moved_seconds(double bytes, const AcceleratorRates& rates);
/// Products: the best tile size, waves of tiles over the processors (up to four waves whole, more
/// with half a wave lost), filling along k, half rate where a dimension is no multiple of 8, and
/// none of the tensor cores' where each matrix of a batch is so (filling takes no longer for that);
/// never faster than its bytes. Fused
/// attention: its share of the 16-bit peak. Others: bytes over bandwidth. Each launch adds its
/// latency.
Seconds op_seconds(const LayerOp& op, const AcceleratorRates& rates);
Seconds ops_seconds(const LayerOps& ops, const AcceleratorRates& rates);

}  // namespace troupe
