/// One entry per op and shape: how to make its inputs from a seed, run it, and what comes out. The
/// tests loop over all of them: fast against naive, threads against threads, meta against nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/element.h"
#include "kernels/ops.h"

namespace troupe::test {

/// Owns tensors, 64-byte aligned, filled from one seed in the order of the calls. On a meta stream
/// they have no memory.
class Buffers {
 public:
  Buffers(std::uint64_t seed, bool memory) : random_(seed), memory_(memory) {}
  /// Normal values, f32 or bf16. Rows `padding` elements apart from being dense.
  Tensor normal(DType type,
                std::initializer_list<std::uint64_t> shape,
                std::uint64_t padding = 0,
                float scale = 1.0f);
  Tensor zeros(DType type, std::initializer_list<std::uint64_t> shape, std::uint64_t padding = 0);
  std::vector<std::int32_t> ids(std::uint64_t n, std::int32_t first, std::int32_t last);
  std::uint64_t between(std::uint64_t low, std::uint64_t high);

 private:
  std::mt19937_64 random_;
  bool memory_;
  std::vector<std::unique_ptr<std::byte, void (*)(void*)>> owned_;
};

/// What an op made: tensors (all elements are compared) and numbers.
struct Outcome {
  std::vector<Tensor> tensors;
  std::vector<double> numbers;
};

struct OpCase {
  std::string name;
  double tolerance;  ///< of the largest difference, relative to the largest element
  std::function<Outcome(Stream&, Buffers&)> run;
};

std::vector<OpCase> op_cases();

/// All elements as f32, row by row.
std::vector<float> values_of(const Tensor& t);
/// All bytes that belong to elements.
std::vector<std::byte> bytes_of(const Tensor& t);

/// Largest difference relative to the largest expected element; NaN counts as infinite.
double error_of(const std::vector<float>& expected, const std::vector<float>& got);

}  // namespace troupe::test
