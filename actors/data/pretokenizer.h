/// Cuts text into the pieces within which GPT-2's byte-pair merges happen.
#pragma once

#include <cstddef>
#include <string_view>

namespace troupe {

/// One character of UTF-8. A byte that begins no valid character stands for itself: `code` is then
/// above the range of Unicode, so that it is neither letter nor number nor space.
struct Utf8Character {
  char32_t code = 0;
  std::size_t bytes = 0;
};
inline constexpr char32_t invalid_byte = 0x110000;

/// The character at `offset`, which must be inside `text`. Overlong forms, surrogates and values
/// above U+10FFFF are invalid.
Utf8Character character_at(std::string_view text, std::size_t offset);

/// Bytes of the first piece of `text`, which must not be empty: a contraction ('s 't 're 've 'm
/// 'll 'd), or an optional space with a run of letters, of numbers or of anything else but spaces,
/// or a run of spaces. A run of spaces before a word leaves its last character to the word's piece.
std::size_t first_piece_bytes(std::string_view text);

/// Where a long text may be cut without changing its pieces: the largest offset <= `limit` that has
/// a space or line break behind and an ASCII byte that is no space before it; 0 where there is
/// none.
std::size_t safe_cut(std::string_view text, std::size_t limit);

}  // namespace troupe
