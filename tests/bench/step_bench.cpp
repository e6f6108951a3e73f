// The bare training step of a GPT-2-like model: milliseconds, GFLOP/s, share of the multiply-add
// peak measured in the same run, and memory allocations inside a step (must be 0).
//
//   bench_step [--layers N --width N --heads N --context N --batch N --vocabulary N --threads N]
//              [--precision f32|bf16] [--steps N]
//
// With --steps it prints a line for people. Without, it takes part in tests/bench/step.py: a JSON
// line when ready, then for every line "N" on its input, N steps and their milliseconds.
#include <fmt/format.h>
#include <immintrin.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "devices/compute_pool.h"
#include "devices/device.h"
#include "kernels/step_loop.h"

// Every allocation of the process is counted, whoever makes it.
namespace {
std::atomic<std::uint64_t> allocation_count{0};
}
extern "C" {
void* __libc_malloc(std::size_t size);
void* __libc_calloc(std::size_t count, std::size_t size);
void* __libc_realloc(void* old, std::size_t size);
void* __libc_memalign(std::size_t alignment, std::size_t size);
void* malloc(std::size_t size) {
  allocation_count.fetch_add(1, std::memory_order_relaxed);
  return __libc_malloc(size);
}
void* calloc(std::size_t count, std::size_t size) {
  allocation_count.fetch_add(1, std::memory_order_relaxed);
  return __libc_calloc(count, size);
}
void* realloc(void* old, std::size_t size) {
  allocation_count.fetch_add(1, std::memory_order_relaxed);
  return __libc_realloc(old, size);
}
void* memalign(std::size_t alignment, std::size_t size) {
  allocation_count.fetch_add(1, std::memory_order_relaxed);
  return __libc_memalign(alignment, size);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) {
  return memalign(alignment, size);
}
int posix_memalign(void** out, std::size_t alignment, std::size_t size) {
  *out = memalign(alignment, size);
  return *out == nullptr ? ENOMEM : 0;
}
}

namespace {

using namespace troupe;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Arguments {
  std::uint32_t layers = 4, width = 256, heads = 4, context = 256, batch = 8, vocabulary = 4096;
  std::uint32_t threads = 2, steps = 0;
  DType precision = DType::f32;
};

Arguments parse(int count, char** words) {
  Arguments args;
  const std::pair<std::string_view, std::uint32_t*> numbers[] = {
      {"--layers", &args.layers},   {"--width", &args.width}, {"--heads", &args.heads},
      {"--context", &args.context}, {"--batch", &args.batch}, {"--vocabulary", &args.vocabulary},
      {"--threads", &args.threads}, {"--steps", &args.steps}};
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string_view flag = words[i];
    bool known = flag == "--precision";
    if (known) args.precision = std::string_view(words[i + 1]) == "bf16" ? DType::bf16 : DType::f32;
    for (const auto& [name, target] : numbers) {
      if (flag != name) continue;
      *target = static_cast<std::uint32_t>(std::stoul(words[i + 1]));
      known = true;
    }
    if (!known) {
      std::cerr << "bench_step: unknown flag " << flag << "; the flags stand in its source\n";
      std::exit(2);
    }
  }
  return args;
}

// --- the peak: independent multiply-adds in registers ---

constexpr int chains = 20;
constexpr std::uint64_t rounds = 4'000'000;

__attribute__((target("avx512f"))) double fma_512() {
  __m512 sums[chains];
  for (auto& sum : sums) sum = _mm512_set1_ps(1.0F);
  const __m512 factor = _mm512_set1_ps(0.999F);
  for (std::uint64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 20
    for (int c = 0; c < chains; ++c) sums[c] = _mm512_fmadd_ps(sums[c], factor, factor);
  }
  for (int c = 1; c < chains; ++c) sums[0] = _mm512_add_ps(sums[0], sums[c]);
  alignas(64) float lanes[16];
  _mm512_store_ps(lanes, sums[0]);
  volatile float sink = lanes[0];
  (void)sink;
  return 2.0 * 16 * chains * static_cast<double>(rounds);
}

__attribute__((target("avx512f,avx512bf16"))) double dot_bf16() {
  __m512 sums[chains];
  for (auto& sum : sums) sum = _mm512_set1_ps(1.0F);
  const __m512bh factor = _mm512_cvtne2ps_pbh(_mm512_set1_ps(0.5F), _mm512_set1_ps(0.25F));
  for (std::uint64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 20
    for (int c = 0; c < chains; ++c) sums[c] = _mm512_dpbf16_ps(sums[c], factor, factor);
  }
  for (int c = 1; c < chains; ++c) sums[0] = _mm512_add_ps(sums[0], sums[c]);
  alignas(64) float lanes[16];
  _mm512_store_ps(lanes, sums[0]);
  volatile float sink = lanes[0];
  (void)sink;
  return 2.0 * 32 * chains * static_cast<double>(rounds);
}

__attribute__((target("avx2,fma"))) double fma_256() {
  __m256 sums[12];
  for (auto& sum : sums) sum = _mm256_set1_ps(1.0F);
  const __m256 factor = _mm256_set1_ps(0.999F);
  for (std::uint64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (int c = 0; c < 12; ++c) sums[c] = _mm256_fmadd_ps(sums[c], factor, factor);
  }
  for (int c = 1; c < 12; ++c) sums[0] = _mm256_add_ps(sums[0], sums[c]);
  alignas(32) float lanes[8];
  _mm256_store_ps(lanes, sums[0]);
  volatile float sink = lanes[0];
  (void)sink;
  return 2.0 * 8 * 12 * static_cast<double>(rounds);
}

