#include <fmt/format.h>

#include "actors/data/tokenizer.h"

namespace troupe {
namespace {

class ByteTokenizer final : public Tokenizer {
 public:
  std::string_view name() const override { return "bytes"; }
  std::uint32_t vocabulary() const override { return 256; }
  std::uint64_t fingerprint() const override { return 0x7366747962ULL; }
  std::optional<std::int32_t> end_of_text() const override { return std::nullopt; }

  void encode(std::string_view text, std::vector<std::int32_t>& ids) override {
    ids.reserve(ids.size() + text.size());
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  }

  Result<std::string> decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    text.reserve(ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] < 0 || ids[i] > 255)
        return Error{ErrorCode::invalid_input,
                     fmt::format("token {} at position {} is no byte (0 to 255)", ids[i], i)};
      text.push_back(static_cast<char>(ids[i]));
    }
    return text;
  }
};

}  // namespace

std::unique_ptr<Tokenizer> make_byte_tokenizer() {
  return std::make_unique<ByteTokenizer>();
}

Status check_tokenizer_fits(const Tokenizer& tokenizer, std::uint32_t model_vocabulary) {
  if (tokenizer.vocabulary() <= model_vocabulary) return {};
  return Error{ErrorCode::invalid_input,
               fmt::format("the tokenizer \"{}\" has {} tokens, but the model's vocabulary is {}; "
                           "set model.vocabulary to at least {}",
                           tokenizer.name(), tokenizer.vocabulary(), model_vocabulary,
                           tokenizer.vocabulary())};
}

}  // namespace troupe
