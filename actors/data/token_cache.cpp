#include "actors/data/token_cache.h"

#include <fmt/format.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "actors/checkpoint/durable_file.h"
#include "actors/data/text_source.h"

namespace troupe {
namespace {

constexpr std::string_view magic = "TROUPETK";
constexpr std::uint32_t version = 1;
constexpr std::size_t head_bytes = 48;
constexpr std::size_t tail_bytes = 32;

template <class T>
void put(std::string& out, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i)
    out.push_back(static_cast<char>((value >> (8 * i)) & 0xff));
}

std::uint64_t take(const std::byte* at, std::size_t bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < bytes; ++i) value |= static_cast<std::uint64_t>(at[i]) << (8 * i);
  return value;
}

std::uint32_t token_width(const Tokenizer& tokenizer) {
  return tokenizer.vocabulary() <= 65536 ? 2 : 4;
}

template <class T>
std::uint64_t largest_of(const std::byte* at, std::uint64_t count) {
  T largest = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    T id;
    std::memcpy(&id, at + i * sizeof id, sizeof id);
    largest = std::max(largest, id);
  }
  return largest;
}

/// Tokens on their way to the file, in pieces.
class TokenWriter {
 public:
  TokenWriter(DurableFile& file, std::uint32_t width) : file_(file), width_(width) {}

  Status add(std::span<const std::int32_t> ids) {
    piece_.clear();
    for (const std::int32_t id : ids) {
      const auto value = static_cast<std::uint32_t>(id);
      largest_ = std::max(largest_, value);
      if (width_ == 2)
        put(piece_, static_cast<std::uint16_t>(value));
      else
        put(piece_, value);
    }
    count_ += ids.size();
    return file_.write(std::as_bytes(std::span(piece_.data(), piece_.size())));
  }
  std::uint64_t count() const { return count_; }
  std::uint32_t largest() const { return largest_; }

 private:
  DurableFile& file_;
  std::uint32_t width_;
  std::string piece_;
  std::uint64_t count_ = 0;
  std::uint32_t largest_ = 0;
};

Status build_cache(const std::filesystem::path& path,
                   std::string_view head,
                   std::string_view source,
                   const std::string& source_name,
                   const DataSpec& data,
                   Tokenizer& tokenizer) {
  std::error_code failure;
  std::filesystem::create_directories(path.parent_path(), failure);
  if (failure) return file_error(path.parent_path(), "make the folder", failure.value());
  auto temporary = path;
  temporary += fmt::format(".{}.writing", ::getpid());
  TROUPE_TRY(remove_tree(temporary));
  auto file = DurableFile::create(temporary);
  TROUPE_TRY(file);
  TROUPE_TRY(file->write(std::as_bytes(std::span(head.data(), head.size()))));
  TokenWriter writer(*file, token_width(tokenizer));
  std::vector<std::int32_t> ids;
  const Status read = read_documents(
      source, source_name, data.format, data.jsonl_field,
      [&](std::string_view piece, bool ends_document) {
        ids.clear();
        tokenizer.encode(piece, ids);
        if (ends_document && tokenizer.end_of_text()) ids.push_back(*tokenizer.end_of_text());
        if (ends_document && !tokenizer.end_of_text() && data.format == TextFormat::jsonl)
          tokenizer.encode("\n", ids);
        return writer.add(ids);
      });
  TROUPE_TRY(read);
  std::string counts;
  put(counts, writer.count());
  put(counts, static_cast<std::uint64_t>(writer.largest()));
  TROUPE_TRY(file->write(std::as_bytes(std::span(counts.data(), counts.size()))));
  const XXH128_hash_t hash = file->hash_so_far();
  std::string checksum;
  put(checksum, hash.low64);
  put(checksum, hash.high64);
  TROUPE_TRY(file->write(std::as_bytes(std::span(checksum.data(), checksum.size()))));
  TROUPE_TRY(file->finish());
  return rename_durably(temporary, path);
}

}  // namespace

std::int32_t TokenFile::operator[](std::uint64_t i) const {
  EXPECTS(i < count_);
  return static_cast<std::int32_t>(take(tokens_ + i * width_, width_));
}

void TokenFile::copy(std::uint64_t first, std::span<std::int32_t> out) const {
  EXPECTS(first <= count_ && out.size() <= count_ - first);
  const std::byte* at = tokens_ + first * width_;
  for (std::int32_t& token : out) {
    token = static_cast<std::int32_t>(take(at, width_));
    at += width_;
  }
}

