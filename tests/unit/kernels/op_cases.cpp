#include "tests/unit/kernels/op_cases.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

namespace troupe::test {

using namespace kernels;

Tensor Buffers::zeros(DType type,
                      std::initializer_list<std::uint64_t> shape,
                      std::uint64_t padding) {
  Tensor t = make_tensor(nullptr, type, shape);
  t.row_stride += padding;
  if (!memory_) return t;
  const Bytes bytes = (t.rows() * t.row_stride * size_of(type) + 64) / 64 * 64;
  owned_.emplace_back(static_cast<std::byte*>(std::aligned_alloc(64, bytes)), std::free);
  t.data = owned_.back().get();
  std::memset(t.data, 0, bytes);
  return t;
}

Tensor Buffers::normal(DType type,
                       std::initializer_list<std::uint64_t> shape,
                       std::uint64_t padding,
                       float scale) {
  Tensor t = zeros(type, shape, padding);
  if (!memory_) return t;
  std::normal_distribution<float> normal;
  with_float_type(type, [&](auto element) {
    for (std::uint64_t row = 0; row < t.rows(); ++row) {
      for (std::uint64_t i = 0; i < t.columns(); ++i) {
        store(row_of<decltype(element)>(t, row)[i], scale * normal(random_));
      }
    }
  });
  return t;
}

std::vector<std::int32_t> Buffers::ids(std::uint64_t n, std::int32_t first, std::int32_t last) {
  std::vector<std::int32_t> ids(n);
  std::uniform_int_distribution<std::int32_t> pick(first, last);
  for (auto& id : ids) id = pick(random_);
  return ids;
}

std::uint64_t Buffers::between(std::uint64_t low, std::uint64_t high) {
  return std::uniform_int_distribution<std::uint64_t>(low, high)(random_);
}

std::vector<float> values_of(const Tensor& t) {
  std::vector<float> values;
  with_float_type(t.dtype, [&](auto element) {
    for (std::uint64_t row = 0; row < t.rows(); ++row) {
      for (std::uint64_t i = 0; i < t.columns(); ++i) {
        values.push_back(to_float(row_of<decltype(element)>(t, row)[i]));
      }
    }
  });
  return values;
}

std::vector<std::byte> bytes_of(const Tensor& t) {
  std::vector<std::byte> bytes;
  for (std::uint64_t row = 0; row < t.rows(); ++row) {
    const std::byte* begin = t.data + row * t.row_stride * size_of(t.dtype);
    bytes.insert(bytes.end(), begin, begin + t.columns() * size_of(t.dtype));
  }
  return bytes;
}

namespace {

double largest_of(const std::vector<float>& values) {
  double largest = 0.1;  // differences of smaller tensors count as if they were this large
  for (const float v : values) largest = std::max(largest, std::abs(static_cast<double>(v)));
  return largest;
}

}  // namespace

double error_of(const std::vector<float>& expected, const std::vector<float>& got) {
  if (expected.size() != got.size()) return INFINITY;
  const double scale = largest_of(expected);
  double error = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double difference =
        std::abs(static_cast<double>(expected[i]) - static_cast<double>(got[i]));
    if (!(difference <= error * scale))
      error = std::isnan(difference) ? INFINITY : difference / scale;
  }
  return error;
}

