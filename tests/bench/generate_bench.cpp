// Tokens per second of generation: with kept keys and values, and computing every prefix again.
// Both alternate within one run; medians of three.
#include <fmt/format.h>

#include <cstdio>
#include <random>

#include "devices/threads.h"
#include "devices/timing.h"
#include "kernels/generate.h"

using namespace troupe;

namespace {

struct Shape {
  const char* name;
  ModelSpec model;
  std::uint32_t prompt, tokens;
};

/// Prints one row; `threads` compute.
void measure(const Shape& shape, std::uint32_t threads) {
  DeviceSpec cpu;
  cpu.name = "cpu";
  cpu.memory = 64_GiB;
  cpu.threads = threads;
  auto device = open_device(cpu, {});
  StageSpec spec;
  spec.model = shape.model;
  spec.shape = {1, 1, shape.model.context, 1, DType::f32};
  spec.layers = {0, layer_count(shape.model)};
  spec.weights_only = true;
  auto stage = Stage::create(**device, spec);
  EXPECTS(stage.ok());
  (*stage)->initialize();
  auto decoder = Decoder::create(**device, **stage);
  EXPECTS(decoder.ok());
  std::mt19937_64 random(1);
  std::vector<std::int32_t> prompt(shape.prompt);
  for (auto& token : prompt) token = static_cast<std::int32_t>(random() % shape.model.vocabulary);
  GenerateSpec wanted;
  wanted.max_new_tokens = shape.tokens;
  std::vector<Seconds> kept, again;
  Work work;
  work.body = [&](Stream& stream) {
    for (int run = 0; run < 3; ++run) {
      const Seconds begin = monotonic_seconds();
      const auto a = generate(**decoder, stream, prompt, wanted);
      const Seconds middle = monotonic_seconds();
      const auto b = generate(**stage, stream, prompt, wanted);
      kept.push_back(middle - begin);
      again.push_back(monotonic_seconds() - middle);
      EXPECTS(a.ok() && b.ok() && *a == *b);
    }
  };
  work.done = [](WorkTimes) {};
  (*device)->submit(std::move(work));
  (*device)->drain();
  std::sort(kept.begin(), kept.end());
  std::sort(again.begin(), again.end());
  fmt::print("{:<24} {:>7} {:>7} {:>8} {:>12.1f} {:>12.1f} {:>8.1f}\n", shape.name, threads,
             shape.prompt, shape.tokens, shape.tokens / median(kept), shape.tokens / median(again),
             median(again) / median(kept));
  std::fflush(stdout);
}

}  // namespace

int main() {
  const Shape shapes[] = {
      {"llama 5 x 64, V 512", {ModelFamily::llama, 5, 64, 8, 4, 172, 512, 512}, 1, 200},
      {"gpt2 4 x 256, V 4096", {ModelFamily::gpt2, 4, 256, 4, 4, 1024, 4096, 256}, 16, 128},
      {"gpt2 12 x 768, V 50257", {ModelFamily::gpt2, 12, 768, 12, 12, 3072, 50257, 1024}, 256, 24},
  };
  fmt::print("{:<24} {:>7} {:>7} {:>8} {:>12} {:>12} {:>8}\n", "model", "threads", "prompt", "new",
             "kept tok/s", "again tok/s", "ratio");
  for (const Shape& shape : shapes)
    for (const std::uint32_t threads : {1U, 2U}) measure(shape, threads);
  return 0;
}
