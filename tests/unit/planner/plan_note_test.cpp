#include "planner/plan_note.h"

#include "tests/support/catch.h"

using namespace troupe;

TEST_CASE("kinds of notes have names of their own, which read back") {
  const NoteKind kinds[] = {NoteKind::looked_at, NoteKind::chosen, NoteKind::next_choice,
                            NoteKind::binding,   NoteKind::stages, NoteKind::search,
                            NoteKind::runner_up, NoteKind::unused};
  for (const NoteKind kind : kinds) CHECK(parse_note_kind(to_string(kind)) == kind);
  CHECK_FALSE(parse_note_kind("Binding"));
  CHECK_FALSE(parse_note_kind(""));
  CHECK(to_text({NoteKind::next_choice, "gpipe: 3 ms"}) == "next choice: gpipe: 3 ms");
}
