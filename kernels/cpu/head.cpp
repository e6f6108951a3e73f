#include <algorithm>

#include "devices/arena.h"
#include "devices/compute_pool.h"
#include "kernels/cpu/fast.h"
#include "kernels/cpu/shards.h"
#include "kernels/cpu/softmax.h"
#include "kernels/element.h"

namespace troupe::kernels::cpu {
namespace {

Tensor rows_of(Tensor t, std::uint64_t first, std::uint64_t count) {
  t.data += first * t.row_stride * size_of(t.dtype);
  const std::uint64_t columns = t.columns();
  t.rank = 2;
  t.shape = {count, columns, 0, 0};
  return t;
}

/// The head's workspace: one tile of logits, and one loss a row.
struct Scratch {
  Tensor tile;  ///< f32 (tile rows, V), rows padded
  double* losses;
};

Scratch scratch_of(const HeadLoss& args) {
  const std::uint64_t vocabulary = args.table.rows();
  const std::uint64_t rows = std::min(args.x.rows(), head_tile_rows(vocabulary));
  Scratch s;
  std::byte* at = args.workspace.data;
  s.tile = make_tensor(at, DType::f32, {rows, vocabulary});
  s.tile.row_stride = head_tile_stride(vocabulary);
  at += arena_bytes(rows * s.tile.row_stride * 4);
  s.losses = reinterpret_cast<double*>(at);
  return s;
}

void product(Stream& stream, MatmulForm form, Tensor out, Tensor a, Tensor b, bool accumulate) {
  Matmul m;
  m.form = form;
  m.out = out;
  m.a = a;
  m.b = b;
  m.accumulate = accumulate;
  cpu::matmul(stream, m);
}

/// Logits of one tile become losses and, with `backward`, gradients.
void tile_losses(Stream& stream,
                 const HeadLoss& args,
                 const HeadLossBackward* backward,
                 const Scratch& s,
                 std::uint64_t first,
                 std::uint64_t rows) {
  const std::uint64_t vocabulary = args.table.rows();
  const bool narrow = args.x.dtype == DType::bf16;
  stream.pool().run(shard_count(rows, 4), [&](std::uint64_t shard, std::uint32_t) {
    for (std::uint64_t i = shard * 4; i < std::min(rows, shard * 4 + 4); ++i) {
      float* logits = row_of<float>(s.tile, i);
      const std::int32_t target = args.targets[first + i];
      double& loss = s.losses[first + i];
      loss = 0;
      if (target < 0) {
        if (backward != nullptr) std::fill_n(logits, vocabulary, 0.0f);
        continue;
      }
      EXPECTS(static_cast<std::uint64_t>(target) < vocabulary);
      const auto at = static_cast<std::uint64_t>(target);
      loss = backward == nullptr ? row_loss(logits, vocabulary, at)
                                 : row_loss_gradient(logits, vocabulary, at,
                                                     static_cast<float>(backward->scale), narrow);
    }
  });
}

double loss_over_tiles(Stream& stream, const HeadLoss& args, const HeadLossBackward* backward) {
  const Scratch s = scratch_of(args);
  const std::uint64_t all = args.x.rows();
  const std::uint64_t step = s.tile.rows();
  for (std::uint64_t first = 0; first < all; first += step) {
    const std::uint64_t rows = std::min(step, all - first);
    const Tensor x = rows_of(args.x, first, rows);
    const Tensor tile = rows_of(s.tile, 0, rows);
    product(stream, MatmulForm::nt, tile, x, args.table, false);
    tile_losses(stream, args, backward, s, first, rows);
    if (backward == nullptr) continue;
    Tensor gradient = tile;
    if (x.dtype == DType::bf16) {
      gradient.dtype = DType::bf16;
      gradient.row_stride *= 2;
    }
    product(stream, MatmulForm::nn, rows_of(backward->dx, first, rows), gradient, args.table,
            false);
    product(stream, MatmulForm::tn, backward->dtable, gradient, x, true);
  }
  double loss = 0;
  for (std::uint64_t row = 0; row < all; ++row) {
    if (args.targets[row] >= 0) loss += s.losses[row];
  }
  return loss;
}

}  // namespace

double head_loss(Stream& stream, const HeadLoss& args) {
  return loss_over_tiles(stream, args, nullptr);
}

double head_loss_backward(Stream& stream, const HeadLossBackward& args) {
  return loss_over_tiles(stream, args.loss, &args);
}

}  // namespace troupe::kernels::cpu
