/// The tokens of one source file, kept on disk and mapped for reading. A cache names the content
/// and the tokenizer it was made from; one that does not match, or is damaged, is made again.
///
/// Layout, little endian: head (magic "TROUPETK", u32 version, u32 bytes per token, 16 bytes hash
/// of the source, u64 tokenizer fingerprint, u64 hash of the reading options), tokens, tail (u64
/// token count, u64 largest id, 16 bytes XXH3-128 of all before).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "actors/data/mapped_file.h"
#include "actors/data/tokenizer.h"
#include "actors/run_spec.h"
#include "planner/result.h"

namespace troupe {

/// Tokens of one file, read-only. Valid while the object lives.
class TokenFile {
 public:
  std::uint64_t size() const { return count_; }
  std::int32_t operator[](std::uint64_t i) const;
  /// Copies tokens [first, first + out.size()), which must exist.
  void copy(std::uint64_t first, std::span<std::int32_t> out) const;
  std::uint32_t largest_id() const { return largest_; }
  /// Of the source, the tokenizer, the reading options and the tokens.
  std::uint64_t checksum() const { return checksum_; }

 private:
  friend Result<TokenFile> open_token_cache(const std::filesystem::path&,
                                            std::span<const std::byte>);
  MappedFile mapped_;
  const std::byte* tokens_ = nullptr;
  std::uint64_t count_ = 0;
  std::uint64_t checksum_ = 0;
  std::uint32_t largest_ = 0;
  std::uint32_t width_ = 0;
};

/// What a cache was made from, as its head.
std::string cache_head(std::string_view source,
                       const Tokenizer& tokenizer,
                       TextFormat format,
                       std::string_view jsonl_field);

/// Opens a cache and checks head, lengths, checksum and ids; the error says what is wrong.
Result<TokenFile> open_token_cache(const std::filesystem::path& path,
                                   std::span<const std::byte> expected_head);

struct CachedTokens {
  TokenFile tokens;
  /// Why an existing cache was made again; empty when it was used, or when there was none.
  std::string note;
  bool built = false;
};

/// Tokens of `source_path`: from `folder`, or tokenized now and written there (temporary file,
/// sync, rename). Documents of JSONL files, and text files, are followed by the tokenizer's end of
/// text where it has one; JSONL documents by a line break where it has none.
Result<CachedTokens> tokens_of_file(const std::filesystem::path& source_path,
                                    const DataSpec& data,
                                    Tokenizer& tokenizer);

/// The cache's place: the source's name and a hash of its path and the tokenizer's kind.
std::filesystem::path token_cache_path(const std::filesystem::path& source_path,
                                       const DataSpec& data,
                                       const Tokenizer& tokenizer);

}  // namespace troupe
