#include "kernels/decoder.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "kernels/generate.h"
#include "tests/support/catch.h"
#include "tests/support/tiny_training.h"
#include "tests/unit/kernels/op_cases.h"

using namespace troupe;
using namespace troupe::kernels;
using namespace troupe::test;

namespace {

/// Largest difference, relative to the largest expected element.
double difference(const std::vector<float>& expected, const std::vector<float>& got) {
  REQUIRE(expected.size() == got.size());
  double most = 0, largest = 1e-30;
  for (std::size_t i = 0; i < got.size(); ++i) {
    most = std::max(most, std::abs(double{expected[i]} - double{got[i]}));
    largest = std::max(largest, std::abs(double{expected[i]}));
  }
  return most / largest;
}

/// Rows [first, first + count) of a matrix.
Tensor part(const Tensor& t, std::uint64_t first, std::uint64_t count) {
  Tensor rows = t;
  rows.data += first * t.row_stride * size_of(t.dtype);
  rows.shape[0] = count;
  return rows;
}

struct DecodeCase {
  std::uint32_t first, length, heads, kv_heads, head_width;
};

/// attention_decode of the last `length` positions, beside attention_forward of all.
struct DecodeRun {
  std::vector<float> decoded, whole;
};
DecodeRun run_decode(Stream& stream, const DecodeCase& c, DType type, std::uint64_t seed) {
  Buffers b(seed, true);
  const std::uint64_t wide = std::uint64_t{c.heads} * c.head_width;
  const std::uint64_t narrow = std::uint64_t{c.kv_heads} * c.head_width;
  const std::uint32_t all = c.first + c.length;
  AttentionForward whole;
  whole.shape = {1, all, c.heads, c.kv_heads, c.head_width};
  whole.q = b.normal(type, {all, wide}, 2 * narrow);
  whole.k = b.normal(type, {all, narrow}, 3);
  whole.v = b.normal(type, {all, narrow}, 3);
  whole.out = b.zeros(type, {all, wide});
  whole.lse = b.zeros(DType::f32, {1, c.heads, all});
  whole.workspace = b.zeros(DType::f32, {attention_workspace(whole.shape, type, false) / 4});
  attention_forward(stream, whole);
  AttentionDecode decode;
  decode.shape = {1, c.length, c.heads, c.kv_heads, c.head_width};
  decode.first = c.first;
  decode.q = part(whole.q, c.first, c.length);
  decode.k = whole.k;
  decode.v = whole.v;
  decode.out = b.zeros(type, {c.length, wide}, 7);
  decode.workspace = b.zeros(DType::f32, {attention_decode_workspace(decode.shape, all, type) / 4});
  attention_decode(stream, decode);
  return {values_of(decode.out), values_of(part(whole.out, c.first, c.length))};
}

/// A model whose context is longer than a piece of the prompt.
ModelSpec model_of(ModelFamily family, bool tied, std::uint32_t context) {
  ModelSpec model = family == ModelFamily::llama ? tiny_llama(tied) : tiny_gpt2(tied);
  model.context = context;
  return model;
}

/// A model with random weights and what reads it.
struct Reader {
  PlainDevice device;
  std::unique_ptr<Stage> stage;
  std::unique_ptr<Decoder> decoder;

  Reader(const ModelSpec& model, DType compute, std::uint64_t seed, Stream& stream) {
    StageSpec spec = whole_model(model, {1, 1, model.context, 1, compute});
    spec.weights_only = true;
    spec.seed = seed;
    stage = make_stage(device, spec);
    stage->initialize();
    // Spread out, so that tokens differ clearly; norms and biases get values of their own.
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    for (const NamedState& one : stage->state())
      for (std::uint64_t i = 0; i < one.weight.elements(); ++i)
        one.weight.as<float>()[i] = 3 * one.weight.as<float>()[i] + 0.1F * normal(random);
    stage->weights_changed(stream);
    auto made = Decoder::create(device, *stage);
    REQUIRE(made.ok());
    decoder = std::move(*made);
  }
};

std::vector<std::int32_t> random_tokens(const ModelSpec& model, std::size_t n, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::int32_t> tokens(n);
  for (auto& token : tokens) token = static_cast<std::int32_t>(random() % model.vocabulary);
  return tokens;
}

Tensor logits_in(std::vector<float>& values) {
  return make_tensor(reinterpret_cast<std::byte*>(values.data()), DType::f32, {1, values.size()});
}

}  // namespace

TEST_CASE("attention of new positions gives the rows of attention over all") {
  const DecodeCase cases[] = {{0, 1, 1, 1, 4},   {0, 5, 2, 1, 8},   {6, 1, 4, 2, 6},
                              {63, 2, 4, 4, 16}, {300, 1, 8, 2, 8}, {70, 130, 6, 3, 8},
                              {1, 64, 3, 1, 10}, {511, 1, 4, 4, 64}};
  for (const DecodeCase& c : cases)
    for (const DType type : {DType::f32, DType::bf16})
      for (const Stream::Body body : {Stream::Body::naive, Stream::Body::fast}) {
        INFO("first " << c.first << " length " << c.length << " heads " << c.heads << "/"
                      << c.kv_heads << " width " << c.head_width << " " << to_string(type)
                      << (body == Stream::Body::fast ? " fast" : " naive"));
        OwnStream own(body, 2);
        const DecodeRun run = run_decode(own.stream, c, type, 11);
        CHECK(difference(run.whole, run.decoded) <= (type == DType::f32 ? 1e-5 : 1e-2));
        if (body == Stream::Body::naive) CHECK(run.decoded == run.whole);
        OwnStream three(body, 3);
        CHECK(run_decode(three.stream, c, type, 11).decoded == run.decoded);
      }
}

