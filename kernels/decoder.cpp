#include "kernels/decoder.h"

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/layers/linear.h"
#include "kernels/ops.h"
#include "kernels/stage_body.h"

namespace troupe::kernels {
namespace {

/// Tokens that go through the layers at once; a longer prompt goes in pieces.
constexpr std::uint32_t piece_length = 64;

struct Norm {
  Tensor gain, bias;  ///< bias: rank 0 for RMSNorm
};

/// What a block's forward reads, and what it keeps of the positions seen.
struct DecoderBlock {
  Norm norm1, norm2;
  Linear qkv, proj, up, down;
  Tensor keys, values;  ///< (sequence length, kv width)
};

Tensor columns(const Tensor& matrix, std::uint64_t first, std::uint64_t count) {
  Tensor slice = matrix;
  if (slice.data != nullptr) slice.data += first * size_of(matrix.dtype);
  slice.shape[1] = count;
  return slice;
}

Tensor rows(const Tensor& matrix, std::uint64_t first, std::uint64_t count) {
  Tensor slice = matrix;
  if (slice.data != nullptr) slice.data += first * matrix.row_stride * size_of(matrix.dtype);
  slice.shape[0] = count;
  return slice;
}

class DecoderBody final : public Decoder {
 public:
  explicit DecoderBody(StageBody& stage)
      : stage_(stage), model_(stage.spec().model), compute_(stage.spec().shape.compute) {}
  Status allocate(Arena& arena);

  Stage& stage() override { return stage_; }
  std::uint32_t length() const override { return length_; }
  void clear() override { length_ = 0; }
  void append(Stream& stream, std::span<const std::int32_t> tokens, Tensor logits) override;

 private:
  bool llama() const { return model_.family == ModelFamily::llama; }
  NormKind norm_kind() const { return llama() ? NormKind::rms : NormKind::layer; }
  std::uint64_t kv_width() const { return std::uint64_t{model_.head_width()} * model_.kv_heads; }
  std::uint64_t up_width() const { return (llama() ? 2 : 1) * std::uint64_t{model_.ffn_width}; }
  std::uint32_t capacity() const { return stage_.spec().shape.sequence_length; }
  AttentionShape attention_shape(std::uint32_t count) const {
    return {1, count, model_.heads, model_.kv_heads, model_.head_width()};
  }

  /// Between the ops of one piece.
  struct Work {
    Tensor mean, rstd, x, middle, normalised, qkv, attended, hidden, activated, scratch;
    Work(const DecoderBody& decoder, std::uint32_t count, Area& area);
  };
  Bytes scratch_bytes(std::uint32_t count) const;
  void bind(DecoderBlock& block, std::span<Parameter> parameters) const;
  void carve(Area& area);
  /// Sees a piece; the last layer's output is the `x` of what it returns.
  Work see(Stream& stream, std::span<const std::int32_t> tokens);
  void run_block(Stream& stream, const DecoderBlock& block, const Work& work) const;
  void attend(Stream& stream, const DecoderBlock& block, const Work& work) const;
  /// out = norm(x), or with `residual` (rank > 0): residual += x, out = norm(residual).
  void normalise(Stream& stream,
                 const Norm& norm,
                 Tensor out,
                 Tensor x,
                 Tensor residual,
                 const Work& work) const;

