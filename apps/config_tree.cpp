#include "apps/config_tree.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <charconv>
#include <sstream>

namespace troupe {
namespace {

Position position_of(const toml::source_region& region, const std::string& name) {
  return {name, region.begin.line, region.begin.column};
}

ConfigNode convert(const toml::node& node, const std::string& name);

ConfigNode convert_table(const toml::table& table, const std::string& name) {
  ConfigNode result;
  result.at = position_of(table.source(), name);
  for (auto&& [key, value] : table) {
    ConfigNode::Entry entry{std::string(key.str()), position_of(key.source(), name),
                            convert(value, name)};
    result.entries.push_back(std::move(entry));
  }
  std::stable_sort(result.entries.begin(), result.entries.end(),
                   [](const auto& a, const auto& b) { return a.key_at < b.key_at; });
  return result;
}

ConfigNode convert(const toml::node& node, const std::string& name) {
  if (const auto* table = node.as_table()) return convert_table(*table, name);
  ConfigNode result;
  result.at = position_of(node.source(), name);
  if (const auto* array = node.as_array()) {
    result.kind = ConfigNode::Kind::array;
    for (const toml::node& item : *array) result.items.push_back(convert(item, name));
  } else if (const auto* integer = node.as_integer()) {
    result.kind = ConfigNode::Kind::integer;
    result.integer = integer->get();
    result.number = static_cast<double>(result.integer);
  } else if (const auto* number = node.as_floating_point()) {
    result.kind = ConfigNode::Kind::number;
    result.number = number->get();
  } else if (const auto* boolean = node.as_boolean()) {
    result.kind = ConfigNode::Kind::boolean;
    result.boolean = boolean->get();
  } else if (const auto* text = node.as_string()) {
    result.kind = ConfigNode::Kind::text;
    result.text = text->get();
  } else {
    result.kind = ConfigNode::Kind::other;
    result.text = "a date or time";
  }
  return result;
}

/// The value of an override: TOML where it parses, text otherwise.
ConfigNode override_value(const std::string& text, const std::string& place) {
  ConfigNode result;
  const bool one_line = text.find_first_of("\r\n#") == std::string::npos;
  try {
    if (one_line) {
      const toml::table parsed = toml::parse("value = " + text);
      if (parsed.size() == 1 && parsed.get("value") != nullptr)
        result = convert(*parsed.get("value"), place);
      else
        result.kind = ConfigNode::Kind::other;
    }
  } catch (const toml::parse_error&) {
    result.kind = ConfigNode::Kind::other;
  }
  if (!one_line || result.kind == ConfigNode::Kind::other) {
    result = {};
    result.kind = ConfigNode::Kind::text;
    result.text = text;
  }
  result.raw = text;
  const auto relocate = [&place](auto&& self, ConfigNode& node) -> void {
    node.at = {place, 0, 0};
    for (ConfigNode& item : node.items) self(self, item);
    for (ConfigNode::Entry& entry : node.entries) {
      entry.key_at = {place, 0, 0};
      self(self, entry.value);
    }
  };
  relocate(relocate, result);
  return result;
}

std::vector<std::string> split_path(const std::string& path) {
  std::vector<std::string> parts;
  std::stringstream stream(path);
  for (std::string part; std::getline(stream, part, '.');) parts.push_back(part);
  if (!path.empty() && path.back() == '.') parts.emplace_back();
  return parts;
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\')
      (out += '\\') += c;
    else if (byte < 0x20 || byte == 0x7f)
      out += fmt::format("\\u{:04X}", byte);
    else
      out += c;
  }
  return out + '"';
}

std::string key_text(const std::string& key) {
  const bool bare = !key.empty() && std::all_of(key.begin(), key.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-';
  });
  return bare ? key : quoted(key);
}

std::string value_text(const ConfigNode& node) {
  switch (node.kind) {
    case ConfigNode::Kind::integer: return fmt::format("{}", node.integer);
    case ConfigNode::Kind::boolean: return node.boolean ? "true" : "false";
    case ConfigNode::Kind::number: {
      std::string text = fmt::format("{}", node.number);
      if (text.find_first_of(".en") == std::string::npos) text += ".0";
      return text;
    }
    case ConfigNode::Kind::array: {
      std::string text = "[";
      for (std::size_t i = 0; i < node.items.size(); ++i)
        text += (i == 0 ? "" : ", ") + value_text(node.items[i]);
      return text + "]";
    }
    default: return quoted(node.text);
  }
}

bool is_table_array(const ConfigNode& node) {
  return node.kind == ConfigNode::Kind::array && !node.items.empty() &&
         node.items.front().is_table();
}

