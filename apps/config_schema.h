/// The one table of configuration keys: the parser, `troupe explain` and the documentation read it.
/// A key that is not in it does not exist.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "planner/nearest.h"

namespace troupe {

enum class ConfigType {
  integer,          ///< whole number in [low, high]
  integer_or_word,  ///< whole number in [low, high], or the one word in `choices`
  number,           ///< number in [low, high]
  boolean,          ///< true or false
  text,             ///< any text
  choice,           ///< one of `choices`
  size,             ///< text with a unit of bytes, "24 GiB"
  time,             ///< text with a unit of time, "30 s"
  rate,             ///< text with bytes per second, "12 GB/s"
  texts,            ///< list of texts
  integers,         ///< list of whole numbers in [low, high]
};

/// How a key behaves when nobody writes it.
enum class ConfigPresence { has_default, required, optional };

struct ConfigKey {
  std::string_view table;  ///< "node.device"; tables of lists without brackets
  std::string_view name;
  ConfigType type = ConfigType::text;
  ConfigPresence presence = ConfigPresence::optional;
  std::string_view fallback;  ///< the default as TOML; for required and optional keys an example
  double low = 0;
  double high = 0;
  std::string_view choices;  ///< "cpu|emulated"
  std::string_view help;     ///< one or two sentences; says what an optional key's absence means
};

struct ConfigTable {
  std::string_view name;
  bool repeated = false;  ///< written [[name]]
  std::string_view help;
};

std::span<const ConfigKey> config_keys();
std::span<const ConfigTable> config_tables();
const ConfigKey* find_key(std::string_view table, std::string_view name);
const ConfigTable* find_table(std::string_view name);
std::vector<std::string_view> choices_of(const ConfigKey& key);

std::string path_of(const ConfigKey& key);      ///< "run.steps"
std::string header_of(std::string_view table);  ///< "[run]", "[[node]]"
std::string type_text(const ConfigKey& key);    ///< "a whole number from 1 to 1000"

/// What to do about an unknown key (or table) `name` found in table `table` ("" at the top):
/// names the nearest known key there, the table that the key belongs to, or what is known here.
std::string suggestion_for(std::string_view table, std::string_view name);

/// The help page of a key or table ("run.steps", "steps", "plan"); nothing when it is unknown.
std::optional<std::string> explain(std::string_view path);
/// All keys with types and defaults, one line a key.
std::string explain_all();
/// The reference as Markdown: conf/keys.md is this text.
std::string keys_markdown();

}  // namespace troupe
