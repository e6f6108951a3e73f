#include <fmt/format.h>
#include <xxhash.h>

#include <array>
#include <limits>
#include <unordered_map>

#include "actors/data/bpe_merge.h"
#include "actors/data/mapped_file.h"
#include "actors/data/pretokenizer.h"
#include "actors/data/strict_json.h"
#include "actors/data/tokenizer.h"

namespace troupe {
namespace {

constexpr std::string_view end_of_text_name = "<|endoftext|>";
constexpr std::size_t longest_cached_word = 64;
constexpr std::size_t most_cached_words = 1 << 16;

Error bad(std::string text) {
  return {ErrorCode::invalid_input, std::move(text)};
}

/// The files write each byte as a printable character: itself where it is one in Latin-1, else the
/// next free code point from U+0100 on.
struct ByteAlphabet {
  std::array<char32_t, 256> code_of{};
  std::array<int, 512> byte_of{};

  ByteAlphabet() {
    byte_of.fill(-1);
    char32_t next = 256;
    for (unsigned byte = 0; byte < 256; ++byte) {
      const bool printable_byte = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) ||
                                  (byte >= 0xae && byte <= 0xff);
      code_of[byte] = printable_byte ? byte : next++;
      byte_of[code_of[byte]] = static_cast<int>(byte);
    }
  }

  /// The bytes that `name` stands for, or nothing where it holds a character of no byte.
  std::optional<std::string> bytes_of(std::string_view name) const {
    std::string bytes;
    for (std::size_t at = 0; at < name.size();) {
      const auto next = character_at(name, at);
      if (next.code >= byte_of.size() || byte_of[next.code] < 0) return std::nullopt;
      bytes.push_back(static_cast<char>(byte_of[next.code]));
      at += next.bytes;
    }
    return bytes;
  }
};

const ByteAlphabet& alphabet() {
  static const ByteAlphabet made;
  return made;
}

struct Vocabulary {
  std::unordered_map<std::string, std::int32_t> id_of;  ///< by bytes
  std::vector<std::string> bytes_of;                    ///< by id
  std::array<std::int32_t, 256> byte_id{};
  std::optional<std::int32_t> end_of_text;
};

Status add_token(Vocabulary& vocabulary,
                 const std::string& name,
                 const nlohmann::json& id,
                 std::size_t count,
                 std::vector<bool>& taken,
                 std::string_view file) {
  const auto refuse = [&](std::string_view why) {
    return bad(fmt::format("{}: key \"{}\": {}", file, printable(name), why));
  };
  if (!id.is_number_unsigned())
    return refuse(fmt::format("its id must be a whole number from 0 to {}", count - 1));
  const auto value = id.get<std::uint64_t>();
  if (value >= count)
    return refuse(
        fmt::format("id {} is beyond the last id {} of {} tokens", value, count - 1, count));
  if (taken[value]) return refuse(fmt::format("id {} is given twice", value));
  taken[value] = true;
  const auto signed_id = static_cast<std::int32_t>(value);
  if (name == end_of_text_name) {
    vocabulary.end_of_text = signed_id;
    vocabulary.bytes_of[value] = name;
    return {};
  }
  auto bytes = alphabet().bytes_of(name);
  if (!bytes || bytes->empty()) return refuse("it holds a character that stands for no byte");
  vocabulary.bytes_of[value] = *bytes;
  vocabulary.id_of.emplace(std::move(*bytes), signed_id);
  return {};
}

Result<Vocabulary> read_vocabulary(std::string_view text, std::string_view file) {
  auto parsed = parse_json(text, file);
  TROUPE_TRY(parsed);
  if (!parsed->is_object() || parsed->empty())
    return bad(fmt::format("{}: must be an object of token names and ids", file));
  Vocabulary vocabulary;
  const std::size_t count = parsed->size();
  if (count > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()))
    return bad(fmt::format("{}: too many tokens", file));
  vocabulary.bytes_of.resize(count);
  std::vector<bool> taken(count, false);
  for (const auto& [name, id] : parsed->items())
    TROUPE_TRY(add_token(vocabulary, name, id, count, taken, file));
  for (unsigned byte = 0; byte < 256; ++byte) {
    const auto found = vocabulary.id_of.find(std::string(1, static_cast<char>(byte)));
    if (found == vocabulary.id_of.end())
      return bad(fmt::format("{}: no token for the single byte {:#04x}", file, byte));
    vocabulary.byte_id[byte] = found->second;
  }
  return vocabulary;
}

/// One line "LEFT RIGHT" of vocab.bpe.
Status add_merge(MergeTable& merges,
                 const Vocabulary& vocabulary,
                 std::vector<bool>& reachable,
                 std::string_view line,
                 std::string_view place) {
  const auto space = line.find(' ');
  if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos)
    return bad(fmt::format("{}: must be two symbols with one space between", place));
  std::array<std::int32_t, 2> ids{};
  std::string joined;
  for (const bool right : {false, true}) {
    const auto name = right ? line.substr(space + 1) : line.substr(0, space);
    const auto bytes = alphabet().bytes_of(name);
    const auto found = bytes ? vocabulary.id_of.find(*bytes) : vocabulary.id_of.end();
    if (found == vocabulary.id_of.end())
      return bad(fmt::format("{}: symbol \"{}\" is not in the vocabulary", place, printable(name)));
    if (!reachable[static_cast<std::size_t>(found->second)])
      return bad(fmt::format("{}: symbol \"{}\" is not a byte and no line above makes it", place,
                             printable(name)));
    ids[right ? 1 : 0] = found->second;
    joined += *bytes;
  }
  const auto found = vocabulary.id_of.find(joined);
  if (found == vocabulary.id_of.end())
    return bad(fmt::format("{}: the joined symbol is not in the vocabulary", place));
  if (!merges.add(ids[0], ids[1], {static_cast<std::uint32_t>(merges.size()), found->second}))
    return bad(fmt::format("{}: the pair stands on a line above already", place));
  reachable[static_cast<std::size_t>(found->second)] = true;
  return {};
}

