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
#include <link.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <iostream>
#include <new>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "devices/compute_pool.h"
#include "devices/device.h"
#include "kernels/step_loop.h"

// Every allocation of the process is counted, by who makes it: the matrix library allocates on each
// call, which is not ours to change; everything else must not allocate within a step.
namespace {
struct AddressRange {
  std::uintptr_t first = 0, last = 0;
};
AddressRange matrix_library;
std::atomic<std::uint64_t> own_allocations{0}, allocations_by_library{0};

int find_matrix_library(dl_phdr_info* info, std::size_t, void*) {
  if (std::strstr(info->dlpi_name, "dnnl") == nullptr) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& header = info->dlpi_phdr[i];
    if (header.p_type != PT_LOAD || (header.p_flags & PF_X) == 0) continue;
    matrix_library.first = info->dlpi_addr + header.p_vaddr;
    matrix_library.last = matrix_library.first + header.p_memsz;
  }
  return 1;
}

void count_allocation(void* caller) {
  const auto address = reinterpret_cast<std::uintptr_t>(caller);
  const bool library = matrix_library.first <= address && address < matrix_library.last;
  (library ? allocations_by_library : own_allocations).fetch_add(1, std::memory_order_relaxed);
}
}  // namespace
#define COUNT_ALLOCATION count_allocation(__builtin_return_address(0))

