#include "planner/nearest.h"

#include <algorithm>
#include <cctype>

namespace troupe {
namespace {

/// How many edits still look like the same word.
std::size_t tolerance(std::string_view word) {
  return word.size() <= 2 ? 1 : word.size() <= 5 ? 2 : 3;
}

/// Lower case, letters and digits alone.
std::string plain(std::string_view word) {
  std::string out;
  for (const unsigned char c : word)
    if (std::isalnum(c) != 0) out += static_cast<char>(std::tolower(c));
  return out;
}

/// What stands before the first sign that is no letter or digit.
std::string first_part(std::string_view word) {
  const auto end =
      std::find_if(word.begin(), word.end(), [](unsigned char c) { return std::isalnum(c) == 0; });
  return plain(word.substr(0, static_cast<std::size_t>(end - word.begin())));
}

}  // namespace

std::size_t edit_distance(std::string_view a, std::string_view b) {
  if (a.size() > 64 || b.size() > 64) return std::max(a.size(), b.size());
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (std::size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i)
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t change = a[i - 1] == b[j - 1] ? 0 : 1;
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  return d[a.size()][b.size()];
}

std::string nearest_of_all(std::string_view word, const std::vector<std::string>& known) {
  const auto best =
      std::min_element(known.begin(), known.end(), [word](const auto& a, const auto& b) {
        return edit_distance(word, a) < edit_distance(word, b);
      });
  return best == known.end() ? std::string{} : *best;
}

std::optional<std::string> nearest(std::string_view word, const std::vector<std::string>& known) {
  const std::string best = nearest_of_all(word, known);
  if (best.empty() || edit_distance(word, best) > std::min(tolerance(word), best.size() - 1))
    return std::nullopt;
  return best;
}

std::vector<std::string> likely_names(std::string_view word,
                                      const std::vector<std::string>& known,
                                      std::size_t most) {
  const auto those = [&](const auto& holds) {
    std::vector<std::string> out;
    for (const std::string& name : known)
      if (out.size() < most && holds(plain(name))) out.push_back(name);
    return out;
  };
  std::vector<std::string> found;
  const std::string wanted = plain(word);
  if (wanted.size() > 1) {
    found = those([&](const std::string& name) { return name.starts_with(wanted); });
    if (found.empty())
      found = those([&](const std::string& name) { return name.find(wanted) != name.npos; });
  }
  if (found.empty())
    if (auto near = nearest(word, known)) found.push_back(std::move(*near));
  const std::string part = first_part(word);
  if (found.empty() && part.size() > 1)
    found = those([&](const std::string& name) { return name.starts_with(part); });
  return found;
}

std::string near_names_text(std::string_view word, const std::vector<std::string>& known) {
  std::vector<std::string> near = likely_names(word, known);
  if (near.empty()) near.push_back(nearest_of_all(word, known));
  std::string out = near.size() == 1 ? "nearest legal value:" : "nearest legal values:";
  for (const std::string& name : near) out += (&name == near.data() ? " \"" : ", \"") + name + '"';
  return out;
}

}  // namespace troupe
