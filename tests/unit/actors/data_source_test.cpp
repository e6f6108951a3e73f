#include <xxhash.h>

#include <cstring>
#include <random>

#include "actors/data/pretokenizer.h"
#include "actors/data/text_source.h"
#include "actors/data/token_cache.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

using namespace troupe;

namespace {

std::string jsonl_error(std::string_view content) {
  const auto read = read_jsonl(content, "a.jsonl", "text", [](auto, bool) { return Status(); });
  REQUIRE_FALSE(read.ok());
  CHECK(read.error().code == ErrorCode::invalid_input);
  return read.error().text;
}

std::vector<std::int32_t> all(const TokenFile& tokens) {
  std::vector<std::int32_t> ids(tokens.size());
  tokens.copy(0, ids);
  return ids;
}

}  // namespace

TEST_CASE("JSON lines give their field, document by document") {
  std::vector<std::string> documents;
  const auto read =
      read_jsonl("{\"text\": \"one\", \"n\": 1}\n{\"text\":\"two\\n\"}\r\n{\"text\":\"\"}",
                 "a.jsonl", "text", [&](std::string_view piece, bool ends) {
                   CHECK(ends);
                   documents.emplace_back(piece);
                   return Status();
                 });
  CHECK(read.ok());
  CHECK(documents == std::vector<std::string>{"one", "two\n", ""});
}

TEST_CASE("a bad JSON line is named by file and line") {
  CHECK(jsonl_error("{\"text\":\"a\"}\n{\"text\":\n").find("a.jsonl:2:1:9: not valid JSON") == 0);
  CHECK(jsonl_error("{\"text\":\"a\"}\n[1]\n") == "a.jsonl:2: must be an object, is array");
  CHECK(jsonl_error("{\"txt\":\"a\",\"b\":1}\n") ==
        "a.jsonl:1: no field \"text\"; there are: \"b\", \"txt\"");
  CHECK(jsonl_error("{\"text\":5}\n") == "a.jsonl:1: field \"text\" must be a string, is number");
  CHECK(jsonl_error("{\"text\":\"a\"}\n\n{\"text\":\"a\"}\n") == "a.jsonl:2: an empty line");
  CHECK(jsonl_error("{\"text\":\"a\",\"text\":\"b\"}\n") == "a.jsonl:1: key \"text\" is repeated");
  CHECK(jsonl_error("{\"text\":\"\xff\"}\n").find("a.jsonl:1") == 0);
  const std::string deep = "{\"text\":" + std::string(100000, '[') + "\n";
  CHECK(jsonl_error(deep).find("a.jsonl:1") == 0);
}

TEST_CASE("a long text comes in pieces that join to the whole") {
  std::mt19937 random(3);
  std::string text;
  while (text.size() < 3'000'000) text += std::string(1 + random() % 9, 'a') + " ";
  std::string joined;
  int pieces = 0;
  CHECK(read_text(text, [&](std::string_view piece, bool ends) {
          joined += piece;
          ++pieces;
          CHECK(ends == (joined.size() == text.size()));
          return Status();
        }).ok());
  CHECK(joined == text);
  CHECK(pieces == 3);
  const std::string unbroken(2'500'000, 'x');
  pieces = 0;
  CHECK(read_text(unbroken, [&](std::string_view piece, bool) {
          CHECK(piece.size() == unbroken.size());
          ++pieces;
          return Status();
        }).ok());
  CHECK(pieces == 1);
}

TEST_CASE("a token cache is used again, and made again when text or tokenizer differ") {
  const TemporaryFolder folder;
  set_content(folder / "a.txt", "some words, and more");
  DataSpec data;
  data.cache_folder = (folder / "cache").string();
  const auto tokenizer = make_byte_tokenizer();
  auto first = tokens_of_file(folder / "a.txt", data, *tokenizer);
  REQUIRE(first.ok());
  CHECK(first->built);
  CHECK(first->note.empty());
  CHECK(all(first->tokens) == tokenizer->encode("some words, and more"));
  CHECK(first->tokens.largest_id() == 'w');

  const auto again = tokens_of_file(folder / "a.txt", data, *tokenizer);
  CHECK_FALSE(again->built);
  CHECK(all(again->tokens) == all(first->tokens));

  set_content(folder / "a.txt", "some words, and more!");
  const auto changed = tokens_of_file(folder / "a.txt", data, *tokenizer);
  CHECK(changed->built);
  CHECK(changed->note.find("made from another text, tokenizer or version; made again") !=
        std::string::npos);
  CHECK(changed->tokens.size() == 21);
  int entries = 0;
  for (const auto& entry : std::filesystem::directory_iterator(data.cache_folder)) {
    CHECK(entry.path().extension() == ".tokens");
    ++entries;
  }
  CHECK(entries == 1);
}

