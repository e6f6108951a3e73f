#include "actors/checkpoint/hf_keys.h"

#include <fmt/format.h>

#include <limits>

namespace troupe {

using nlohmann::json;

namespace {

std::string shown(const json& value) {
  return printable(value.dump());
}

}  // namespace

std::uint32_t HfKeys::count(const char* key, std::optional<std::uint32_t> otherwise) {
  const json* const value = find(key);
  if (value == nullptr) {
    if (!otherwise) refuse(key, "is missing");
    return otherwise.value_or(0);
  }
  if (!value->is_number_unsigned() ||
      value->get<std::uint64_t>() > std::numeric_limits<std::uint32_t>::max()) {
    refuse(key, "must be a whole number below 2^32, is " + shown(*value));
    return 0;
  }
  return value->get<std::uint32_t>();
}

double HfKeys::number(const char* key, double otherwise) {
  const json* const value = find(key);
  if (value == nullptr) return otherwise;
  if (!value->is_number()) refuse(key, "must be a number, is " + shown(*value));
  return value->is_number() ? value->get<double>() : 0;
}

bool HfKeys::flag(const char* key, bool otherwise) {
  const json* const value = find(key);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) refuse(key, "must be true or false, is " + shown(*value));
  return value->is_boolean() && value->get<bool>();
}

void HfKeys::require_absent(const char* key) {
  if (const json* const value = find(key))
    refuse(key, fmt::format("is {}; Troupe does not compute that", shown(*value)));
}

const json* HfKeys::find(const char* key) const {
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

void HfKeys::refuse(const char* key, const std::string& why) {
  if (!problem_)
    problem_ = Error{ErrorCode::invalid_input, fmt::format("{}: \"{}\" {}", file_, key, why)};
}

void HfKeys::adopt_problem(const HfKeys& other) {
  if (!problem_) problem_ = other.problem_;
}

void HfKeys::refuse_other(const char* key, const json& value, const json& only) {
  refuse(key, fmt::format("is {}; Troupe computes {} only", shown(value), only.dump()));
}

}  // namespace troupe
