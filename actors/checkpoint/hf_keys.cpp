#include "actors/checkpoint/hf_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>

#include "planner/nearest.h"

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
  // What has no default is a size, and none is nothing.
  if (!otherwise && value->get<std::uint32_t>() == 0) refuse(key, "is 0; at least 1 is needed");
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

void HfKeys::check_choice(const char* key, std::span<const std::string_view> known) {
  const json* const value = find(key);
  if (value == nullptr) return;
  if (!value->is_string()) return refuse(key, "must be text, is " + shown(*value));
  const std::string written = value->get<std::string>();
  if (std::find(known.begin(), known.end(), written) != known.end()) return;
  refuse(key, fmt::format("is \"{}\", which is not known; {}", printable(written),
                          near_names_text(written, {known.begin(), known.end()})));
}

void HfKeys::refuse_negative_sizes() {
  constexpr std::string_view ends[]{"_size",  "_dim",     "_rank",      "_layers",    "_heads",
                                    "_width", "_experts", "_positions", "_embeddings"};
  for (const auto& [key, value] : object_.items()) {
    const auto is_end = [&key = key](std::string_view end) {
      return key.size() >= end.size() && key.compare(key.size() - end.size(), end.size(), end) == 0;
    };
    if (value.is_number() && value.get<double>() < 0 &&
        std::any_of(std::begin(ends), std::end(ends), is_end))
      refuse(key.c_str(), fmt::format("is {}; a size is at least 0", shown(value)));
  }
}

void HfKeys::adopt_problem(const HfKeys& other) {
  if (!problem_) problem_ = other.problem_;
}

void HfKeys::refuse_other(const char* key, const json& value, const json& only) {
  refuse(key, fmt::format("is {}; Troupe computes {} only", shown(value), only.dump()));
}

}  // namespace troupe