TEST_CASE("every flipped byte and every truncation of a token cache is noticed") {
  const TemporaryFolder folder;
  set_content(folder / "a.txt", "abcdefgh");
  DataSpec data;
  data.cache_folder = (folder / "cache").string();
  const auto tokenizer = make_byte_tokenizer();
  REQUIRE(tokens_of_file(folder / "a.txt", data, *tokenizer).ok());
  const auto path = token_cache_path(folder / "a.txt", data, *tokenizer);
  const std::string good = content_of(path);
  const std::string head = cache_head("abcdefgh", *tokenizer, data.format, data.jsonl_field);
  const auto head_span = std::as_bytes(std::span(head));
  REQUIRE(open_token_cache(path, head_span).ok());
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string flipped = good;
    flipped[i] = static_cast<char>(flipped[i] ^ 0x20);
    set_content(path, flipped);
    INFO("byte " << i);
    CHECK_FALSE(open_token_cache(path, head_span).ok());
    set_content(path, good.substr(0, i));
    CHECK_FALSE(open_token_cache(path, head_span).ok());
  }
  set_content(path, good + "x");
  CHECK_FALSE(open_token_cache(path, head_span).ok());
  const auto rebuilt = tokens_of_file(folder / "a.txt", data, *tokenizer);
  REQUIRE(rebuilt.ok());
  CHECK(rebuilt->built);
  CHECK_FALSE(rebuilt->note.empty());
  CHECK(content_of(path) == good);
}

TEST_CASE("L140 a token cache whose ids are beyond the largest that it names is refused") {
  const TemporaryFolder folder;
  set_content(folder / "a.txt", "abcdefgh");
  DataSpec data;
  data.cache_folder = (folder / "cache").string();
  const auto tokenizer = make_byte_tokenizer();
  REQUIRE(tokens_of_file(folder / "a.txt", data, *tokenizer).ok());
  const auto path = token_cache_path(folder / "a.txt", data, *tokenizer);
  // With the right checksum: whoever wrote it was wrong, the disk was not.
  std::string content = content_of(path);
  content[48] = '\x7f';
  const XXH128_hash_t hash = XXH3_128bits(content.data(), content.size() - 16);
  std::memcpy(content.data() + content.size() - 16, &hash.low64, 8);
  std::memcpy(content.data() + content.size() - 8, &hash.high64, 8);
  set_content(path, content);
  const std::string head = cache_head("abcdefgh", *tokenizer, data.format, data.jsonl_field);
  const auto opened = open_token_cache(path, std::as_bytes(std::span(head)));
  REQUIRE_FALSE(opened.ok());
  CHECK(opened.error().text.find("its largest id is not the one that it names") !=
        std::string::npos);
}

TEST_CASE("JSONL documents end with a line break in bytes, with end of text in GPT-2") {
  const TemporaryFolder folder;
  set_content(folder / "a.jsonl", "{\"text\":\"ab\"}\n{\"text\":\"c\"}\n");
  DataSpec data;
  data.format = TextFormat::jsonl;
  data.cache_folder = (folder / "cache").string();
  const auto bytes = make_byte_tokenizer();
  const auto plain = tokens_of_file(folder / "a.jsonl", data, *bytes);
  REQUIRE(plain.ok());
  CHECK(all(plain->tokens) == std::vector<std::int32_t>{'a', 'b', '\n', 'c', '\n'});
  const auto gpt2 = load_gpt2_tokenizer(TROUPE_SOURCE_DIR "/tests/data/gpt2-tokenizer");
  REQUIRE(gpt2.ok());
  const auto merged = tokens_of_file(folder / "a.jsonl", data, **gpt2);
  REQUIRE(merged.ok());
  CHECK(all(merged->tokens) == std::vector<std::int32_t>{397, 50256, 66, 50256});
}

TEST_CASE("a bad line leaves no cache behind") {
  const TemporaryFolder folder;
  set_content(folder / "a.jsonl", "{\"text\":\"ab\"}\nnonsense\n");
  DataSpec data;
  data.format = TextFormat::jsonl;
  data.cache_folder = (folder / "cache").string();
  const auto tokenizer = make_byte_tokenizer();
  const auto refused = tokens_of_file(folder / "a.jsonl", data, *tokenizer);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().text.find("a.jsonl:2:1:2: not valid JSON") != std::string::npos);
  CHECK(std::filesystem::is_empty(data.cache_folder));
  CHECK(tokens_of_file(folder / "none.txt", data, *tokenizer).error().code == ErrorCode::not_found);
  CHECK_FALSE(tokens_of_file(folder.path(), data, *tokenizer).ok());
}