Result<MergeTable> read_merges(std::string_view text,
                               std::string_view file,
                               const Vocabulary& vocabulary) {
  MergeTable merges;
  std::vector<bool> reachable(vocabulary.bytes_of.size(), false);
  for (const std::int32_t id : vocabulary.byte_id) reachable[static_cast<std::size_t>(id)] = true;
  if (!text.starts_with("#version"))
    return bad(fmt::format("{}:1: must begin with #version", file));
  std::size_t line_number = 0;
  while (!text.empty()) {
    ++line_number;
    const auto end = text.find('\n');
    auto line = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line_number == 1) continue;
    if (line.empty() && text.empty()) break;
    TROUPE_TRY(
        add_merge(merges, vocabulary, reachable, line, fmt::format("{}:{}", file, line_number)));
  }
  return merges;
}

class BpeTokenizer final : public Tokenizer {
 public:
  BpeTokenizer(Vocabulary vocabulary, MergeTable merges, std::uint64_t fingerprint)
      : vocabulary_(std::move(vocabulary)), merges_(std::move(merges)), fingerprint_(fingerprint) {}

  std::string_view name() const override { return "gpt2"; }
  std::uint32_t vocabulary() const override {
    return static_cast<std::uint32_t>(vocabulary_.bytes_of.size());
  }
  std::uint64_t fingerprint() const override { return fingerprint_; }
  std::optional<std::int32_t> end_of_text() const override { return vocabulary_.end_of_text; }

  void encode(std::string_view text, std::vector<std::int32_t>& ids) override {
    while (!text.empty()) {
      const std::size_t size = first_piece_bytes(text);
      encode_word(text.substr(0, size), ids);
      text.remove_prefix(size);
    }
  }

  Result<std::string> decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] < 0 || static_cast<std::uint32_t>(ids[i]) >= vocabulary())
        return bad(fmt::format("token {} at position {} is not one of the {} tokens", ids[i], i,
                               vocabulary()));
      text += vocabulary_.bytes_of[static_cast<std::size_t>(ids[i])];
    }
    return text;
  }

 private:
  void encode_word(std::string_view word, std::vector<std::int32_t>& ids) {
    const bool cacheable = word.size() <= longest_cached_word;
    if (cacheable) {
      if (const auto found = cache_.find(std::string(word)); found != cache_.end()) {
        ids.insert(ids.end(), found->second.begin(), found->second.end());
        return;
      }
    }
    std::vector<std::int32_t> symbols;
    symbols.reserve(word.size());
    for (const char c : word) symbols.push_back(vocabulary_.byte_id[static_cast<unsigned char>(c)]);
    merge_symbols(symbols, merges_);
    ids.insert(ids.end(), symbols.begin(), symbols.end());
    if (!cacheable) return;
    if (cache_.size() >= most_cached_words) cache_.clear();
    cache_.emplace(std::string(word), std::move(symbols));
  }

  Vocabulary vocabulary_;
  MergeTable merges_;
  std::uint64_t fingerprint_;
  std::unordered_map<std::string, std::vector<std::int32_t>> cache_;
};

}  // namespace

Result<std::unique_ptr<Tokenizer>> make_gpt2_tokenizer(std::string_view encoder_json,
                                                       std::string_view encoder_name,
                                                       std::string_view vocab_bpe,
                                                       std::string_view vocab_name) {
  auto vocabulary = read_vocabulary(encoder_json, encoder_name);
  TROUPE_TRY(vocabulary);
  auto merges = read_merges(vocab_bpe, vocab_name, *vocabulary);
  TROUPE_TRY(merges);
  const std::uint64_t hash = XXH3_64bits_withSeed(
      vocab_bpe.data(), vocab_bpe.size(), XXH3_64bits(encoder_json.data(), encoder_json.size()));
  return std::unique_ptr<Tokenizer>(
      std::make_unique<BpeTokenizer>(std::move(*vocabulary), std::move(*merges), hash));
}

Result<std::unique_ptr<Tokenizer>> load_gpt2_tokenizer(const std::filesystem::path& folder) {
  const auto encoder_path = folder / "encoder.json";
  const auto vocab_path = folder / "vocab.bpe";
  auto encoder = MappedFile::open(encoder_path);
  TROUPE_TRY(encoder);
  auto vocab = MappedFile::open(vocab_path);
  TROUPE_TRY(vocab);
  return make_gpt2_tokenizer(encoder->text(), encoder_path.string(), vocab->text(),
                             vocab_path.string());
}

}  // namespace troupe
