#include <fmt/format.h>

#include <array>
#include <cstring>
#include <map>
#include <string>

#include "actors/checkpoint/convert.h"
#include "actors/checkpoint/convert_write.h"
#include "actors/data/mapped_file.h"

namespace troupe {
namespace {

constexpr std::size_t header_bytes = 7 * sizeof(std::int32_t);

/// Where a parameter's elements begin in the file, counted in floats, and whether its rows are
/// rotary pairs.
struct Origin {
  std::uint64_t first = 0;
  bool rotary = false;
};

struct Layout {
  std::map<std::string, Origin> origins;
  std::uint64_t floats = 0;  ///< in all
};

/// The order of the file: kind by kind, each for all layers.
Layout layout_of(const ModelSpec& model) {
  Layout layout;
  const std::uint64_t width = model.width;
  const std::uint64_t kv_width = std::uint64_t{model.head_width()} * model.kv_heads;
  const std::uint64_t ffn = model.ffn_width;
  const auto place = [&](const std::string& name, std::uint64_t count, bool rotary = false) {
    layout.origins[name] = {layout.floats, rotary};
    layout.floats += count;
  };
  struct Kind {
    const char* name;
    std::uint64_t count;
    bool rotary;
  };
  const std::array<Kind, 9> kinds{{{"input_layernorm", width, false},
                                   {"self_attn.q_proj", width * width, true},
                                   {"self_attn.k_proj", width * kv_width, true},
                                   {"self_attn.v_proj", width * kv_width, false},
                                   {"self_attn.o_proj", width * width, false},
                                   {"post_attention_layernorm", width, false},
                                   {"mlp.gate_proj", ffn * width, false},
                                   {"mlp.down_proj", ffn * width, false},
                                   {"mlp.up_proj", ffn * width, false}}};
  place("model.embed_tokens.weight", std::uint64_t{model.vocabulary} * width);
  for (const Kind& kind : kinds)
    for (std::uint32_t block = 0; block < model.blocks; ++block)
      place(fmt::format("model.layers.{}.{}.weight", block, kind.name), kind.count, kind.rotary);
  place("model.norm.weight", width);
  layout.floats += std::uint64_t{model.context} * model.head_width();  // cosines and sines
  if (!model.tied) place("lm_head.weight", std::uint64_t{model.vocabulary} * width);
  return layout;
}

Result<ModelSpec> read_model(std::span<const std::byte> bytes, const std::string& file) {
  const auto refuse = [&](std::string_view why) {
    return Error{ErrorCode::corrupt, fmt::format("{}: {}", file, why)};
  };
  if (bytes.size() < header_bytes)
    return refuse(fmt::format("{} bytes are too few for a llama2.c header", bytes.size()));
  std::array<std::int32_t, 7> values{};
  std::memcpy(values.data(), bytes.data(), header_bytes);
  const std::array<const char*, 7> names{"dim",        "hidden_dim", "n_layers", "n_heads",
                                         "n_kv_heads", "vocab_size", "seq_len"};
  for (std::size_t i = 0; i < values.size(); ++i) {
    const bool may_be_negative = i == 5 && values[i] != INT32_MIN;
    if (values[i] == 0 || (values[i] < 0 && !may_be_negative))
      return refuse(fmt::format("{} is {}, at offset {}", names[i], values[i], 4 * i));
  }
  const auto count = [&](std::size_t i) {
    return static_cast<std::uint32_t>(values[i] < 0 ? -values[i] : values[i]);
  };
  ModelSpec model;
  model.family = ModelFamily::llama;
  model.width = count(0);
  model.ffn_width = count(1);
  model.blocks = count(2);
  model.heads = count(3);
  model.kv_heads = count(4);
  model.vocabulary = count(5);
  model.context = count(6);
  model.tied = values[5] > 0;
  model.norm_epsilon = 1e-5;
  model.rope_theta = 10000.0;
  if (const Status legal = validate(model); !legal.ok()) return refuse(legal.error().text);
  return model;
}

/// Row of the file that is row `row` here. There, element pairs 2i and 2i+1 of a head turn
/// together; here, elements i and i + half.
std::uint64_t paired_row(std::uint64_t row, std::uint64_t head_width) {
  const std::uint64_t half = head_width / 2;
  const std::uint64_t within = row % head_width;
  return row - within + (within < half ? 2 * within : 2 * (within - half) + 1);
}

void copy_values(std::span<const std::byte> floats,
                 Origin origin,
                 const ModelSpec& model,
                 std::uint64_t first,
                 std::span<float> out) {
  const auto copy = [&](std::uint64_t from, std::span<float> to) {
    std::memcpy(to.data(), floats.data() + 4 * (origin.first + from), to.size_bytes());
  };
  if (!origin.rotary) return copy(first, out);
  const std::uint64_t width = model.width;
  for (std::uint64_t done = 0; done < out.size();) {
    const std::uint64_t row = (first + done) / width;
    const std::uint64_t column = (first + done) % width;
    const std::uint64_t count = std::min<std::uint64_t>(width - column, out.size() - done);
    copy(paired_row(row, model.head_width()) * width + column, out.subspan(done, count));
    done += count;
  }
}

}  // namespace

Result<Imported> import_llama2c(const std::filesystem::path& source,
                                const std::filesystem::path& out) {
  const auto mapped = MappedFile::open(source);
  TROUPE_TRY(mapped);
  const auto model = read_model(mapped->bytes(), source.string());
  TROUPE_TRY(model);
  // No product below can wrap: blocks <= 10^4, widths <= 2^24, so sums stay under 2^64.
  const Layout layout = layout_of(*model);
  const std::uint64_t expected = header_bytes + 4 * layout.floats;
  if (mapped->bytes().size() != expected)
    return Error{ErrorCode::corrupt,
                 fmt::format("{}: {} bytes, its header needs {}", source.string(),
                             mapped->bytes().size(), expected)};
  const auto floats = mapped->bytes().subspan(header_bytes);
  TROUPE_TRY(write_imported(
      out, *model,
      [&](const ParameterSpec& parameter, std::uint64_t first, std::span<float> values) -> Status {
        copy_values(floats, layout.origins.at(parameter.name), *model, first, values);
        return {};
      }));
  return Imported{out, *model, {}};
}

}  // namespace troupe
