#include "apps/config_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "planner/units.h"

namespace troupe {
namespace {

using Kind = ConfigNode::Kind;

std::string join(std::string_view table, std::string_view name) {
  return table.empty() ? std::string(name) : fmt::format("{}.{}", table, name);
}

/// One walk over the tree.
class Checker {
 public:
  explicit Checker(std::vector<ConfigProblem>& problems) : problems_(problems) {}

  void check_root(ConfigNode& root) {
    check_entries(root, "");
    add_missing_tables(root, "");
  }

  void check_alone(std::string_view name, ConfigNode& table) {
    const ConfigTable* info = find_table(name);
    EXPECTS(info != nullptr);
    check_table(*info, table);
  }

 private:
  void report(ConfigNode& node, std::string text) {
    problems_.push_back({node.at, std::move(text)});
    node.bad = true;
  }

  void check_entries(ConfigNode& table, const std::string& name) {
    for (ConfigNode::Entry& entry : table.entries) {
      const std::string path = join(name, entry.key);
      if (const ConfigKey* key = find_key(name, entry.key)) {
        if (!entry.value.bad) check_value(*key, entry.value);
      } else if (const ConfigTable* inner = find_table(path)) {
        check_table(*inner, entry.value);
      } else {
        const std::string where =
            name.empty() ? std::string("outside of a table") : "in " + header_of(name);
        const bool is_table = entry.value.is_table() ||
                              (!entry.value.items.empty() && entry.value.items[0].is_table());
        problems_.push_back(
            {entry.key_at, is_table ? fmt::format("unknown table \"{}\"; {}", path,
                                                  suggestion_for(name, entry.key))
                                    : fmt::format("unknown key \"{}\" {}; {}", entry.key, where,
                                                  suggestion_for(name, entry.key))});
        entry.value.bad = true;
      }
    }
  }

  void check_table(const ConfigTable& info, ConfigNode& node) {
    const std::string name(info.name);
    if (info.repeated) {
      const bool tables =
          node.kind == Kind::array && std::all_of(node.items.begin(), node.items.end(),
                                                  [](const ConfigNode& i) { return i.is_table(); });
      if (!tables)
        return report(node, fmt::format("{} is {}, must be a list of tables; write {}", name,
                                        to_string(node.kind), header_of(name)));
      for (ConfigNode& item : node.items) check_one(info, item);
      return;
    }
    if (!node.is_table()) {
      const bool list = node.kind == Kind::array;
      return report(node, fmt::format("{} is {}, must be one table; write [{}]", name,
                                      list ? "a list" : to_string(node.kind), name));
    }
    check_one(info, node);
  }

  void check_one(const ConfigTable& info, ConfigNode& table) {
    const std::string name(info.name);
    check_entries(table, name);
    add_missing_tables(table, name);
    add_missing_keys(table, name);
  }

  void add_missing_keys(ConfigNode& table, const std::string& name) {
    std::string missing;
    for (const ConfigKey& key : config_keys()) {
      if (key.table != name || table.find(key.name) != nullptr) continue;
      if (key.presence == ConfigPresence::has_default) {
        std::vector<ConfigProblem> none;
        ConfigNode parsed =
            parse_config_tree("value = " + std::string(key.fallback), "default", none);
        EXPECTS(none.empty() && parsed.find("value") != nullptr);
        ConfigNode& added = table.add(std::string(key.name), table.at);
        added = std::move(*parsed.find("value"));
        added.at = table.at;
        added.is_default = true;
      } else if (key.presence == ConfigPresence::required) {
        if (table.is_default)
          missing += (missing.empty() ? "" : ", ") + std::string(key.name);
        else
          problems_.push_back({table.at, fmt::format("{} is missing; add for example {} = {}",
                                                     path_of(key), key.name, key.fallback)});
      }
    }
    if (!missing.empty())
      problems_.push_back({table.at, fmt::format("the table {} is missing; it needs {}",
                                                 header_of(name), missing)});
  }

  /// Tables that are not repeated always exist; one that nobody wrote is a default.
  void add_missing_tables(ConfigNode& table, const std::string& name) {
    for (const ConfigTable& info : config_tables()) {
      const auto dot = info.name.rfind('.');
      const std::string_view parent =
          dot == std::string_view::npos ? std::string_view{} : info.name.substr(0, dot);
      if (parent != name || info.repeated) continue;
      const std::string key(dot == std::string_view::npos ? info.name : info.name.substr(dot + 1));
      if (table.find(key) != nullptr) continue;
      ConfigNode& added = table.add(key, table.at);
      added.at = table.at;
      added.is_default = true;
      check_one(info, added);
    }
  }