  StageBody& stage_;
  ModelSpec model_;
  DType compute_;
  std::vector<DecoderBlock> blocks_;
  Tensor tokens_table_, positions_table_, head_table_;
  Norm final_norm_;
  Block kept_, work_;
  std::uint32_t length_ = 0;
};

DecoderBody::Work::Work(const DecoderBody& decoder, std::uint32_t count, Area& area) {
  const ModelSpec& model = decoder.model_;
  const auto matrix = [&](std::uint64_t width) {
    return area.tensor(decoder.compute_, {count, width});
  };
  if (!decoder.llama()) mean = area.tensor(DType::f32, {count});
  rstd = area.tensor(DType::f32, {count});
  x = matrix(model.width);
  middle = matrix(model.width);
  normalised = matrix(model.width);
  qkv = matrix(model.width + 2 * decoder.kv_width());
  attended = matrix(model.width);
  hidden = matrix(decoder.up_width());
  activated = matrix(model.ffn_width);
  scratch = kernels::scratch(area, decoder.scratch_bytes(count));
}

Bytes DecoderBody::scratch_bytes(std::uint32_t count) const {
  const DecoderBlock& block = blocks_.front();
  return std::max({block.qkv.forward_workspace(count), block.proj.forward_workspace(count),
                   block.up.forward_workspace(count), block.down.forward_workspace(count),
                   attention_decode_workspace(attention_shape(count), capacity(), compute_),
                   head_workspace(1, model_.vocabulary, model_.width, compute_)});
}

void DecoderBody::bind(DecoderBlock& block, std::span<Parameter> parameters) const {
  const auto named = [&](const char* name) -> const Parameter& {
    return parameter_named(parameters, name);
  };
  if (llama()) {
    // Those that one product serves lie without a gap.
    const auto linear = [&](const char* first, std::uint64_t out) {
      return Linear{stacked(named(first).compute, out), {}, {}, {}, true};
    };
    block.norm1 = {named("input_layernorm.weight").weight, {}};
    block.norm2 = {named("post_attention_layernorm.weight").weight, {}};
    block.qkv = linear("q_proj.weight", model_.width + 2 * kv_width());
    block.proj = linear("o_proj.weight", model_.width);
    block.up = linear("gate_proj.weight", up_width());
    block.down = linear("down_proj.weight", model_.width);
    return;
  }
  const auto linear = [&](const char* weight, const char* bias) {
    return Linear{named(weight).compute, {}, named(bias).weight, {}, false};
  };
  block.norm1 = {named("ln_1.weight").weight, named("ln_1.bias").weight};
  block.norm2 = {named("ln_2.weight").weight, named("ln_2.bias").weight};
  block.qkv = linear("attn.c_attn.weight", "attn.c_attn.bias");
  block.proj = linear("attn.c_proj.weight", "attn.c_proj.bias");
  block.up = linear("mlp.c_fc.weight", "mlp.c_fc.bias");
  block.down = linear("mlp.c_proj.weight", "mlp.c_proj.bias");
}

void DecoderBody::carve(Area& area) {
  for (DecoderBlock& block : blocks_) {
    block.keys = area.tensor(compute_, {capacity(), kv_width()});
    block.values = area.tensor(compute_, {capacity(), kv_width()});
  }
}

Status DecoderBody::allocate(Arena& arena) {
  std::vector<StageLayer>& layers = stage_.layers();
  for (std::size_t i = 1; i + 1 < layers.size(); ++i)
    bind(blocks_.emplace_back(), layers[i].parameters);
  std::span<Parameter> first = layers.front().parameters;
  std::span<Parameter> last = layers.back().parameters;
  const char* const table = llama() ? "embed_tokens.weight" : "wte.weight";
  tokens_table_ = parameter_named(first, table).weight;
  if (!llama()) positions_table_ = parameter_named(first, "wpe.weight").weight;
  head_table_ = parameter_named(last, model_.tied ? table : "lm_head.weight").compute;
  final_norm_.gain = parameter_named(last, llama() ? "model.norm.weight" : "ln_f.weight").weight;
  if (!llama()) final_norm_.bias = parameter_named(last, "ln_f.bias").weight;

  Area kept;
  carve(kept);
  auto kept_block = arena.allocate(kept.used(), MemoryCategory::activations);
  if (!kept_block) return kept_block.error();
  kept_ = std::move(*kept_block);
  Area memory(kept_.data(), kept_.size());
  carve(memory);
  Area counted;
  const Work work(*this, std::min(piece_length, capacity()), counted);
  auto work_block = arena.allocate(counted.used(), MemoryCategory::workspace);
  if (!work_block) return work_block.error();
  work_ = std::move(*work_block);
  return {};
}

void DecoderBody::append(Stream& stream, std::span<const std::int32_t> tokens, Tensor logits) {
  EXPECTS(!tokens.empty() && tokens.size() <= capacity() - length_);
  for (; tokens.size() > piece_length; tokens = tokens.subspan(piece_length))
    see(stream, tokens.first(piece_length));
  Work work = see(stream, tokens);
  const Tensor last = rows(work.x, tokens.size() - 1, 1);
  const Tensor normalised = rows(work.normalised, 0, 1);
  if (work.mean.rank > 0) work.mean = make_tensor(work.mean.data, DType::f32, {1});
  work.rstd = make_tensor(work.rstd.data, DType::f32, {1});
  normalise(stream, final_norm_, normalised, last, {}, work);
  head_logits(stream, {logits, normalised, head_table_, work.scratch});
}

DecoderBody::Work DecoderBody::see(Stream& stream, std::span<const std::int32_t> tokens) {
  const auto count = static_cast<std::uint32_t>(tokens.size());
  Area area(work_.data(), work_.size());
  const Work work(*this, count, area);
  Tensor positions = positions_table_;
  if (positions.rank > 0) positions = rows(positions, length_, count);
  embedding_forward(stream, {work.x, tokens_table_, positions, tokens, count});
  for (const DecoderBlock& block : blocks_) run_block(stream, block, work);
  length_ += count;
  return work;
}

void DecoderBody::normalise(Stream& stream,
                            const Norm& norm,
                            Tensor out,
                            Tensor x,
                            Tensor residual,
                            const Work& work) const {
  norm_forward(stream, {norm_kind(), out, x, residual, residual, norm.gain, norm.bias, work.mean,
                        work.rstd, model_.norm_epsilon});
}

void DecoderBody::attend(Stream& stream, const DecoderBlock& block, const Work& work) const {
  const auto count = static_cast<std::uint32_t>(work.qkv.rows());
  const std::uint64_t width = model_.width;
  if (llama())
    rope(stream, {columns(work.qkv, 0, width + kv_width()), count, model_.head_width(),
                  model_.rope_theta, false, length_});
  copy(stream, rows(block.keys, length_, count), columns(work.qkv, width, kv_width()));
  copy(stream, rows(block.values, length_, count),
       columns(work.qkv, width + kv_width(), kv_width()));
  attention_decode(stream, {attention_shape(count), length_, work.attended,
                            columns(work.qkv, 0, width), block.keys, block.values, work.scratch});
}

// The flow of the layers' block (kernels/layers/block.cpp) in its forward, with kept keys.
void DecoderBody::run_block(Stream& stream, const DecoderBlock& block, const Work& work) const {
  normalise(stream, block.norm1, work.normalised, work.x, {}, work);
  block.qkv.forward(stream, work.qkv, work.normalised, work.scratch);
  attend(stream, block, work);
  block.proj.forward(stream, work.middle, work.attended, work.scratch);
  normalise(stream, block.norm2, work.normalised, work.x, work.middle, work);
  block.up.forward(stream, work.hidden, work.normalised, work.scratch);
  if (llama())
    swiglu_forward(stream, work.activated, columns(work.hidden, 0, model_.ffn_width),
                   columns(work.hidden, model_.ffn_width, model_.ffn_width));
  else
    gelu_forward(stream, work.activated, work.hidden);
  block.down.forward(stream, work.x, work.activated, work.scratch);
  add(stream, work.x, work.middle, work.x);
}

}  // namespace
}  // namespace troupe::kernels

namespace troupe {

Result<std::unique_ptr<Decoder>> Decoder::create(Device& device, Stage& stage) {
  EXPECTS(stage.spec().layers == (LayerRange{0, layer_count(stage.spec().model)}));
  // StageBody is the only Stage there is.
  auto decoder = std::make_unique<kernels::DecoderBody>(static_cast<kernels::StageBody&>(stage));
  TROUPE_TRY(decoder->allocate(device.arena()));
  return std::unique_ptr<Decoder>(std::move(decoder));
}

}  // namespace troupe