TEST_CASE("rotary positions count from where they are told") {
  for (const Stream::Body body : {Stream::Body::naive, Stream::Body::fast}) {
    OwnStream own(body);
    Buffers b(5, true);
    const Tensor whole = b.normal(DType::f32, {40, 24}, 3);
    const Tensor copied = b.zeros(DType::f32, {40, 24});
    copy(own.stream, copied, whole);
    rope(own.stream, {whole, 40, 8, 10000.0, false});
    rope(own.stream, {part(copied, 0, 33), 33, 8, 10000.0, false});
    rope(own.stream, {part(copied, 33, 7), 7, 8, 10000.0, false, 33});
    CHECK(values_of(copied) == values_of(whole));
  }
}

TEST_CASE("a decoder gives the logits of the whole sequence, however it is cut") {
  std::mt19937_64 random(21);
  for (const ModelFamily family : {ModelFamily::gpt2, ModelFamily::llama})
    for (const bool tied : {true, false})
      for (const DType compute : {DType::f32, DType::bf16}) {
        const ModelSpec model = model_of(family, tied, 150);
        INFO((family == ModelFamily::llama ? "llama" : "gpt2")
             << (tied ? " tied " : " untied ") << to_string(compute));
        OwnStream own(Stream::Body::fast, 2);
        Reader reader(model, compute, 9, own.stream);
        const auto tokens = random_tokens(model, model.context, 4);
        std::vector<float> logits(model.vocabulary);
        std::size_t seen = 0;
        for (std::size_t piece = 70; seen < tokens.size(); piece = 1 + random() % 12) {
          piece = std::min(piece, tokens.size() - seen);
          reader.decoder->append(own.stream, std::span(tokens).subspan(seen, piece),
                                 logits_in(logits));
          seen += piece;
          REQUIRE(reader.decoder->length() == seen);
          const auto expected =
              next_logits(*reader.stage, own.stream, std::span(tokens).first(seen));
          REQUIRE(expected.ok());
          INFO("after " << seen << " tokens, the last piece of " << piece);
          CHECK(difference(*expected, logits) <= (compute == DType::f32 ? 1e-5 : 3e-2));
        }
      }
}

TEST_CASE("a decoder writes the tokens of its definition, also beyond the window") {
  for (const ModelFamily family : {ModelFamily::gpt2, ModelFamily::llama})
    for (const std::uint64_t seed : {1, 2, 3})
      for (const double temperature : {0.0, 1.0}) {
        const ModelSpec model = model_of(family, seed != 2, 48);
        INFO((family == ModelFamily::llama ? "llama" : "gpt2")
             << " seed " << seed << " temperature " << temperature);
        OwnStream own(Stream::Body::fast, 2);
        Reader reader(model, DType::f32, seed, own.stream);
        GenerateSpec spec;
        spec.max_new_tokens = 90;
        spec.temperature = temperature;
        spec.seed = seed;
        for (const std::size_t length : {1, 30, 60}) {
          const auto prompt = random_tokens(model, length, seed + length);
          const auto expected = generate(*reader.stage, own.stream, prompt, spec);
          const auto got = generate(*reader.decoder, own.stream, prompt, spec);
          REQUIRE(expected.ok());
          REQUIRE(got.ok());
          CHECK(*got == *expected);
          // Else the test would hold for any tokens: they must not all be one.
          CHECK(std::adjacent_find(got->begin(), got->end(), std::not_equal_to<>()) != got->end());
        }
      }
}

TEST_CASE("a decoder's memory is counted, and its steps take none") {
  const ModelSpec model = model_of(ModelFamily::llama, true, 150);
  OwnStream own(Stream::Body::fast);
  Reader reader(model, DType::f32, 1, own.stream);
  const auto activations = static_cast<std::size_t>(MemoryCategory::activations);
  const ArenaUse with = reader.device.arena().use();
  const auto tokens = random_tokens(model, 100, 1);
  std::vector<float> logits(model.vocabulary);
  reader.decoder->append(own.stream, std::span(tokens).first(70), logits_in(logits));
  for (std::size_t i = 70; i < 100; ++i)
    reader.decoder->append(own.stream, std::span(tokens).subspan(i, 1), logits_in(logits));
  CHECK(reader.device.arena().use().allocations == with.allocations);
  reader.decoder = nullptr;
  const ArenaUse without = reader.device.arena().use();
  // Keys and values of 4 blocks: 150 positions of 2 heads of 8 floats.
  CHECK(with.category_in_use[activations] - without.category_in_use[activations] ==
        2 * 4 * arena_bytes(150 * 2 * 8 * 4));

  PlainDevice full(Arena::Backing::memory, without.in_use);
  const auto stage = make_stage(full, reader.stage->spec());
  const auto refused = Decoder::create(full, *stage);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::out_of_memory);
}

TEST_CASE("a decoder refuses what generation refuses, and forgets") {
  const ModelSpec model = model_of(ModelFamily::gpt2, true, 16);
  OwnStream own(Stream::Body::fast);
  Reader reader(model, DType::f32, 1, own.stream);
  const auto error_of = [&](const std::vector<std::int32_t>& prompt) {
    const auto tokens = generate(*reader.decoder, own.stream, prompt, {});
    return tokens.ok() ? std::string("none") : tokens.error().text;
  };
  CHECK(error_of({}) == "the prompt is empty; it needs at least one token");
  CHECK(error_of({64}) == "prompt token 0 is 64; ids go from 0 to 63");
  CHECK(error_of({5, 6, 7}) == "none");
  CHECK(reader.decoder->length() == 3);
  CHECK(error_of({5}) == "none");
  CHECK(reader.decoder->length() == 1);
  reader.decoder->clear();
  CHECK(reader.decoder->length() == 0);
}
