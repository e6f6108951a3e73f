/// Typed access to the keys of one config.json, for its readers.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "actors/data/strict_json.h"
#include "planner/result.h"

namespace troupe {

/// Keys of one configuration; null counts as absent. The first problem is kept; later reads give
/// defaults.
class HfKeys {
 public:
  HfKeys(const nlohmann::json& object, std::string_view file) : object_(object), file_(file) {}

  /// Without a default it has to be there, and above 0.
  std::uint32_t count(const char* key, std::optional<std::uint32_t> otherwise = std::nullopt);
  double number(const char* key, double otherwise);
  bool flag(const char* key, bool otherwise);

  /// Refuses any value but `only` (absent is right).
  template <class T>
  void require(const char* key, const T& only) {
    const nlohmann::json* const value = find(key);
    if (value != nullptr && *value != only) refuse_other(key, *value, nlohmann::json(only));
  }
  void require_absent(const char* key);
  /// Refuses what is not among these (absent is right), with the nearest one.
  void check_choice(const char* key, std::span<const std::string_view> known);
  /// Refuses sizes and counts below 0, by the end of their names, whether anybody reads them or
  /// not.
  void refuse_negative_sizes();

  const nlohmann::json* find(const char* key) const;
  bool has(const char* key) const { return find(key) != nullptr; }
  void refuse(const char* key, const std::string& why);
  const std::optional<Error>& problem() const { return problem_; }

  /// The keys of an object in this one. Promise: it is there, and is an object.
  HfKeys inside(const char* key) const { return {*find(key), file_}; }
  /// Keeps the other's problem where there was none here.
  void adopt_problem(const HfKeys& other);

 private:
  void refuse_other(const char* key, const nlohmann::json& value, const nlohmann::json& only);

  const nlohmann::json& object_;
  std::string_view file_;
  std::optional<Error> problem_;
};

}  // namespace troupe
