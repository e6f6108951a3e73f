#include "planner/plan_note.h"

#include <array>
#include <utility>

namespace troupe {
namespace {

constexpr std::array<std::pair<NoteKind, std::string_view>, 8> names{
    {{NoteKind::looked_at, "looked at only"},
     {NoteKind::chosen, "chosen"},
     {NoteKind::next_choice, "next choice"},
     {NoteKind::binding, "binding"},
     {NoteKind::stages, "stages"},
     {NoteKind::search, "search"},
     {NoteKind::runner_up, "runner-up"},
     {NoteKind::unused, "unused"}}};

}  // namespace

std::string_view to_string(NoteKind kind) {
  return names.at(static_cast<std::size_t>(kind)).second;
}

std::optional<NoteKind> parse_note_kind(std::string_view text) {
  for (const auto& [kind, name] : names)
    if (name == text) return kind;
  return std::nullopt;
}

std::string to_text(const PlanNote& note) {
  return std::string(to_string(note.kind)) + ": " + note.text;
}

}  // namespace troupe
