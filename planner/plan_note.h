/// What a plan says of itself, for people, each thing with its kind, for programs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace troupe {

enum class NoteKind : std::uint8_t {
  looked_at,    ///< the model cannot be trained yet, and why
  chosen,       ///< in place of what was left open
  next_choice,  ///< what came second to it
  binding,      ///< what holds the step back
  stages,       ///< where they come from, if nobody searched for them
  search,       ///< how the search for stages ended
  runner_up,    ///< the stages that came second
  unused        ///< a device that gets nothing
};
/// "looked at only", "chosen", "next choice", ...
std::string_view to_string(NoteKind kind);
std::optional<NoteKind> parse_note_kind(std::string_view text);

struct PlanNote {
  NoteKind kind = NoteKind::binding;
  std::string text;
  friend bool operator==(const PlanNote&, const PlanNote&) = default;
};
/// "binding: gpu0 computes for 3 ms of the step's 4 ms".
std::string to_text(const PlanNote& note);

}  // namespace troupe
