#include "actors/data/text_source.h"

#include <fmt/format.h>

#include "actors/data/pretokenizer.h"
#include "actors/data/strict_json.h"

namespace troupe {
namespace {

constexpr std::size_t text_piece_bytes = std::size_t{1} << 20;

/// "text", "title" and 3 more
std::string names_of(const nlohmann::json& object) {
  constexpr std::size_t shown = 5;
  std::string names;
  std::size_t count = 0;
  for (const auto& [name, value] : object.items()) {
    if (count < shown) names += fmt::format("{}\"{}\"", count > 0 ? ", " : "", printable(name));
    ++count;
  }
  if (count > shown) names += fmt::format(" and {} more", count - shown);
  return count == 0 ? "none" : names;
}

}  // namespace

Status read_text(std::string_view content, const TextSink& sink) {
  while (content.size() > text_piece_bytes) {
    std::size_t size = safe_cut(content, text_piece_bytes);
    for (std::size_t limit = 2 * text_piece_bytes; size == 0 && limit < content.size(); limit *= 2)
      size = safe_cut(content, limit);
    if (size == 0) break;
    TROUPE_TRY(sink(content.substr(0, size), false));
    content.remove_prefix(size);
  }
  return sink(content, true);
}

Status read_jsonl(std::string_view content,
                  std::string_view file,
                  std::string_view field,
                  const TextSink& sink) {
  std::size_t line_number = 0;
  while (!content.empty()) {
    ++line_number;
    const auto end = content.find('\n');
    const auto line = content.substr(0, end);
    content = end == std::string_view::npos ? std::string_view{} : content.substr(end + 1);
    const std::string place = fmt::format("{}:{}", file, line_number);
    if (line.find_first_not_of(" \t\r") == std::string_view::npos)
      return Error{ErrorCode::invalid_input, fmt::format("{}: an empty line", place)};
    const auto parsed = parse_json(line, place);
    TROUPE_TRY(parsed);
    if (!parsed->is_object())
      return Error{ErrorCode::invalid_input,
                   fmt::format("{}: must be an object, is {}", place, parsed->type_name())};
    const auto found = parsed->find(field);
    if (found == parsed->end())
      return Error{ErrorCode::invalid_input,
                   fmt::format("{}: no field \"{}\"; there are: {}", place, printable(field),
                               names_of(*parsed))};
    if (!found->is_string())
      return Error{ErrorCode::invalid_input,
                   fmt::format("{}: field \"{}\" must be a string, is {}", place, printable(field),
                               found->type_name())};
    TROUPE_TRY(sink(found->get_ref<const std::string&>(), true));
  }
  return {};
}

Status read_documents(std::string_view content,
                      std::string_view file,
                      TextFormat format,
                      std::string_view jsonl_field,
                      const TextSink& sink) {
  return format == TextFormat::text ? read_text(content, sink)
                                    : read_jsonl(content, file, jsonl_field, sink);
}

}  // namespace troupe