namespace {

constexpr DType f32 = DType::f32;
constexpr DType bf16 = DType::bf16;

// f32 sums of a few thousand terms against sums in double; bf16 has eight bits.
double tolerance(DType type) {
  return type == f32 ? 1e-5 : 1.2e-2;
}

std::string type_name(DType type) {
  return std::string(to_string(type));
}

void add_matmuls(std::vector<OpCase>& cases) {
  struct Shape {
    std::uint64_t m, n, k;
  };
  const Shape shapes[] = {{1, 1, 1},      {3, 5, 7},    {1, 300, 64},  {64, 64, 64},
                          {129, 65, 33},  {17, 700, 9}, {300, 17, 50}, {512, 96, 40},
                          {260, 530, 70}, {5, 64, 300}, {12, 160, 520}};
  for (const MatmulForm form : {MatmulForm::nn, MatmulForm::nt, MatmulForm::tn}) {
    for (const Shape s : shapes) {
      for (int variant = 0; variant < 6; ++variant) {
        const DType in = variant < 3 ? f32 : bf16;
        const DType out = variant == 5 ? bf16 : f32;
        const bool accumulate = variant == 1 || variant == 4;
        const bool bias = variant == 2 || variant == 5;
        const std::uint64_t pad = s.k % 2 == 0 ? 0 : 3;
        const std::string name =
            fmt::format("matmul form={} {} m={} n={} k={} variant={}", static_cast<int>(form),
                        type_name(in), s.m, s.n, s.k, variant);
        cases.push_back({name, tolerance(out), [=](Stream& stream, Buffers& b) {
                           Matmul args;
                           args.form = form;
                           args.a = form == MatmulForm::tn ? b.normal(in, {s.k, s.m}, pad)
                                                           : b.normal(in, {s.m, s.k}, pad);
                           args.b = form == MatmulForm::nt ? b.normal(in, {s.n, s.k}, pad)
                                                           : b.normal(in, {s.k, s.n}, pad);
                           args.out = b.normal(out, {s.m, s.n}, pad);
                           if (bias) args.bias = b.normal(f32, {s.n});
                           args.accumulate = accumulate;
                           args.workspace =
                               b.zeros(f32, {matmul_workspace(form, in, s.m, s.n, s.k) / 4});
                           matmul(stream, args);
                           return Outcome{{args.out}, {}};
                         }});
      }
    }
  }
  // A transposed a whose terms are far apart is packed.
  for (const Shape s : {Shape{1, 1, 1}, Shape{49, 65, 33}, Shape{101, 70, 520}}) {
    for (const DType type : {f32, bf16}) {
      cases.push_back({fmt::format("matmul of a wide a, transposed, {} m={} n={} k={}",
                                   type_name(type), s.m, s.n, s.k),
                       1e-5, [=](Stream& stream, Buffers& b) {
                         Matmul args;
                         args.form = MatmulForm::tn;
                         args.a = b.normal(type, {s.k, s.m}, 2048);
                         args.b = b.normal(type, {s.k, s.n});
                         args.out = b.zeros(f32, {s.m, s.n});
                         matmul(stream, args);
                         return Outcome{{args.out}, {}};
                       }});
    }
  }
  using Kind = MatmulEpilogue::Kind;
  for (const DType type : {f32, bf16}) {
    for (const Kind kind : {Kind::gelu, Kind::gelu_gradient, Kind::add}) {
      for (const MatmulForm form : {MatmulForm::nn, MatmulForm::nt}) {
        for (const Shape s : {Shape{1, 1, 1}, Shape{129, 65, 33}, Shape{70, 530, 600}}) {
          const std::string name =
              fmt::format("matmul with epilogue {} form={} {} {}x{}x{}", static_cast<int>(kind),
                          static_cast<int>(form), type_name(type), s.m, s.n, s.k);
          cases.push_back({name, tolerance(type), [=](Stream& stream, Buffers& b) {
                             Matmul args;
                             args.form = form;
                             args.a = b.normal(type, {s.m, s.k}, 0, 0.1f);
                             args.b = form == MatmulForm::nt ? b.normal(type, {s.n, s.k})
                                                             : b.normal(type, {s.k, s.n});
                             args.out = b.zeros(type, {s.m, s.n});
                             args.bias = b.normal(f32, {s.n});
                             args.epilogue = {kind, b.normal(type, {s.m, s.n})};
                             matmul(stream, args);
                             return Outcome{{args.out, args.epilogue.other}, {}};
                           }});
        }
      }
    }
    for (const Shape s : {Shape{1, 1, 1}, Shape{33, 65, 129}, Shape{300, 530, 600}}) {
      cases.push_back(
          {fmt::format("matmul with column sums {} {}x{}x{}", type_name(type), s.m, s.n, s.k), 1e-5,
           [=](Stream& stream, Buffers& b) {
             Matmul args;
             args.form = MatmulForm::tn;
             args.a = b.normal(type, {s.k, s.m});
             args.b = b.normal(type, {s.k, s.n}, 1);
             args.out = b.zeros(f32, {s.m, s.n});
             args.column_sums = b.normal(f32, {s.n});
             matmul(stream, args);
             return Outcome{{args.out, args.column_sums}, {}};
           }});
    }
  }
  for (const DType type : {f32, bf16}) {
    for (const std::uint64_t rows : {1, 63, 200}) {
      for (const std::uint64_t columns : {1, 17, 130}) {
        cases.push_back({fmt::format("bias_gradient {} {}x{}", type_name(type), rows, columns),
                         1e-5, [=](Stream& stream, Buffers& b) {
                           const Tensor out = b.normal(f32, {columns});
                           bias_gradient(stream, out, b.normal(type, {rows, columns}, 2));
                           return Outcome{{out}, {}};
                         }});
      }
    }
  }
}

Outcome run_norm(Stream& stream,
                 Buffers& b,
                 NormKind kind,
                 DType type,
                 std::uint64_t rows,
                 std::uint64_t columns,
                 bool residual) {
  const bool layer = kind == NormKind::layer;
  NormForward f;
  f.kind = kind;
  f.x = b.normal(type, {rows, columns});
  f.out = b.zeros(type, {rows, columns});
  if (residual) {
    f.residual = b.normal(type, {rows, columns});
    f.sum = b.zeros(type, {rows, columns});
  }
  f.gain = b.normal(f32, {columns});
  f.rstd = b.zeros(f32, {rows});
  if (layer) {
    f.bias = b.normal(f32, {columns});
    f.mean = b.zeros(f32, {rows});
  }
  norm_forward(stream, f);
  NormBackwardInput i;
  i.kind = kind;
  i.dy = b.normal(type, {rows, columns});
  i.dx = b.normal(type, {rows, columns});
  i.x = residual ? f.sum : f.x;
  i.gain = f.gain;
  i.mean = f.mean;
  i.rstd = f.rstd;
  i.accumulate = residual;
  norm_backward_input(stream, i);
  NormBackwardParameters p;
  p.kind = kind;
  p.dy = i.dy;
  p.x = i.x;
  p.mean = f.mean;
  p.rstd = f.rstd;
  p.dgain = b.normal(f32, {columns});
  if (layer) p.dbias = b.normal(f32, {columns});
  norm_backward_parameters(stream, p);
  Outcome outcome{{f.out, f.rstd, i.dx, p.dgain}, {}};
  if (residual) outcome.tensors.push_back(f.sum);
  if (layer) outcome.tensors.insert(outcome.tensors.end(), {f.mean, p.dbias});
  return outcome;
}

void add_norms(std::vector<OpCase>& cases) {
  for (const NormKind kind : {NormKind::layer, NormKind::rms}) {
    for (const DType type : {f32, bf16}) {
      for (const std::uint64_t columns : {2, 7, 32, 65, 256, 771}) {
        for (const bool residual : {false, true}) {
          const std::uint64_t rows = columns == 7 ? 300 : 65;
          cases.push_back({fmt::format("norm kind={} {} {}x{} residual={}", static_cast<int>(kind),
                                       type_name(type), rows, columns, residual),
                           // A row of two nearly equal elements has a large rstd.
                           type == f32 ? (columns == 2 ? 2e-3 : 3e-5) : 2e-2,
                           [=](Stream& stream, Buffers& b) {
                             return run_norm(stream, b, kind, type, rows, columns, residual);
                           }});
        }
      }
    }
  }
}

Outcome run_attention(
    Stream& stream, Buffers& b, const AttentionShape& s, DType type, bool sliced) {
  const std::uint64_t rows = std::uint64_t{s.sequences} * s.length;
  const std::uint64_t wide = std::uint64_t{s.heads} * s.head_width;
  const std::uint64_t narrow = std::uint64_t{s.kv_heads} * s.head_width;
  const std::uint64_t extra = sliced ? narrow + 5 : 0;
  AttentionForward f;
  f.shape = s;
  f.q = b.normal(type, {rows, wide}, extra);
  f.k = b.normal(type, {rows, narrow}, extra);
  f.v = b.normal(type, {rows, narrow}, extra);
  f.out = b.zeros(type, {rows, wide});
  f.lse = b.zeros(f32, {s.sequences, s.heads, s.length});
  f.workspace = b.zeros(f32, {attention_workspace(s, type, false) / 4});
  attention_forward(stream, f);
  AttentionBackward g;
  g.shape = s;
  g.q = f.q, g.k = f.k, g.v = f.v, g.out = f.out, g.lse = f.lse;
  g.dout = b.normal(type, {rows, wide});
  g.dq = b.zeros(type, {rows, wide}, extra);
  g.dk = b.zeros(type, {rows, narrow}, extra);
  g.dv = b.zeros(type, {rows, narrow}, extra);
  g.workspace = b.zeros(f32, {attention_workspace(s, type, true) / 4});
  attention_backward(stream, g);
  return {{f.out, f.lse, g.dq, g.dk, g.dv}, {}};
}

void add_attention(std::vector<OpCase>& cases) {
  const AttentionShape shapes[] = {{1, 1, 1, 1, 4},   {2, 5, 2, 1, 8},   {1, 64, 4, 4, 16},
                                   {2, 65, 4, 2, 6},  {1, 130, 6, 2, 8}, {3, 100, 2, 2, 64},
                                   {1, 300, 2, 1, 72}};
  for (const AttentionShape& s : shapes) {
    for (const DType type : {f32, bf16}) {
      for (const bool sliced : {false, true}) {
        cases.push_back(
            {fmt::format("attention {} sequences={} length={} heads={}/{} width={} sliced={}",
                         type_name(type), s.sequences, s.length, s.heads, s.kv_heads, s.head_width,
                         sliced),
             type == f32 ? 1e-5 : 2.5e-2, [=](Stream& stream, Buffers& b) {
               return run_attention(stream, b, s, type, sliced);
             }});
      }
    }
  }
  for (const DType type : {f32, bf16}) {
    for (const bool inverse : {false, true}) {
      cases.push_back({fmt::format("rope {} inverse={}", type_name(type), inverse), tolerance(type),
                       [=](Stream& stream, Buffers& b) {
                         Rope args;
                         args.x = b.normal(type, {3 * 50, 4 * 22}, 9);
                         args.length = 50;
                         args.head_width = 22;
                         args.inverse = inverse;
                         rope(stream, args);
                         return Outcome{{args.x}, {}};
                       }});
    }
  }
}

void add_elementwise(std::vector<OpCase>& cases) {
  for (const DType type : {f32, bf16}) {
    for (const std::uint64_t n : {1, 15, 16, 33, 1000, 40000}) {
      const auto name = [&](const char* op) {
        return fmt::format("{} {} n={}", op, type_name(type), n);
      };
      const double bound = tolerance(type);
      cases.push_back({name("gelu"), bound, [=](Stream& stream, Buffers& b) {
                         const Tensor x = b.normal(type, {n}, 0, 3.0f);
                         const Tensor out = b.zeros(type, {n}), dx = b.zeros(type, {n});
                         gelu_forward(stream, out, x);
                         gelu_backward(stream, dx, b.normal(type, {n}), x);
                         return Outcome{{out, dx}, {}};
                       }});
      cases.push_back(
          {name("swiglu"), bound, [=](Stream& stream, Buffers& b) {
             const Tensor gate = b.normal(type, {3, n}, 7, 3.0f), up = b.normal(type, {3, n}, 7);
             const Tensor out = b.zeros(type, {3, n}), dy = b.normal(type, {3, n});
             const Tensor dgate = b.zeros(type, {3, n}, 1), dup = b.zeros(type, {3, n}, 1);
             swiglu_forward(stream, out, gate, up);
             swiglu_backward(stream, dgate, dup, dy, gate, up);
             return Outcome{{out, dgate, dup}, {}};
           }});
      cases.push_back({name("add"), bound, [=](Stream& stream, Buffers& b) {
                         const Tensor a = b.normal(type, {n});
                         add(stream, a, a, b.normal(type, {n}));
                         return Outcome{{a}, {}};
                       }});
      cases.push_back(
          {name("fill and copy"), 0, [=](Stream& stream, Buffers& b) {
             const Tensor filled = b.zeros(type, {2, n}, 3), copied = b.zeros(type, {2, n}, 5);
             const Tensor turned = b.zeros(type == f32 ? bf16 : f32, {2, n});
             fill(stream, filled, 0.3f);
             copy(stream, copied, b.normal(type, {2, n}, 1));
             copy(stream, turned, copied);
             return Outcome{{filled, copied, turned}, {}};
           }});
      cases.push_back({name("dropout"), 0, [=](Stream& stream, Buffers& b) {
                         const Tensor x = b.normal(type, {3, n}), out = b.zeros(type, {3, n});
                         dropout(stream, out, x, DropoutKey{77, 5, 3, 1000}, 0.3);
                         return Outcome{{out}, {}};
                       }});
    }
  }
}

void add_tables(std::vector<OpCase>& cases) {
  for (const DType type : {f32, bf16}) {
    for (const bool positions : {false, true}) {
      for (const std::uint64_t width : {3, 64, 150}) {
        cases.push_back(
            {fmt::format("embedding {} positions={} width={}", type_name(type), positions, width),
             tolerance(type), [=](Stream& stream, Buffers& b) {
               const auto ids = b.ids(4 * 11, 0, 19);
               EmbeddingForward f;
               f.out = b.zeros(type, {44, width});
               f.token_table = b.normal(f32, {20, width});
               if (positions) f.position_table = b.normal(f32, {13, width});
               f.tokens = ids;
               f.length = 11;
               embedding_forward(stream, f);
               EmbeddingBackward g;
               g.dout = b.normal(type, {44, width});
               g.token_gradient = b.normal(f32, {20, width});
               if (positions) g.position_gradient = b.normal(f32, {13, width});
               g.tokens = ids;
               g.length = 11;
               embedding_backward(stream, g);
               Outcome outcome{{f.out, g.token_gradient}, {}};
               if (positions) outcome.tensors.push_back(g.position_gradient);
               return outcome;
             }});
      }
    }
  }
}

Outcome run_head(Stream& stream,
                 Buffers& b,
                 DType type,
                 std::uint64_t rows,
                 std::uint64_t vocabulary,
                 std::uint64_t width) {
  const auto targets = b.ids(rows, -1, static_cast<std::int32_t>(vocabulary) - 1);
  HeadLossBackward args;
  args.loss.x = b.normal(type, {rows, width});
  args.loss.table = b.normal(type, {vocabulary, width}, 0, 0.3f);
  args.loss.targets = targets;
  args.loss.workspace = b.zeros(f32, {head_workspace(rows, vocabulary, width, type) / 4});
  args.dx = b.zeros(type, {rows, width});
  args.dtable = b.normal(f32, {vocabulary, width}, 0, 0.01f);
  args.scale = 0.125;
  const double both = head_loss_backward(stream, args);
  const double alone = head_loss(stream, args.loss);
  HeadLogits logits{b.zeros(f32, {rows, vocabulary}), args.loss.x, args.loss.table,
                    args.loss.workspace};
  head_logits(stream, logits);
  return {{args.dx, args.dtable, logits.out}, {both, alone}};
}

void add_head(std::vector<OpCase>& cases) {
  struct Shape {
    std::uint64_t rows, vocabulary, width;
  };
  for (const Shape s : {Shape{1, 2, 4}, Shape{5, 17, 8}, Shape{70, 300, 32}, Shape{1030, 37, 5}}) {
    for (const DType type : {f32, bf16}) {
      cases.push_back({fmt::format("head {} rows={} vocabulary={} width={}", type_name(type),
                                   s.rows, s.vocabulary, s.width),
                       type == f32 ? 1e-5 : 2e-2, [=](Stream& stream, Buffers& b) {
                         return run_head(stream, b, type, s.rows, s.vocabulary, s.width);
                       }});
    }
  }
}

void add_updates(std::vector<OpCase>& cases) {
  for (const std::uint64_t n : {1, 17, 4097, 100003}) {
    cases.push_back({fmt::format("sum_of_squares n={}", n), 1e-12, [=](Stream& stream, Buffers& b) {
                       return Outcome{{}, {sum_of_squares(stream, b.normal(f32, {n}))}};
                     }});
    for (const bool narrow : {false, true}) {
      cases.push_back(
          {fmt::format("adamw n={} bf16={}", n, narrow), 1e-6, [=](Stream& stream, Buffers& b) {
             AdamW args;
             args.weight = b.normal(f32, {n});
             args.first_moment = b.normal(f32, {n}, 0, 0.1f);
             args.second_moment = b.zeros(f32, {n});
             args.gradient = b.normal(f32, {n});
             if (narrow) args.weight_bf16 = b.zeros(bf16, {n});
             args.learning_rate = 0.01;
             args.weight_decay = 0.1;
             args.gradient_scale = 0.5;
             args.step = 3;
             adamw(stream, args);
             return Outcome{{args.weight, args.first_moment, args.second_moment}, {}};
           }});
    }
    cases.push_back({fmt::format("fill_normal n={}", n), 0, [=](Stream& stream, Buffers& b) {
                       const Tensor out = b.zeros(f32, {n});
                       fill_normal(stream, out, 42, "transformer.wte.weight", 0.02);
                       const std::uint64_t hash = hash_bytes(stream, out, 7);
                       return Outcome{{out}, {static_cast<double>(hash >> 12)}};
                     }});
  }
}

}  // namespace

std::vector<OpCase> op_cases() {
  std::vector<OpCase> cases;
  add_matmuls(cases);
  add_norms(cases);
  add_attention(cases);
  add_elementwise(cases);
  add_tables(cases);
  add_head(cases);
  add_updates(cases);
  return cases;
}

}  // namespace troupe::test
