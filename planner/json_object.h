/// Objects of the JSON files that this program writes, read back with nothing taken on trust: every
/// key known, every key there, every value of its type.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace troupe {

/// What is wrong with a file, by path: "model.heads is missing". Only readers throw and catch it:
/// a function that returns a Result turns it into an Error.
struct JsonRefused {
  std::string text;
};

/// One object with exactly these keys, and `optional` ones or not. The value must outlive it. Every
/// member but `path` and `has` throws JsonRefused.
class JsonObject {
 public:
  JsonObject(const nlohmann::json& value,
             std::string path,
             std::initializer_list<const char*> keys,
             std::initializer_list<const char*> optional = {});

  bool has(const char* key) const;  ///< of an optional one
  const nlohmann::json& at(const char* key) const;
  std::string path(const char* key) const { return path_ + "." + key; }

  std::uint64_t u64(const char* key) const { return u64_of(at(key), path(key)); }
  std::uint32_t u32(const char* key) const { return u32_of(at(key), path(key)); }
  double number(const char* key) const { return number_of(at(key), path(key)); }
  std::string string(const char* key) const { return string_of(at(key), path(key)); }
  bool boolean(const char* key) const;
  const nlohmann::json& array(const char* key) const;

  static std::uint64_t u64_of(const nlohmann::json& value, const std::string& path);
  static std::uint32_t u32_of(const nlohmann::json& value, const std::string& path);
  static double number_of(const nlohmann::json& value, const std::string& path);
  static std::string string_of(const nlohmann::json& value, const std::string& path);

 private:
  const nlohmann::json& value_;
  std::string path_;
};

}  // namespace troupe
