#include "actors/data/tokenizer.h"

#include <chrono>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <sstream>

#include "actors/data/bpe_merge.h"
#include "actors/data/pretokenizer.h"
#include "tests/support/catch.h"

using namespace troupe;

namespace {

const std::string data_folder = TROUPE_SOURCE_DIR "/tests/data/";

std::string content_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  REQUIRE(in);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::unique_ptr<Tokenizer> gpt2() {
  auto loaded = load_gpt2_tokenizer(data_folder + "gpt2-tokenizer");
  if (!loaded.ok()) FAIL(loaded.error().text);
  return std::move(*loaded);
}

/// Vocabulary of the 256 bytes and "\xc4\xa0t" = " t", in the files' spelling.
std::string small_encoder(const std::string& more) {
  std::string text = "{";
  int next_free = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool as_is = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) ||
                       (byte >= 0xae && byte <= 0xff);
    const int code = as_is ? byte : next_free++;
    text += '"';
    if (code == '"' || code == '\\') text += '\\';
    if (code < 0x80) {
      text += static_cast<char>(code);
    } else {
      text += static_cast<char>(0xc0 | (code >> 6));
      text += static_cast<char>(0x80 | (code & 0x3f));
    }
    text += "\": " + std::to_string(byte) + ", ";
  }
  return text + more + "}";
}

std::string error_of(const std::string& encoder, const std::string& vocab) {
  const auto made = make_gpt2_tokenizer(encoder, "e.json", vocab, "v.bpe");
  REQUIRE_FALSE(made.ok());
  CHECK(made.error().code == ErrorCode::invalid_input);
  return made.error().text;
}

std::vector<std::string> pieces_of(std::string_view text) {
  std::vector<std::string> pieces;
  while (!text.empty()) {
    const auto size = first_piece_bytes(text);
    pieces.emplace_back(text.substr(0, size));
    text.remove_prefix(size);
  }
  return pieces;
}

}  // namespace

TEST_CASE("GPT-2 tokens of all golden texts, and back") {
  const auto tokenizer = gpt2();
  CHECK(tokenizer->vocabulary() == 50257);
  CHECK(tokenizer->end_of_text() == 50256);
  const std::string separator = "\n__ggml_vocab_test__\n";
  const std::string inputs = content_of(data_folder + "tokenizer-golden/ggml-vocab-gpt-2.gguf.inp");
  std::istringstream outputs(
      content_of(data_folder + "tokenizer-golden/ggml-vocab-gpt-2.gguf.out"));
  std::size_t start = 0;
  int cases = 0;
  for (std::string line; std::getline(outputs, line); ++cases) {
    const auto end = inputs.find(separator, start);
    REQUIRE(end != std::string::npos);
    const std::string text = inputs.substr(start, end - start);
    start = end + separator.size();
    std::istringstream numbers(line);
    const std::vector<std::int32_t> expected{std::istream_iterator<std::int32_t>(numbers),
                                             std::istream_iterator<std::int32_t>()};
    INFO("case " << cases << ": " << text);
    CHECK(tokenizer->encode(text) == expected);
    CHECK(tokenizer->decode(expected).value() == text);
  }
  CHECK(cases == 46);
}

TEST_CASE("pieces follow the published expression") {
  using P = std::vector<std::string>;
  CHECK(pieces_of("Hello  world") == P{"Hello", " ", " world"});
  CHECK(pieces_of("it's we'll I'd 'tis") == P{"it", "'s", " we", "'ll", " I", "'d", " '", "tis"});
  CHECK(pieces_of("a\n\n b \n") == P{"a", "\n\n", " b", " \n"});
  CHECK(pieces_of("x12.5!?") == P{"x", "12", ".", "5", "!?"});
  CHECK(pieces_of("\ta") == P{"\t", "a"});
  CHECK(pieces_of(" ") == P{" "});
  CHECK(pieces_of("\u00e9t\u00e9\u3000\u3000na\u00efve \u00bd\u4e2d") ==
        P{"\u00e9t\u00e9", "\u3000", "\u3000", "na\u00efve", " \u00bd", "\u4e2d"});
  CHECK(pieces_of("a\xff\xfe z") == P{"a", "\xff\xfe", " z"});
}

TEST_CASE("invalid UTF-8 counts byte by byte") {
  for (const std::string_view text :
       {"\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82", "\x80", "\xf5\x80\x80\x80"}) {
    const auto character = character_at(text, 0);
    CHECK(character.bytes == 1);
    CHECK(character.code >= invalid_byte);
  }
  CHECK(character_at("\xf0\x9f\x98\x80", 0).code == 0x1f600);
}

TEST_CASE("any bytes survive encoding and decoding") {
  const auto tokenizer = gpt2();
  const auto bytes = make_byte_tokenizer();
  for (unsigned seed = 0; seed < 50; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    std::string text(random() % 300, '\0');
    for (char& c : text) c = static_cast<char>(random() % (seed % 2 == 0 ? 256 : 128));
    CHECK(tokenizer->decode(tokenizer->encode(text)).value() == text);
    CHECK(bytes->decode(bytes->encode(text)).value() == text);
  }
}

TEST_CASE("a text cut at a safe place has the same tokens") {
  const auto tokenizer = gpt2();
  const std::string text =
      content_of(TROUPE_SOURCE_DIR "/conf/data/moby-dick.txt").substr(0, 60000);
  const auto whole = tokenizer->encode(text);
  std::vector<std::int32_t> joined;
  std::string_view rest = text;
  int cuts = 0;
  while (!rest.empty()) {
    auto size = rest.size() <= 997 ? rest.size() : safe_cut(rest, 997);
    REQUIRE(size > 0);
    tokenizer->encode(rest.substr(0, size), joined);
    rest.remove_prefix(size);
    ++cuts;
  }
  CHECK(cuts > 50);
  CHECK(joined == whole);
  CHECK(safe_cut("nospace", 5) == 0);
  CHECK(safe_cut("a b", 2) == 1);
}