extern "C" {
void* __libc_malloc(std::size_t size);
void* __libc_calloc(std::size_t count, std::size_t size);
void* __libc_realloc(void* old, std::size_t size);
void* __libc_memalign(std::size_t alignment, std::size_t size);
void* malloc(std::size_t size) {
  COUNT_ALLOCATION;
  return __libc_malloc(size);
}
void* calloc(std::size_t count, std::size_t size) {
  COUNT_ALLOCATION;
  return __libc_calloc(count, size);
}
void* realloc(void* old, std::size_t size) {
  COUNT_ALLOCATION;
  return __libc_realloc(old, size);
}
void* memalign(std::size_t alignment, std::size_t size) {
  COUNT_ALLOCATION;
  return __libc_memalign(alignment, size);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) {
  COUNT_ALLOCATION;
  return __libc_memalign(alignment, size);
}
int posix_memalign(void** out, std::size_t alignment, std::size_t size) {
  COUNT_ALLOCATION;
  *out = __libc_memalign(alignment, size);
  return *out == nullptr ? ENOMEM : 0;
}
}
void* operator new(std::size_t size) {
  COUNT_ALLOCATION;
  void* memory = __libc_malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  COUNT_ALLOCATION;
  return __libc_malloc(size);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace {

using namespace troupe;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Processor time of the calling thread: a core shared with others does not lower the peak.
double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
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
constexpr std::uint64_t rounds = 400'000;  // some milliseconds: the clock changes within seconds

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

/// Flop/s of all threads together right now, best of a few; 0 where there is no instruction for the
/// type.
double peak_of(DType type, std::uint32_t threads) {
  double (*body)() = nullptr;
  if (type == DType::bf16)
    body = __builtin_cpu_supports("avx512bf16") ? dot_bf16 : nullptr;
  else
    body = __builtin_cpu_supports("avx512f") ? fma_512
           : __builtin_cpu_supports("fma")   ? fma_256
                                             : nullptr;
  if (body == nullptr) return 0;
  double best = 0;
  for (int repeat = 0; repeat < 3; ++repeat) {
    std::vector<std::thread> helpers;
    std::atomic<double> rate{0};
    for (std::uint32_t t = 0; t < threads; ++t)
      helpers.emplace_back([&] {
        const double begin = thread_seconds();
        const double flops = body();
        const double mine = flops / (thread_seconds() - begin);
        double seen = rate.load();
        while (!rate.compare_exchange_weak(seen, seen + mine)) {
        }
      });
    for (auto& helper : helpers) helper.join();
    best = std::max(best, rate.load());
  }
  return best;
}

/// Where bf16 dot products are slow, its products run as f32: the better of the two is the peak.
double peak(DType type, std::uint32_t threads) {
  const double f32 = peak_of(DType::f32, threads);
  return type == DType::f32 ? f32 : std::max(f32, peak_of(type, threads));
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

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

struct Trainer {
  Arguments args;
  std::unique_ptr<Device> device;
  std::unique_ptr<Stage> stage;
  std::vector<std::int32_t> tokens, targets;
  MicrobatchTokens microbatch;
  std::uint64_t step = 0;
  double loss = 0;
  std::uint64_t allocations = 0;             ///< inside the last step, ours
  std::uint64_t allocations_by_library = 0;  ///< and the matrix library's
  double cpu_ms = 0;                         ///< processor time of the last step, all threads
  double peak_before = 0;                    ///< flop/s of the multiply-adds, before the next step
  /// Of the steps of the last run: flop/s over the mean of the peaks just before and just after.
  std::vector<double> shares;

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
    shares.clear();
    for (double& one : milliseconds) {
      if (peak_before == 0) peak_before = peak(args.precision, args.threads);
      one = run_one();
      const double after = peak(args.precision, args.threads);
      if (after > 0) shares.push_back(useful_flops(args) / one * 1e3 / ((peak_before + after) / 2));
      peak_before = after;
    }
    return milliseconds;
  }

  double run_one() {
    double one = 0;
    device->submit({[&](Stream& stream) {
                      const std::uint64_t before = ::own_allocations.load();
                      const std::uint64_t library_before = ::allocations_by_library.load();
                      const std::clock_t cpu_before = std::clock();
                      const double begin = now();
                      ++step;
                      loss = run_step(*stage, stream, {step, step, 1e-4, {&microbatch, 1}}).loss;
                      one = 1e3 * (now() - begin);
                      cpu_ms = 1e3 * static_cast<double>(std::clock() - cpu_before) /
                               static_cast<double>(CLOCKS_PER_SEC);
                      allocations = ::own_allocations.load() - before;
                      allocations_by_library = ::allocations_by_library.load() - library_before;
                    },
                    0,
                    {}});
    device->drain();
    return one;
  }
};

}  // namespace

int main(int count, char** words) {
  dl_iterate_phdr(find_matrix_library, nullptr);
  const Arguments args = parse(count, words);
  Trainer trainer(args);
  if (args.steps > 0) {
    trainer.run(2);
    std::vector<double> times = trainer.run(args.steps);
    const double ms = median(times);
    const double rate = useful_flops(args) / ms * 1e3;
    fmt::print(
        "{} layers of {}, {} threads, {}: {:.1f} ms/step (best {:.1f}, processor {:.1f}), {:.0f} "
        "GFLOP/s, "
        "{:.1f} % of the multiply-add peak around each step ({:.0f} GFLOP/s at last), {} "
        "allocations in a step ({} more in the "
        "matrix library), loss {:.6f}\n",
        args.layers, args.width, args.threads, to_string(args.precision), ms,
        *std::min_element(times.begin(), times.end()), trainer.cpu_ms, rate / 1e9,
        100 * median(trainer.shares), trainer.peak_before / 1e9, trainer.allocations,
        trainer.allocations_by_library, trainer.loss);
    return trainer.allocations == 0 ? 0 : 1;
  }
  trainer.run(1);
  fmt::print("{{\"name\": \"troupe\", \"precision\": \"{}\", \"parameters\": {}}}\n",
             to_string(args.precision), parameter_count(model_of(args)));
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    std::string list;
    for (const double one : trainer.run(static_cast<std::uint32_t>(std::stoul(line))))
      list += fmt::format("{}{:.3f}", list.empty() ? "" : ", ", one);
    fmt::print("{{\"ms\": [{}], \"loss\": {:.9g}, \"allocations\": {}, \"peak_share\": {:.3f}}}\n",
               list, trainer.loss, trainer.allocations, median(trainer.shares));
    std::fflush(stdout);
  }
  return 0;
}
