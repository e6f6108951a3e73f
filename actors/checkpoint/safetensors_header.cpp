#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "actors/checkpoint/safetensors.h"
#include "actors/data/strict_json.h"

namespace troupe {
namespace {

struct TypeName {
  FileType type;
  std::string_view name;
  std::uint64_t bytes;
};
constexpr std::array<TypeName, 15> type_names{{{FileType::f64, "F64", 8},
                                               {FileType::f32, "F32", 4},
                                               {FileType::f16, "F16", 2},
                                               {FileType::bf16, "BF16", 2},
                                               {FileType::f8_e4m3, "F8_E4M3", 1},
                                               {FileType::f8_e5m2, "F8_E5M2", 1},
                                               {FileType::i64, "I64", 8},
                                               {FileType::i32, "I32", 4},
                                               {FileType::i16, "I16", 2},
                                               {FileType::i8, "I8", 1},
                                               {FileType::u64, "U64", 8},
                                               {FileType::u32, "U32", 4},
                                               {FileType::u16, "U16", 2},
                                               {FileType::u8, "U8", 1},
                                               {FileType::boolean, "BOOL", 1}}};

/// Reads the header event by event, so that nothing is built from what is refused anyway.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<TensorEntry> tensors;
  std::map<std::string, std::string> metadata;
  std::string problem;

  bool null() override { return refuse("null has no place here"); }
  bool boolean(bool) override { return refuse("true and false have no place here"); }
  bool number_integer(number_integer_t value) override {
    return refuse(fmt::format("{} is negative", value));
  }
  bool number_float(number_float_t, const std::string& text) override {
    return refuse(fmt::format("{} is no whole number", printable(text)));
  }
  bool binary(binary_t&) override { return refuse("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::shape) {
      if (tensors.back().shape.size() == rank_limit)
        return refuse(fmt::format("more than {} dimensions", rank_limit));
      tensors.back().shape.push_back(value);
      return true;
    }
    if (place_ == Place::offsets) {
      if (offsets_seen_ == 2) return refuse("data_offsets has more than two numbers");
      (offsets_seen_ == 0 ? tensors.back().begin : tensors.back().end) = value;
      ++offsets_seen_;
      return true;
    }
    return refuse(fmt::format("the number {} has no place here", value));
  }

  bool string(string_t& value) override {
    if (place_ == Place::metadata) {
      metadata[key_] = value;
      return true;
    }
    if (place_ == Place::tensor && key_ == "dtype") {
      for (const TypeName& known : type_names) {
        if (known.name != value) continue;
        tensors.back().type = known.type;
        has_type_ = true;
        return true;
      }
      return refuse(fmt::format("unknown dtype \"{}\"", printable(value)));
    }
    return refuse(fmt::format("the text \"{}\" has no place here", printable(value)));
  }

  bool start_object(std::size_t) override {
    if (place_ == Place::outside) return enter(Place::top);
    if (place_ != Place::top) return refuse("an object has no place here");
    if (key_ == "__metadata__") return enter(Place::metadata);
    tensors.emplace_back().name = key_;
    has_type_ = has_shape_ = has_offsets_ = false;
    return enter(Place::tensor);
  }

  bool key(string_t& name) override {
    key_ = name;
    if (!keys_.back().insert(name).second)
      return refuse(fmt::format("key \"{}\" is repeated", printable(name)));
    if (place_ == Place::tensor && name != "dtype" && name != "shape" && name != "data_offsets")
      return refuse(fmt::format("unknown key \"{}\"", printable(name)));
    return true;
  }

  bool end_object() override {
    if (place_ == Place::tensor && !(has_type_ && has_shape_ && has_offsets_))
      return refuse("dtype, shape or data_offsets is missing");
    keys_.pop_back();
    place_ = place_ == Place::top ? Place::done : Place::top;
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ == Place::tensor && key_ == "shape") {
      place_ = Place::shape;
      return true;
    }
    if (place_ == Place::tensor && key_ == "data_offsets") {
      place_ = Place::offsets;
      offsets_seen_ = 0;
      return true;
    }
    return refuse("a list has no place here");
  }

  bool end_array() override {
    if (place_ == Place::offsets && offsets_seen_ != 2)
      return refuse("data_offsets needs two numbers");
    (place_ == Place::offsets ? has_offsets_ : has_shape_) = true;
    place_ = Place::tensor;
    return true;
  }

  bool parse_error(std::size_t position,
                   const std::string&,
                   const nlohmann::detail::exception&) override {
    if (problem.empty()) problem = fmt::format("not valid JSON at byte {} of the header", position);
    return false;
  }

 private:
  enum class Place { outside, top, metadata, tensor, shape, offsets, done };

  bool enter(Place place) {
    place_ = place;
    keys_.emplace_back();
    return true;
  }
  bool refuse(std::string_view why) {
    const bool in_tensor = !tensors.empty() && place_ != Place::top && place_ != Place::metadata;
    problem = in_tensor ? fmt::format("tensor \"{}\": {}", printable(tensors.back().name), why)
                        : std::string(why);
    return false;
  }

  Place place_ = Place::outside;
  std::string key_;
  std::vector<std::set<std::string>> keys_;
  bool has_type_ = false, has_shape_ = false, has_offsets_ = false;
  int offsets_seen_ = 0;
};

