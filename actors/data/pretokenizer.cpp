#include "actors/data/pretokenizer.h"

#include <algorithm>
#include <array>

#include "actors/data/unicode_ranges.h"
#include "planner/result.h"

namespace troupe {
namespace {

enum class Kind : unsigned char { letter, number, space, other };

Kind kind_of(char32_t code) {
  if (code < 0x80) {
    if ((code >= 'a' && code <= 'z') || (code >= 'A' && code <= 'Z')) return Kind::letter;
    if (code >= '0' && code <= '9') return Kind::number;
    if (code == ' ' || (code >= 0x9 && code <= 0xd)) return Kind::space;
    return Kind::other;
  }
  if (code >= invalid_byte) return Kind::other;
  if (is_letter(code)) return Kind::letter;
  if (is_number(code)) return Kind::number;
  return is_space(code) ? Kind::space : Kind::other;
}

/// End of the run of characters of one kind that begins at `offset`.
std::size_t run_end(std::string_view text, std::size_t offset, Kind kind) {
  while (offset < text.size()) {
    const auto next = character_at(text, offset);
    if (kind_of(next.code) != kind) break;
    offset += next.bytes;
  }
  return offset;
}

/// End of the run of spaces at the start, and where its last character begins.
struct SpaceRun {
  std::size_t last = 0;
  std::size_t end = 0;
};

SpaceRun space_run(std::string_view text) {
  SpaceRun run;
  while (run.end < text.size()) {
    const auto next = character_at(text, run.end);
    if (kind_of(next.code) != Kind::space) break;
    run.last = run.end;
    run.end += next.bytes;
  }
  return run;
}

}  // namespace

Utf8Character character_at(std::string_view text, std::size_t offset) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[offset + i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const Utf8Character invalid{invalid_byte + lead, 1};
  const std::size_t count = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() - offset < count) return invalid;
  char32_t code = lead & (0x7fU >> count);
  for (std::size_t i = 1; i < count; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return invalid;
    code = (code << 6) | (byte(i) & 0x3fU);
  }
  constexpr std::array<char32_t, 5> least{0, 0, 0x80, 0x800, 0x10000};
  if (code < least[count] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) return invalid;
  return {code, count};
}

std::size_t first_piece_bytes(std::string_view text) {
  EXPECTS(!text.empty());
  if (text[0] == '\'') {
    for (const std::string_view ending : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"})
      if (text.starts_with(ending)) return ending.size();
  }
  const auto first = character_at(text, 0);
  Kind kind = kind_of(first.code);
  std::size_t start = 0;
  if (text[0] == ' ' && text.size() > 1) {
    kind = kind_of(character_at(text, 1).code);
    start = kind == Kind::space ? 0 : 1;
  }
  if (kind != Kind::space) return run_end(text, start, kind);
  const SpaceRun run = space_run(text);
  const bool word_follows = run.end < text.size();
  return word_follows && run.last > 0 ? run.last : run.end;
}

std::size_t safe_cut(std::string_view text, std::size_t limit) {
  if (text.empty()) return 0;
  for (std::size_t at = std::min(limit, text.size() - 1); at > 0; --at) {
    const auto before = static_cast<unsigned char>(text[at - 1]);
    if ((text[at] == ' ' || text[at] == '\n') && before > 0x20 && before < 0x80) return at;
  }
  return 0;
}

}  // namespace troupe
