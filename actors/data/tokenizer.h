/// Text to token ids and back. Two kinds: bytes (256 ids, id = byte) and GPT-2's byte-level BPE.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "planner/result.h"

namespace troupe {

/// Used by one thread at a time: encoding keeps a cache of words.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// "bytes" or "gpt2".
  virtual std::string_view name() const = 0;
  /// Ids run from 0 to vocabulary() - 1.
  virtual std::uint32_t vocabulary() const = 0;
  /// Hash of everything that the ids depend on; part of a token cache's key.
  virtual std::uint64_t fingerprint() const = 0;
  /// The id that separates documents, where there is one. `encode` never makes it from text.
  virtual std::optional<std::int32_t> end_of_text() const = 0;
  /// Appends the ids of `text`. Any bytes are legal; those of a text cut at `safe_cut` are the ids
  /// of the whole.
  virtual void encode(std::string_view text, std::vector<std::int32_t>& ids) = 0;
  /// The bytes that the ids stand for; they need not be valid UTF-8. An unknown id is an error that
  /// names its position.
  virtual Result<std::string> decode(std::span<const std::int32_t> ids) const = 0;

  std::vector<std::int32_t> encode(std::string_view text) {
    std::vector<std::int32_t> ids;
    encode(text, ids);
    return ids;
  }
};

std::unique_ptr<Tokenizer> make_byte_tokenizer();

/// From the texts of encoder.json and vocab.bpe; the names are for messages. The fuzzer's entrance.
Result<std::unique_ptr<Tokenizer>> make_gpt2_tokenizer(std::string_view encoder_json,
                                                       std::string_view encoder_name,
                                                       std::string_view vocab_bpe,
                                                       std::string_view vocab_name);

/// Loads `folder`/encoder.json and `folder`/vocab.bpe. Errors name file and line or key.
Result<std::unique_ptr<Tokenizer>> load_gpt2_tokenizer(const std::filesystem::path& folder);

/// Refuses a tokenizer whose ids do not all fit the model's vocabulary.
Status check_tokenizer_fits(const Tokenizer& tokenizer, std::uint32_t model_vocabulary);

}  // namespace troupe