/// Flop/s of all threads together, best of a few; 0 where there is no instruction for the type.
double peak(DType type, std::uint32_t threads) {
  double (*body)() = nullptr;
  if (type == DType::bf16)
    body = __builtin_cpu_supports("avx512bf16") ? dot_bf16 : nullptr;
  else
    body = __builtin_cpu_supports("avx512f") ? fma_512
           : __builtin_cpu_supports("fma")   ? fma_256
                                             : nullptr;
  if (body == nullptr) return 0;
  double best = 0;
  for (int repeat = 0; repeat < 5; ++repeat) {
    std::vector<std::thread> helpers;
    std::atomic<double> rate{0};
    for (std::uint32_t t = 0; t < threads; ++t)
      helpers.emplace_back([&] {
        const double begin = now();
        const double flops = body();
        const double mine = flops / (now() - begin);
        double seen = rate.load();
        while (!rate.compare_exchange_weak(seen, seen + mine)) {
        }
      });
    for (auto& helper : helpers) helper.join();
    best = std::max(best, rate.load());
  }
  return best;
}

/// Products that the mathematics asks for: causal halves, no recomputation. Three times forward.
double useful_flops(const Arguments& args) {
  const double rows = double{1} * args.batch * args.context;
  const double width = args.width;
  const double block =
      2 * rows * 12 * width * width + 2 * 2 * rows * (args.context + 1) / 2 * width;
  return 3 * (args.layers * block + 2 * rows * width * args.vocabulary);
}

ModelSpec model_of(const Arguments& args) {
  ModelSpec model;
  model.family = ModelFamily::gpt2;
  model.blocks = args.layers;
  model.width = args.width;
  model.heads = args.heads;
  model.kv_heads = args.heads;
  model.ffn_width = 4 * args.width;
  model.vocabulary = args.vocabulary;
  model.context = args.context;
  return model;
}

struct Trainer {
  Arguments args;
  std::unique_ptr<Device> device;
  std::unique_ptr<Stage> stage;
  std::vector<std::int32_t> tokens, targets;
  MicrobatchTokens microbatch;
  std::uint64_t step = 0;
  double loss = 0;
  std::uint64_t allocations = 0;  ///< inside the last steps

  explicit Trainer(const Arguments& arguments) : args(arguments) {
    DeviceSpec spec;
    spec.name = "d0";
    spec.memory = 16_GiB;
    spec.threads = args.threads;
    device = std::move(*open_device(spec, {}));
    StageSpec stage_spec;
    stage_spec.model = model_of(args);
    stage_spec.shape = {1, args.batch, args.context, args.batch, args.precision};
    stage_spec.layers = {0, layer_count(stage_spec.model)};
    stage = std::move(*Stage::create(*device, stage_spec));
    stage->initialize();
    std::mt19937 random(0);
    for (std::uint32_t i = 0; i < args.batch * args.context; ++i) {
      tokens.push_back(static_cast<std::int32_t>(random() % args.vocabulary));
      targets.push_back(static_cast<std::int32_t>(random() % args.vocabulary));
    }
    microbatch.tokens = tokens;
    microbatch.targets = targets;
    microbatch.sequences = args.batch;
  }

  std::vector<double> run(std::uint32_t count) {
    std::vector<double> milliseconds(count);
    device->submit({[&](Stream& stream) {
                      for (double& one : milliseconds) {
                        const std::uint64_t before = allocation_count.load();
                        const double begin = now();
                        ++step;
                        loss = run_step(*stage, stream, {step, step, 1e-4, {&microbatch, 1}}).loss;
                        one = 1e3 * (now() - begin);
                        allocations = allocation_count.load() - before;
                      }
                    },
                    0,
                    {}});
    device->drain();
    return milliseconds;
  }
};

}  // namespace

int main(int count, char** words) {
  const Arguments args = parse(count, words);
  const double peak_rate = peak(args.precision, args.threads);
  Trainer trainer(args);
  if (args.steps > 0) {
    trainer.run(2);
    std::vector<double> times = trainer.run(args.steps);
    std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
    const double ms = times[times.size() / 2];
    const double rate = useful_flops(args) / ms * 1e3;
    fmt::print(
        "{} layers of {}, {} threads, {}: {:.1f} ms/step (best {:.1f}), {:.0f} GFLOP/s, "
        "{:.1f} % of a peak of {:.0f} GFLOP/s, {} allocations in a step, loss {:.6f}\n",
        args.layers, args.width, args.threads, to_string(args.precision), ms,
        *std::min_element(times.begin(), times.end()), rate / 1e9,
        peak_rate > 0 ? 100 * rate / peak_rate : 0, peak_rate / 1e9, trainer.allocations,
        trainer.loss);
    return trainer.allocations == 0 ? 0 : 1;
  }
  trainer.run(1);
  const double ms = trainer.run(1).front();
  fmt::print(
      "{{\"name\": \"troupe\", \"precision\": \"{}\", \"parameters\": {}, "
      "\"peak_gflops\": {:.1f}, \"peak_share\": {:.3f}, \"allocations\": {}}}\n",
      to_string(args.precision), parameter_count(model_of(args)), peak_rate / 1e9,
      peak_rate > 0 ? useful_flops(args) / ms * 1e3 / peak_rate : 0, trainer.allocations);
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    std::string list;
    for (const double one : trainer.run(static_cast<std::uint32_t>(std::stoul(line))))
      list += fmt::format("{}{:.3f}", list.empty() ? "" : ", ", one);
    fmt::print("{{\"ms\": [{}], \"loss\": {:.9g}, \"allocations\": {}}}\n", list, trainer.loss,
               trainer.allocations);
    std::fflush(stdout);
  }
  return 0;
}
