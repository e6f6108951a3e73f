/// The configuration as a tree of values that remember where they stand: in a file, or on the
/// command line (`--set a.b=c`). TOML is read into it once; checks and defaults work on the tree.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "planner/result.h"

namespace troupe {

/// Where a value was written. Lines and columns count from 1; line 0: `file` is already the whole
/// place, such as "--set run.steps=0".
struct Position {
  std::string file;
  std::uint32_t line = 0;
  std::uint32_t column = 0;
  friend auto operator<=>(const Position&, const Position&) = default;
};

std::string to_string(const Position& at);  ///< "conf/demo.toml:3:9"

/// One problem of a configuration. Its text form is "file:line:column: reason; nearest legal
/// thing".
struct ConfigProblem {
  Position at;
  std::string text;
  friend auto operator<=>(const ConfigProblem&, const ConfigProblem&) = default;
};

std::string to_string(const ConfigProblem& problem);

/// A value with its place.
struct ConfigNode {
  enum class Kind : std::uint8_t { table, array, integer, number, boolean, text, other };

  Kind kind = Kind::table;
  Position at;                    ///< of the value
  std::int64_t integer = 0;       ///< Kind::integer
  double number = 0;              ///< Kind::number, and integers as a number
  bool boolean = false;           ///< Kind::boolean
  std::string text;               ///< Kind::text; Kind::other: what TOML calls it
  std::string raw;                ///< as typed after --set; empty for values of a file
  std::vector<ConfigNode> items;  ///< Kind::array
  bool is_default = false;        ///< nobody wrote it
  bool bad = false;               ///< a problem was reported: checks leave it alone
  struct Entry;
  std::vector<Entry> entries;  ///< Kind::table, in the order of the file

  const ConfigNode* find(std::string_view key) const;
  ConfigNode* find(std::string_view key);
  ConfigNode& add(std::string key, Position key_at);
  bool is_table() const { return kind == Kind::table; }
};

/// One key of a table.
struct ConfigNode::Entry {
  std::string key;
  Position key_at;
  ConfigNode value;
};

const char* to_string(ConfigNode::Kind kind);  ///< "an integer", "a table"

/// Reads TOML. `name` is the file's name in positions. A syntax error is one problem.
ConfigNode parse_config_tree(std::string_view text,
                             const std::string& name,
                             std::vector<ConfigProblem>& problems);

/// Applies "a.b=c" to the tree; numbers in the path index arrays ("node.0.process=true"). The value
/// is TOML; what is no TOML value counts as text.
void apply_override(ConfigNode& root,
                    const std::string& assignment,
                    std::vector<ConfigProblem>& problems);

/// The tree as TOML text: scalars of a table first, then its tables. Problems were dealt with
/// before: nothing of Kind::other is left.
std::string to_toml(const ConfigNode& root);

}  // namespace troupe