TEST_CASE("merging in batches of one rank equals the definition") {
  for (unsigned seed = 0; seed < 400; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    MergeTable table;
    std::map<std::pair<int, int>, Merge> plain;
    int symbols = 3;
    for (std::uint32_t rank = 0; rank < 12; ++rank) {
      const int left = static_cast<int>(random() % static_cast<unsigned>(symbols));
      const int right = static_cast<int>(random() % static_cast<unsigned>(symbols));
      // Two merges may make the same symbol, as real lists do.
      const int joined = symbols > 4 && random() % 3 == 0 ? symbols - 1 : symbols;
      if (table.add(left, right, {rank, joined})) plain[{left, right}] = {rank, joined};
      if (joined == symbols) ++symbols;
    }
    std::vector<std::int32_t> word(1 + random() % 40);
    for (auto& symbol : word) symbol = static_cast<std::int32_t>(random() % 3);
    auto expected = word;
    for (;;) {  // the definition: the lowest rank anywhere, all its occurrences, left to right
      const std::pair<const std::pair<int, int>, Merge>* best = nullptr;
      for (std::size_t i = 0; i + 1 < expected.size(); ++i) {
        const auto found = plain.find({expected[i], expected[i + 1]});
        if (found != plain.end() && (!best || found->second.rank < best->second.rank))
          best = &*found;
      }
      if (!best) break;
      std::vector<std::int32_t> next;
      for (std::size_t i = 0; i < expected.size(); ++i) {
        if (i + 1 < expected.size() && expected[i] == best->first.first &&
            expected[i + 1] == best->first.second) {
          next.push_back(best->second.joined);
          ++i;
        } else {
          next.push_back(expected[i]);
        }
      }
      expected = next;
    }
    merge_symbols(word, table);
    CHECK(word == expected);
  }
}

TEST_CASE("a word of a million letters is not quadratic") {
  const auto tokenizer = gpt2();
  const auto start = std::chrono::steady_clock::now();
  const std::string word(1'000'000, 'a');
  const auto ids = tokenizer->encode(word);
  CHECK(tokenizer->decode(ids).value() == word);
  // Quadratic work would not end in this time; sanitizers make the rest slow, not quadratic.
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(120));
}

TEST_CASE("broken encoder.json is refused with its key or line") {
  const std::string merges = "#version: 0.2\n";
  CHECK(make_gpt2_tokenizer(small_encoder("\"ab\": 256"), "e.json", "#version\na b\n", "v").ok());
  CHECK(error_of("{", merges).find("e.json:1:2: not valid JSON") == 0);
  CHECK(error_of("[]", merges) == "e.json: must be an object of token names and ids");
  CHECK(error_of("{\"a\": 0}", merges) == "e.json: no token for the single byte 0x00");
  CHECK(error_of(small_encoder("\"ab\": -1"), merges).find("e.json: key \"ab\": its id must be") ==
        0);
  CHECK(error_of(small_encoder("\"ab\": 300"), merges).find("id 300 is beyond the last id 256") !=
        std::string::npos);
  CHECK(error_of(small_encoder("\"ab\": 7"), merges).find("id 7 is given twice") !=
        std::string::npos);
  CHECK(error_of(small_encoder("\"a\": 256"), merges) == "e.json: key \"a\" is repeated");
  CHECK(error_of(small_encoder("\"\\u4e2d\": 256"), merges).find("stands for no byte") !=
        std::string::npos);
}

TEST_CASE("broken vocab.bpe is refused with its line") {
  const std::string encoder = small_encoder("\"ab\": 256, \"abc\": 257");
  CHECK(error_of(encoder, "a b\n") == "v.bpe:1: must begin with #version");
  CHECK(error_of(encoder, "#version\nab\n").find("v.bpe:2: must be two symbols") == 0);
  CHECK(error_of(encoder, "#version\na b c\n").find("v.bpe:2: must be two symbols") == 0);
  CHECK(error_of(encoder, "#version\na b\nab d\n") ==
        "v.bpe:3: the joined symbol is not in the vocabulary");
  CHECK(error_of(encoder, "#version\nab c\n").find("v.bpe:2: symbol \"ab\" is not a byte and no") ==
        0);
  CHECK(
      error_of(encoder, "#version\na b\na b\n").find("v.bpe:3: the pair stands on a line above") ==
      0);
  CHECK(error_of(encoder, "#version\na xyz\n").find("v.bpe:2: symbol \"xyz\" is not in") == 0);
}

TEST_CASE("L140 a tokenizer larger than the model's vocabulary is refused") {
  const auto tokenizer = make_byte_tokenizer();
  CHECK(check_tokenizer_fits(*tokenizer, 256).ok());
  const auto refused = check_tokenizer_fits(*tokenizer, 255);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().text.find("has 256 tokens, but the model's vocabulary is 255") !=
        std::string::npos);
}

TEST_CASE("an id that is no token is named with its position") {
  const std::vector<std::int32_t> ids{1, 50257};
  const auto text = gpt2()->decode(ids);
  REQUIRE_FALSE(text.ok());
  CHECK(text.error().text.find("token 50257 at position 1") == 0);
  CHECK_FALSE(make_byte_tokenizer()->decode(std::vector<std::int32_t>{-1}).ok());
}