  void check_value(const ConfigKey& key, ConfigNode& node) {
    if (!node.raw.empty() && key.type != ConfigType::texts && is_text(key.type) &&
        (node.kind == Kind::integer || node.kind == Kind::number || node.kind == Kind::boolean ||
         node.kind == Kind::other)) {
      node.kind = Kind::text;  // --set run.name=7 means the text
      node.text = node.raw;
    }
    switch (key.type) {
      case ConfigType::integer: return check_integer(key, node);
      case ConfigType::integer_or_word:
        if (node.kind == Kind::text && node.text == key.choices) return;
        return check_integer(key, node);
      case ConfigType::number: return check_number(key, node);
      case ConfigType::boolean:
        if (node.kind != Kind::boolean) wrong_type(key, node);
        return;
      case ConfigType::texts:
      case ConfigType::integers: return check_list(key, node);
      case ConfigType::choice: return check_choice(key, node);
      case ConfigType::size:
      case ConfigType::time:
      case ConfigType::rate: return check_quantity(key, node);
      case ConfigType::text:
        if (node.kind != Kind::text) return wrong_type(key, node);
        if (node.text.empty())
          report(node, fmt::format("{} is empty; write for example {} = {}", path_of(key), key.name,
                                   key.fallback));
        return;
    }
  }

  static bool is_text(ConfigType type) {
    return type != ConfigType::integer && type != ConfigType::integer_or_word &&
           type != ConfigType::number && type != ConfigType::boolean &&
           type != ConfigType::integers;
  }

  void wrong_type(const ConfigKey& key, ConfigNode& node) {
    report(node, fmt::format("{} is {}, must be {}; write for example {} = {}", path_of(key),
                             to_string(node.kind), type_text(key), key.name, key.fallback));
  }

  void check_integer(const ConfigKey& key, ConfigNode& node) {
    if (node.kind == Kind::number && std::isfinite(node.number)) {
      const double whole = std::clamp(std::round(node.number), key.low, key.high);
      return report(node, fmt::format("{} = {} is no whole number; nearest legal value: {:.0f}",
                                      path_of(key), node.number, whole));
    }
    if (node.kind != Kind::integer) return wrong_type(key, node);
    if (node.number < key.low || node.number > key.high)
      report(node,
             fmt::format("{} = {} is out of range ({:.0f} to {:.0f}); nearest legal value: {:.0f}",
                         path_of(key), node.integer, key.low, key.high,
                         std::clamp(node.number, key.low, key.high)));
  }

  void check_number(const ConfigKey& key, ConfigNode& node) {
    if (node.kind != Kind::number && node.kind != Kind::integer) return wrong_type(key, node);
    if (std::isnan(node.number))
      return report(node, fmt::format("{} is not a number (nan); write for example {} = {}",
                                      path_of(key), key.name, key.fallback));
    if (node.number < key.low || node.number > key.high)
      report(node, fmt::format("{} = {} is out of range ({} to {}); nearest legal value: {}",
                               path_of(key), node.number, key.low, key.high,
                               std::clamp(node.number, key.low, key.high)));
  }

  void check_list(const ConfigKey& key, ConfigNode& node) {
    if (node.kind != Kind::array) return wrong_type(key, node);
    if (node.items.empty())
      return report(node, fmt::format("{} is an empty list; write for example {} = {}",
                                      path_of(key), key.name, key.fallback));
    const Kind wanted = key.type == ConfigType::texts ? Kind::text : Kind::integer;
    for (ConfigNode& item : node.items) {
      const bool fits =
          item.kind == wanted &&
          (wanted == Kind::text || (item.number >= key.low && item.number <= key.high)) &&
          (wanted != Kind::text || !item.text.empty());
      if (fits) continue;
      std::string reason = item.kind != wanted ? fmt::format("holds {}", to_string(item.kind))
                           : wanted == Kind::text
                               ? std::string("holds an empty text")
                               : fmt::format("holds {}, which is out of range ({:.0f} to {:.0f})",
                                             item.integer, key.low, key.high);
      report(item, fmt::format("{} {}; write for example {} = {}", path_of(key), reason, key.name,
                               key.fallback));
      node.bad = true;
    }
  }