void print_table(const ConfigNode& table, const std::string& path, std::string& out) {
  for (const auto& entry : table.entries)
    if (!entry.value.is_table() && !is_table_array(entry.value))
      out += key_text(entry.key) + " = " + value_text(entry.value) + "\n";
  for (const auto& entry : table.entries) {
    const std::string inner = (path.empty() ? "" : path + ".") + key_text(entry.key);
    if (entry.value.is_table()) {
      out += "\n[" + inner + "]\n";
      print_table(entry.value, inner, out);
    } else if (is_table_array(entry.value)) {
      for (const ConfigNode& item : entry.value.items) {
        out += "\n[[" + inner + "]]\n";
        print_table(item, inner, out);
      }
    }
  }
}

}  // namespace

std::string to_string(const Position& at) {
  return at.line == 0 ? at.file : fmt::format("{}:{}:{}", at.file, at.line, at.column);
}

std::string to_string(const ConfigProblem& problem) {
  return to_string(problem.at) + ": " + problem.text;
}

const char* to_string(ConfigNode::Kind kind) {
  switch (kind) {
    case ConfigNode::Kind::table: return "a table";
    case ConfigNode::Kind::array: return "a list";
    case ConfigNode::Kind::integer: return "an integer";
    case ConfigNode::Kind::number: return "a number";
    case ConfigNode::Kind::boolean: return "a boolean";
    case ConfigNode::Kind::text: return "text";
    case ConfigNode::Kind::other: return "a date or time";
  }
  return "unknown";
}

const ConfigNode* ConfigNode::find(std::string_view key) const {
  for (const Entry& entry : entries)
    if (entry.key == key) return &entry.value;
  return nullptr;
}

ConfigNode* ConfigNode::find(std::string_view key) {
  for (Entry& entry : entries)
    if (entry.key == key) return &entry.value;
  return nullptr;
}

ConfigNode& ConfigNode::add(std::string key, Position key_at) {
  entries.push_back({std::move(key), std::move(key_at), {}});
  return entries.back().value;
}

ConfigNode parse_config_tree(std::string_view text,
                             const std::string& name,
                             std::vector<ConfigProblem>& problems) {
  try {
    ConfigNode root = convert_table(toml::parse(text, name), name);
    root.at = {name, 1, 1};
    return root;
  } catch (const toml::parse_error& error) {
    std::string reason(error.description());
    problems.push_back({position_of(error.source(), name), "not TOML: " + reason});
  }
  ConfigNode empty;
  empty.at = {name, 1, 1};
  return empty;
}

void apply_override(ConfigNode& root,
                    const std::string& assignment,
                    std::vector<ConfigProblem>& problems) {
  const std::string place = "--set " + assignment;
  const auto equals = assignment.find('=');
  const auto refuse = [&](const std::string& reason) {
    problems.push_back({{place, 0, 0}, reason});
  };
  if (equals == std::string::npos)
    return refuse("there is no \"=\"; write it like --set run.steps=100");
  const std::vector<std::string> path = split_path(assignment.substr(0, equals));
  if (path.empty() ||
      std::any_of(path.begin(), path.end(), [](const auto& p) { return p.empty(); }))
    return refuse("the key is empty; write it like --set run.steps=100");
  ConfigNode* node = &root;
  std::string walked;
  for (std::size_t i = 0; i < path.size(); ++i) {
    const bool last = i + 1 == path.size();
    if (node->kind == ConfigNode::Kind::array) {
      std::size_t index = 0;
      const char* end = path[i].data() + path[i].size();
      const auto parsed = std::from_chars(path[i].data(), end, index);
      if (parsed.ec != std::errc{} || parsed.ptr != end || index >= node->items.size())
        return refuse(fmt::format("{} is a list of {}: \"{}\" is no index of it; the first is {}.0",
                                  walked, node->items.size(), path[i], walked));
      node = &node->items[index];
    } else if (node->is_table()) {
      ConfigNode* next = node->find(path[i]);
      if (next == nullptr) next = &node->add(path[i], {place, 0, 0});
      if (!last && next->entries.empty() && next->is_table()) next->at = {place, 0, 0};
      node = next;
    } else {
      return refuse(fmt::format("{} is {}, not a table", walked, to_string(node->kind)));
    }
    walked += (walked.empty() ? "" : ".") + path[i];
  }
  *node = override_value(assignment.substr(equals + 1), place);
}

std::string to_toml(const ConfigNode& root) {
  std::string out;
  print_table(root, "", out);
  return out;
}

}  // namespace troupe
