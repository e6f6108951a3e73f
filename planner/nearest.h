/// Finds what was probably meant by a misspelt name, for refusals that name the nearest right
/// thing.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

/// Number of single-letter edits (insert, delete, replace, swap neighbours) between two words.
std::size_t edit_distance(std::string_view a, std::string_view b);
/// The nearest of `known`, when it is near enough to be what was meant.
std::optional<std::string> nearest(std::string_view word, const std::vector<std::string>& known);
/// The nearest of `known`, however far (empty list: empty text).
std::string nearest_of_all(std::string_view word, const std::vector<std::string>& known);

/// The names of a catalogue that `word` may stand for, at most `most` of them, in the order of
/// `known`; capitals and signs between letters do not count. Those that begin with the word, else
/// those that hold it, else the one that `nearest` gives, else those that begin with the word's
/// first part ("a100-40gb": all of "a100..."), else none.
std::vector<std::string> likely_names(std::string_view word,
                                      const std::vector<std::string>& known,
                                      std::size_t most = 4);
/// "nearest legal value: \"a\"" or "nearest legal values: \"a\", \"b\"": the likely names, or the
/// one that is fewest edits away.
std::string near_names_text(std::string_view word, const std::vector<std::string>& known);

}  // namespace troupe