std::string cache_head(std::string_view source,
                       const Tokenizer& tokenizer,
                       TextFormat format,
                       std::string_view jsonl_field) {
  std::string head(magic);
  put(head, version);
  put(head, token_width(tokenizer));
  const XXH128_hash_t hash = XXH3_128bits(source.data(), source.size());
  put(head, hash.low64);
  put(head, hash.high64);
  put(head, tokenizer.fingerprint());
  const std::string options =
      format == TextFormat::text ? std::string("text") : fmt::format("jsonl {}", jsonl_field);
  put(head, static_cast<std::uint64_t>(XXH3_64bits(options.data(), options.size())));
  EXPECTS(head.size() == head_bytes);
  return head;
}

Result<TokenFile> open_token_cache(const std::filesystem::path& path,
                                   std::span<const std::byte> expected_head) {
  EXPECTS(expected_head.size() == head_bytes);
  auto mapped = MappedFile::open(path);
  TROUPE_TRY(mapped);
  const auto bytes = mapped->bytes();
  const auto damaged = [&](std::string_view why) {
    return Error{ErrorCode::corrupt, fmt::format("{}: {}", path.string(), why)};
  };
  if (bytes.size() < head_bytes + tail_bytes) return damaged("too short for a token cache");
  if (std::memcmp(bytes.data(), magic.data(), magic.size()) != 0)
    return damaged("not a token cache");
  if (!std::equal(expected_head.begin(), expected_head.end(), bytes.begin()))
    return damaged("made from another text, tokenizer or version");
  TokenFile file;
  const std::byte* const tail = bytes.data() + bytes.size() - tail_bytes;
  const std::size_t token_bytes = bytes.size() - head_bytes - tail_bytes;
  file.width_ = static_cast<std::uint32_t>(take(bytes.data() + 12, 4));
  file.count_ = take(tail, 8);
  const std::uint64_t largest = take(tail + 8, 8);
  if (token_bytes % file.width_ != 0 || token_bytes / file.width_ != file.count_ ||
      largest > 0x7fffffff)
    return damaged("its length does not match its token count");
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size() - 16);
  if (hash.low64 != take(tail + 16, 8) || hash.high64 != take(tail + 24, 8))
    return damaged("its checksum does not match");
  const std::byte* const tokens = bytes.data() + head_bytes;
  if (largest != (file.width_ == 2 ? largest_of<std::uint16_t>(tokens, file.count_)
                                   : largest_of<std::uint32_t>(tokens, file.count_)))
    return damaged("its largest id is not the one that it names");
  file.largest_ = static_cast<std::uint32_t>(largest);
  file.checksum_ = hash.low64;
  file.tokens_ = tokens;
  file.mapped_ = std::move(*mapped);
  return file;
}

std::filesystem::path token_cache_path(const std::filesystem::path& source_path,
                                       const DataSpec& data,
                                       const Tokenizer& tokenizer) {
  std::error_code ignored;
  auto absolute = std::filesystem::absolute(source_path, ignored).lexically_normal().string();
  absolute += fmt::format("|{}|{}", tokenizer.name(), data.format == TextFormat::text);
  std::string stem;
  for (const char c : source_path.filename().string().substr(0, 60))
    stem += is_plain_name(std::string_view(&c, 1)) || c == '.' ? c : '_';
  return std::filesystem::path(data.cache_folder) /
         fmt::format("{}-{:016x}.tokens", stem, XXH3_64bits(absolute.data(), absolute.size()));
}

Result<CachedTokens> tokens_of_file(const std::filesystem::path& source_path,
                                    const DataSpec& data,
                                    Tokenizer& tokenizer) {
  const auto source = MappedFile::open(source_path);
  TROUPE_TRY(source);
  const auto path = token_cache_path(source_path, data, tokenizer);
  const std::string head = cache_head(source->text(), tokenizer, data.format, data.jsonl_field);
  const auto head_span = std::as_bytes(std::span(head.data(), head.size()));
  CachedTokens cached;
  if (auto opened = open_token_cache(path, head_span); opened.ok()) {
    cached.tokens = std::move(*opened);
    return cached;
  } else if (opened.error().code != ErrorCode::not_found) {
    cached.note = opened.error().text + "; made again";
  }
  TROUPE_TRY(build_cache(path, head, source->text(), source_path.string(), data, tokenizer));
  auto opened = open_token_cache(path, head_span);
  TROUPE_TRY(opened);
  cached.tokens = std::move(*opened);
  cached.built = true;
  return cached;
}

}  // namespace troupe
