// Every op on shapes of a GPT-2-like step, as a share of what the machine can do: matrix products
// of the FMA peak, the rest of the memory rate, both measured in the same run.
// bench_ops [threads [matmul|attention|head|rest]]: one thread is measured in its processor time,
// so that a busy machine disturbs it little; more in wall-clock time.
#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "devices/arena.h"
#include "devices/probe.h"
#include "devices/threads.h"
#include "kernels/ops.h"
#include "kernels/probe_kernels.h"

using namespace troupe;
using namespace troupe::kernels;

namespace {

struct Bench {
  ComputePool pool;
  Stream stream;
  Stream meta{Stream::Body::meta, nullptr};
  Arena arena{"bench", 4_GiB, Arena::Backing::memory};
  std::vector<Block> blocks;
  MachinePeak peak;

  explicit Bench(std::uint32_t threads)
      : pool(threads), stream(Stream::Body::fast, &pool), peak(measure_peak(pool)) {}

  Tensor tensor(DType type, std::initializer_list<std::uint64_t> shape, bool random = true) {
    Tensor t = make_tensor(nullptr, type, shape);
    auto block = arena.allocate(t.elements() * 4, MemoryCategory::workspace);
    EXPECTS(block.ok());
    blocks.push_back(std::move(*block));
    t.data = blocks.back().data();
    if (random) {
      Tensor wide = t;
      wide.dtype = DType::f32;
      fill_normal(stream, wide, 1, "bench", 0.5);
      if (type == DType::bf16) fill(stream, t, 0.37f);
    }
    return t;
  }