  void check_choice(const ConfigKey& key, ConfigNode& node) {
    if (node.kind != Kind::text) return wrong_type(key, node);
    std::vector<std::string> known;
    for (const std::string_view choice : choices_of(key)) known.emplace_back(choice);
    if (std::find(known.begin(), known.end(), node.text) != known.end()) return;
    constexpr std::size_t short_list = 8;
    if (known.size() > short_list)
      return report(node, fmt::format("{} = \"{}\" is none of its {} choices; {}", path_of(key),
                                      node.text, known.size(), near_names_text(node.text, known)));
    report(node, fmt::format("{} = \"{}\" is not {}; nearest legal value: \"{}\"", path_of(key),
                             node.text, type_text(key), nearest_of_all(node.text, known)));
  }

  void check_quantity(const ConfigKey& key, ConfigNode& node) {
    if (node.kind != Kind::text) return wrong_type(key, node);
    double value = 0;
    std::string why;
    const auto keep = [&](const auto& parsed) {
      if (parsed)
        value = static_cast<double>(*parsed);
      else
        why = parsed.error().text;
    };
    if (key.type == ConfigType::size)
      keep(parse_bytes(node.text));
    else if (key.type == ConfigType::time)
      keep(parse_seconds(node.text));
    else
      keep(parse_rate(node.text));
    if (!why.empty()) return report(node, fmt::format("{}: {}", path_of(key), why));
    if (value >= key.low && value <= key.high) return;
    const double legal = std::clamp(value, key.low, key.high);
    const char* unit = key.type == ConfigType::size   ? "B"
                       : key.type == ConfigType::time ? "s"
                                                      : "B/s";
    report(node, fmt::format(
                     "{} = \"{}\" is out of range ({} {} to {} {}); nearest legal value: \"{} {}\"",
                     path_of(key), node.text, key.low, unit, key.high, unit, legal, unit));
  }

  std::vector<ConfigProblem>& problems_;
};

}  // namespace

void check_against_table(ConfigNode& root, std::vector<ConfigProblem>& problems) {
  Checker(problems).check_root(root);
}

void check_one_table(std::string_view name,
                     ConfigNode& table,
                     std::vector<ConfigProblem>& problems) {
  Checker(problems).check_alone(name, table);
}

ConfigReader ConfigReader::table(std::string_view name) const {
  const ConfigNode* found = node(name);
  return ConfigReader(found != nullptr && found->is_table() ? found : nullptr);
}

std::vector<ConfigReader> ConfigReader::tables(std::string_view name) const {
  std::vector<ConfigReader> out;
  if (const ConfigNode* found = node(name); found != nullptr && found->kind == Kind::array)
    for (const ConfigNode& item : found->items)
      if (item.is_table()) out.emplace_back(&item);
  return out;
}

const ConfigNode* ConfigReader::node(std::string_view key) const {
  return table_ == nullptr ? nullptr : table_->find(key);
}

const ConfigNode* ConfigReader::good(std::string_view key) const {
  const ConfigNode* found = node(key);
  return found == nullptr || found->bad ? nullptr : found;
}

bool ConfigReader::has(std::string_view key) const {
  return good(key) != nullptr;
}

bool ConfigReader::usable(std::initializer_list<std::string_view> keys) const {
  return std::all_of(keys.begin(), keys.end(), [this](std::string_view key) { return has(key); });
}

std::uint64_t ConfigReader::integer(std::string_view key) const {
  const ConfigNode* found = good(key);
  return found == nullptr || found->integer < 0 ? 0 : static_cast<std::uint64_t>(found->integer);
}

std::uint32_t ConfigReader::integer32(std::string_view key) const {
  const std::uint64_t value = integer(key);
  return value > 0xffffffffU ? 0 : static_cast<std::uint32_t>(value);
}

double ConfigReader::number(std::string_view key) const {
  const ConfigNode* found = good(key);
  return found == nullptr ? 0 : found->number;
}

bool ConfigReader::boolean(std::string_view key) const {
  const ConfigNode* found = good(key);
  return found != nullptr && found->boolean;
}

std::string ConfigReader::text(std::string_view key) const {
  const ConfigNode* found = good(key);
  return found == nullptr ? std::string{} : found->text;
}

std::uint64_t ConfigReader::bytes(std::string_view key) const {
  const auto value = parse_bytes(text(key));
  return value ? *value : 0;
}

double ConfigReader::seconds(std::string_view key) const {
  const auto value = parse_seconds(text(key));
  return value ? *value : 0;
}

double ConfigReader::rate(std::string_view key) const {
  const auto value = parse_rate(text(key));
  return value ? *value : 0;
}

Position ConfigReader::at() const {
  return table_ == nullptr ? Position{} : table_->at;
}

Position ConfigReader::at(std::string_view key) const {
  const ConfigNode* found = node(key);
  return found == nullptr ? at() : found->at;
}

}  // namespace troupe
