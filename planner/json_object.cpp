#include "planner/json_object.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "planner/printable.h"

namespace troupe {

using nlohmann::json;

JsonObject::JsonObject(const json& value,
                       std::string path,
                       std::initializer_list<const char*> keys,
                       std::initializer_list<const char*> optional)
    : value_(value), path_(std::move(path)) {
  if (!value.is_object()) throw JsonRefused{path_ + " is not an object"};
  for (const char* key : keys)
    if (!value.contains(key)) throw JsonRefused{this->path(key) + " is missing"};
  const auto among = [](std::initializer_list<const char*> list, const std::string& key) {
    return std::any_of(list.begin(), list.end(), [&](const char* known) { return key == known; });
  };
  for (const auto& [key, ignored] : value.items())
    if (!among(keys, key) && !among(optional, key))
      throw JsonRefused{this->path(printable(key).c_str()) + " is not a known key"};
}

bool JsonObject::has(const char* key) const {
  return value_.contains(key);
}

const json& JsonObject::at(const char* key) const {
  return value_.at(key);
}

bool JsonObject::boolean(const char* key) const {
  if (!at(key).is_boolean()) throw JsonRefused{path(key) + " is not true or false"};
  return at(key).get<bool>();
}

const json& JsonObject::array(const char* key) const {
  if (!at(key).is_array()) throw JsonRefused{path(key) + " is not an array"};
  return at(key);
}

std::uint64_t JsonObject::u64_of(const json& value, const std::string& path) {
  if (!value.is_number_unsigned()) throw JsonRefused{path + " is not a whole number from 0"};
  return value.get<std::uint64_t>();
}

std::uint32_t JsonObject::u32_of(const json& value, const std::string& path) {
  const std::uint64_t number = u64_of(value, path);
  if (number > 0xffffffffu) throw JsonRefused{path + " does not fit into 32 bits"};
  return static_cast<std::uint32_t>(number);
}

double JsonObject::number_of(const json& value, const std::string& path) {
  if (!value.is_number()) throw JsonRefused{path + " is not a number"};
  return value.get<double>();
}

std::string JsonObject::string_of(const json& value, const std::string& path) {
  if (!value.is_string()) throw JsonRefused{path + " is not a string"};
  return value.get<std::string>();
}

}  // namespace troupe