/// Bytes of a tensor's shape and type, or nothing where they are beyond 64 bits.
std::optional<std::uint64_t> bytes_of(const TensorEntry& tensor) {
  std::uint64_t total = size_of(tensor.type);
  if (std::find(tensor.shape.begin(), tensor.shape.end(), 0U) != tensor.shape.end()) return 0;
  for (const std::uint64_t extent : tensor.shape)
    if (__builtin_mul_overflow(total, extent, &total)) return std::nullopt;
  return total;
}

Status check_layout(const SafetensorsHeader& header,
                    std::uint64_t data_bytes,
                    std::string_view file) {
  const auto refuse = [&](const TensorEntry& tensor, const std::string& why) {
    return Error{ErrorCode::corrupt,
                 fmt::format("{}: tensor \"{}\": {}", file, printable(tensor.name), why)};
  };
  std::uint64_t expected = 0;
  const TensorEntry* before = nullptr;
  for (const TensorEntry& tensor : header.tensors) {
    if (tensor.end < tensor.begin)
      return refuse(tensor, fmt::format("its data ends at {} before it begins at {}", tensor.end,
                                        tensor.begin));
    const auto bytes = bytes_of(tensor);
    if (!bytes || *bytes != tensor.end - tensor.begin)
      return refuse(tensor, fmt::format("{} {} needs {} bytes, its offsets {} to {} give {}",
                                        to_string(tensor.type), shape_text(tensor.shape),
                                        bytes ? std::to_string(*bytes) : "more than 2^64",
                                        tensor.begin, tensor.end, tensor.end - tensor.begin));
    if (tensor.begin < expected)
      return refuse(tensor, fmt::format("offset {} overlaps \"{}\", which ends at {}", tensor.begin,
                                        printable(before->name), expected));
    if (tensor.begin > expected)
      return refuse(tensor, fmt::format("a hole of {} bytes before its offset {}",
                                        tensor.begin - expected, tensor.begin));
    if (tensor.end > data_bytes)
      return refuse(
          tensor, fmt::format("it ends at offset {}, but the file has {} bytes of data (cut off?)",
                              tensor.end, data_bytes));
    expected = tensor.end;
    before = &tensor;
  }
  if (expected != data_bytes)
    return Error{ErrorCode::corrupt,
                 fmt::format("{}: {} bytes follow the last tensor, which ends at offset {}", file,
                             data_bytes - expected, expected)};
  return {};
}

}  // namespace

std::string_view to_string(FileType type) {
  return type_names[static_cast<std::size_t>(type)].name;
}

std::uint64_t size_of(FileType type) {
  return type_names[static_cast<std::size_t>(type)].bytes;
}

std::string shape_text(std::span<const std::uint64_t> shape) {
  return fmt::format("({})", fmt::join(shape, ", "));
}

const TensorEntry* SafetensorsHeader::find(std::string_view name) const {
  const auto found = std::find_if(tensors.begin(), tensors.end(),
                                  [&](const TensorEntry& tensor) { return tensor.name == name; });
  return found == tensors.end() ? nullptr : &*found;
}

Result<std::uint64_t> header_length(std::span<const std::byte> first_bytes,
                                    std::uint64_t file_bytes,
                                    std::string_view file) {
  const auto refuse = [&](std::string_view why) {
    return Error{ErrorCode::corrupt, fmt::format("{}: {}", file, why)};
  };
  if (file_bytes < 8 || first_bytes.size() < 8)
    return refuse(fmt::format("{} bytes are too few for a safetensors file", file_bytes));
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < 8; ++i)
    length |= static_cast<std::uint64_t>(first_bytes[i]) << (8 * i);
  if (length > header_limit)
    return refuse(fmt::format("its header claims {} bytes, the limit is {}", length, header_limit));
  if (length > file_bytes - 8)
    return refuse(fmt::format("its header claims {} bytes, the file has {} after the length",
                              length, file_bytes - 8));
  return length;
}

Result<SafetensorsHeader> parse_header(std::string_view header,
                                       std::uint64_t file_bytes,
                                       std::string_view file) {
  if (header.empty() || header.front() != '{')
    return Error{ErrorCode::corrupt, fmt::format("{}: its header does not start with '{{'", file)};
  HeaderReader reader;
  bool parsed = false;
  try {
    parsed = nlohmann::json::sax_parse(header.begin(), header.end(), &reader);
  } catch (const std::exception& problem) {
    reader.problem = problem.what();
  }
  if (!parsed || !reader.problem.empty())
    return Error{ErrorCode::corrupt, fmt::format("{}: {}", file, reader.problem)};
  SafetensorsHeader made;
  made.data_start = 8 + header.size();
  EXPECTS(file_bytes >= made.data_start);
  made.tensors = std::move(reader.tensors);
  made.metadata = std::move(reader.metadata);
  std::stable_sort(made.tensors.begin(), made.tensors.end(),
                   [](const TensorEntry& a, const TensorEntry& b) {
                     return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
                   });
  TROUPE_TRY(check_layout(made, file_bytes - made.data_start, file));
  return made;
}

}  // namespace troupe
