/// Holds a configuration tree against the table of keys: unknown keys, wrong types, values out of
/// range, missing keys; and fills in the defaults.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "apps/config_schema.h"
#include "apps/config_tree.h"

namespace troupe {

/// Reports every problem, marks the values concerned as bad, and adds what has a default.
/// Afterwards every table that is not repeated exists, and every key of an existing table that has
/// a default.
void check_against_table(ConfigNode& root, std::vector<ConfigProblem>& problems);

/// The same for one table that stands alone, such as [model] in a file of its own.
void check_one_table(std::string_view name,
                     ConfigNode& table,
                     std::vector<ConfigProblem>& problems);

/// Typed access to one checked table. Missing and bad values read as zero, false or empty: where
/// there was a problem nothing is built, so the value does not matter.
class ConfigReader {
 public:
  explicit ConfigReader(const ConfigNode* table) : table_(table) {}

  /// The table [name] in this one; an empty reader when there is none.
  ConfigReader table(std::string_view name) const;
  /// The tables [[name]] in this one.
  std::vector<ConfigReader> tables(std::string_view name) const;

  bool has(std::string_view key) const;  ///< written or defaulted, and not bad
  /// All of these keys can be judged: present and not bad.
  bool usable(std::initializer_list<std::string_view> keys) const;
  std::uint64_t integer(std::string_view key) const;
  std::uint32_t integer32(std::string_view key) const;
  double number(std::string_view key) const;
  bool boolean(std::string_view key) const;
  std::string text(std::string_view key) const;
  std::uint64_t bytes(std::string_view key) const;
  double seconds(std::string_view key) const;
  double rate(std::string_view key) const;
  const ConfigNode* node(std::string_view key) const;
  /// Of the key's value; of the table when the key is absent or defaulted.
  Position at(std::string_view key) const;
  Position at() const;

 private:
  const ConfigNode* good(std::string_view key) const;
  const ConfigNode* table_;
};

}  // namespace troupe