  /// Best of about a quarter of a second.
  void report(const std::string& name, const std::function<void(Stream&)>& op) {
    meta.count() = OpCount{};
    op(meta);
    const OpCount count = meta.count();
    op(stream);
    const auto now = pool.threads() == 1 ? thread_seconds : monotonic_seconds;
    Seconds best = 1e9;
    const Seconds end = monotonic_seconds() + 0.25;
    do {
      const Seconds begin = now();
      op(stream);
      best = std::min(best, now() - begin);
    } while (monotonic_seconds() < end);
    if (count.matmul_flops > 0) {
      const double rate = count.matmul_flops / best;
      fmt::print("{:44} {:9.3f} ms  {:7.1f} GFLOP/s  {:5.1f} % of FMA\n", name, best * 1e3,
                 rate / 1e9, 100 * rate / peak.fma_f32);
    } else {
      const double rate = static_cast<double>(count.bytes_moved) / best;
      fmt::print("{:44} {:9.3f} ms  {:7.1f} GB/s     {:5.1f} % of memory copy\n", name, best * 1e3,
                 rate / 1e9, 100 * rate / peak.memory_copy);
    }
    std::fflush(stdout);
  }
};

void matmuls(Bench& b, DType type) {
  struct Shape {
    std::uint64_t m, n, k;
  };
  for (const Shape s : {Shape{2048, 768, 256},
                        {2048, 256, 256},
                        {2048, 1024, 256},
                        {2048, 256, 1024},
                        {512, 2304, 768},
                        {512, 768, 768},
                        {512, 3072, 768},
                        {512, 768, 3072},
                        {128, 3072, 768}}) {
    b.blocks.clear();
    // Forward, input gradient and weight gradient of one layer with weight (k, n).
    const Tensor x = b.tensor(type, {s.m, s.k}), w = b.tensor(type, {s.k, s.n});
    const Tensor y = b.tensor(type, {s.m, s.n}), dw = b.tensor(DType::f32, {s.k, s.n});
    const auto run = [&](const char* form, MatmulForm f, Tensor out, Tensor p, Tensor q,
                         bool add_to) {
      Matmul args;
      args.form = f;
      args.out = out, args.a = p, args.b = q, args.accumulate = add_to;
      b.report(fmt::format("matmul {} {} {}x{}x{}", to_string(type), form, s.m, s.n, s.k),
               [&](Stream& stream) { matmul(stream, args); });
    };
    run("forward nn", MatmulForm::nn, y, x, w, false);
    run("input gradient nt", MatmulForm::nt, x, y, w, false);
    run("weight gradient tn", MatmulForm::tn, dw, x, y, true);
  }
  b.blocks.clear();
}

void attention(Bench& b, DType type, AttentionShape s) {
  b.blocks.clear();
  const std::uint64_t rows = std::uint64_t{s.sequences} * s.length, wide = s.heads * s.head_width;
  const Tensor qkv = b.tensor(type, {rows, 3 * wide}), dqkv = b.tensor(type, {rows, 3 * wide});
  const auto slice = [&](Tensor t, std::uint64_t i) {
    t.data += i * wide * size_of(type);
    t.shape[1] = wide;
    return t;
  };
  AttentionForward f;
  f.shape = s;
  f.q = slice(qkv, 0), f.k = slice(qkv, 1), f.v = slice(qkv, 2);
  f.out = b.tensor(type, {rows, wide});
  f.lse = b.tensor(DType::f32, {rows * s.heads});
  f.workspace = b.tensor(DType::f32, {attention_workspace(s, type, false) / 4}, false);
  const auto name =
      fmt::format("{} {}x{} heads {}", to_string(type), s.sequences, s.length, s.heads);
  b.report("attention forward " + name, [&](Stream& stream) { attention_forward(stream, f); });
  AttentionBackward g;
  g.shape = s;
  g.q = f.q, g.k = f.k, g.v = f.v, g.out = f.out, g.lse = f.lse;
  g.dq = slice(dqkv, 0), g.dk = slice(dqkv, 1), g.dv = slice(dqkv, 2);
  g.dout = b.tensor(type, {rows, wide});
  g.workspace = b.tensor(DType::f32, {attention_workspace(s, type, true) / 4}, false);
  b.report("attention backward " + name, [&](Stream& stream) { attention_backward(stream, g); });
}

void head(Bench& b, DType type, std::uint64_t rows, std::uint64_t vocabulary, std::uint64_t width) {
  b.blocks.clear();
  std::vector<std::int32_t> targets(rows);
  std::iota(targets.begin(), targets.end(), 0);
  HeadLossBackward args;
  args.loss.x = b.tensor(type, {rows, width});
  args.loss.table = b.tensor(type, {vocabulary, width});
  args.loss.targets = targets;
  args.loss.workspace =
      b.tensor(DType::f32, {head_workspace(rows, vocabulary, width, type) / 4}, false);
  args.dx = b.tensor(type, {rows, width});
  args.dtable = b.tensor(DType::f32, {vocabulary, width});
  b.report(fmt::format("head loss+gradients {} {}x{}x{}", to_string(type), rows, vocabulary, width),
           [&](Stream& stream) { (void)head_loss_backward(stream, args); });
}

void rest(Bench& b, DType type) {
  b.blocks.clear();
  const std::uint64_t rows = 2048, width = 768;
  const auto name = [&](const char* op) { return fmt::format("{} {}", op, to_string(type)); };
  const Tensor x = b.tensor(type, {rows, width}), y = b.tensor(type, {rows, width});
  const Tensor z = b.tensor(type, {rows, width}), bias = b.tensor(DType::f32, {width});
  NormForward f;
  f.x = x, f.out = y, f.gain = bias, f.bias = b.tensor(DType::f32, {width});
  f.mean = b.tensor(DType::f32, {rows}), f.rstd = b.tensor(DType::f32, {rows});
  b.report(name("layernorm forward"), [&](Stream& s) { norm_forward(s, f); });
  NormBackwardInput i;
  i.dx = z, i.dy = y, i.x = x, i.gain = bias, i.mean = f.mean, i.rstd = f.rstd;
  b.report(name("layernorm backward input"), [&](Stream& s) { norm_backward_input(s, i); });
  NormBackwardParameters p;
  p.dy = y, p.x = x, p.mean = f.mean, p.rstd = f.rstd;
  p.dgain = b.tensor(DType::f32, {width}), p.dbias = b.tensor(DType::f32, {width});
  b.report(name("layernorm backward parameters"),
           [&](Stream& s) { norm_backward_parameters(s, p); });
  b.report(name("bias gradient"), [&](Stream& s) { bias_gradient(s, bias, x); });
  b.report(name("gelu forward"), [&](Stream& s) { gelu_forward(s, y, x); });
  b.report(name("gelu backward"), [&](Stream& s) { gelu_backward(s, z, y, x); });
  b.report(name("swiglu forward"), [&](Stream& s) { swiglu_forward(s, z, x, y); });
  b.report(name("add"), [&](Stream& s) { add(s, z, x, y); });
  b.report(name("dropout"), [&](Stream& s) { dropout(s, z, x, DropoutKey{1, 2, 3, 4}, 0.1); });
  Rope r;
  r.x = x, r.length = 256, r.head_width = 64;
  b.report(name("rope"), [&](Stream& s) { rope(s, r); });
  std::vector<std::int32_t> tokens(rows);
  for (std::size_t t = 0; t < rows; ++t) tokens[t] = static_cast<std::int32_t>(t * 7919 % 4096);
  EmbeddingForward e;
  e.out = x, e.token_table = b.tensor(DType::f32, {4096, width}), e.tokens = tokens, e.length = 256;
  e.position_table = b.tensor(DType::f32, {256, width});
  b.report(name("embedding forward"), [&](Stream& s) { embedding_forward(s, e); });
  EmbeddingBackward g;
  g.dout = x, g.token_gradient = e.token_table, g.tokens = tokens, g.length = 256;
  g.position_gradient = e.position_table;
  b.report(name("embedding backward"), [&](Stream& s) { embedding_backward(s, g); });
}

void updates(Bench& b) {
  b.blocks.clear();
  constexpr std::uint64_t n = 8 << 20;
  AdamW args;
  args.weight = b.tensor(DType::f32, {n}), args.gradient = b.tensor(DType::f32, {n});
  args.first_moment = b.tensor(DType::f32, {n}),
  args.second_moment = b.tensor(DType::f32, {n}, false);
  args.learning_rate = 1e-6;
  b.report("adamw", [&](Stream& s) { adamw(s, args); });
  b.report("sum of squares", [&](Stream& s) { (void)sum_of_squares(s, args.gradient); });
  b.report("fill", [&](Stream& s) { fill(s, args.gradient, 0.1f); });
  b.report("hash", [&](Stream& s) { (void)hash_bytes(s, args.weight); });
  b.report("fill_normal", [&](Stream& s) { fill_normal(s, args.weight, 1, "w", 0.02); });
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  const std::string only = argc > 2 ? argv[2] : "";
  Bench b(static_cast<std::uint32_t>(std::clamp(threads, 1, 16)));
  fmt::print("{} threads: FMA {:.1f} GFLOP/s, read {:.1f} GB/s, copy {:.1f} GB/s\n",
             b.pool.threads(), b.peak.fma_f32 / 1e9, b.peak.memory_read / 1e9,
             b.peak.memory_copy / 1e9);
  for (const DType type : {DType::f32, DType::bf16}) {
    if (only.empty() || only == "matmul") matmuls(b, type);
    if (only.empty() || only == "attention") {
      attention(b, type, {8, 256, 4, 4, 64});
      attention(b, type, {1, 1024, 12, 12, 64});
    }
    if (only.empty() || only == "head") {
      head(b, type, 2048, 4096, 256);
      head(b, type, 512, 50257, 768);
    }
    if (only.empty() || only == "rest") rest(b, type);
  }
  if (only.empty() || only == "rest") updates(b);
  const DeviceRates rates = measure_rates(b.stream);
  fmt::print(
      "rates: matmul f32 {:.1f}, bf16 {:.1f} GFLOP/s, vector {:.1f} GFLOP/s, memory {:.1f} "
      "GB/s, launch {:.1f} us\n",
      rates.matmul_f32 / 1e9, rates.matmul_bf16 / 1e9, rates.vector_f32 / 1e9, rates.memory / 1e9,
      rates.launch * 1e6);
  return 0;
}
