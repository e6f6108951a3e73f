/// Documents of a text or JSONL file, one after another, without a second copy of the file.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "actors/run_spec.h"
#include "planner/result.h"

namespace troupe {

/// Called with a piece of a document. `ends_document`: the piece is the document's last.
using TextSink = std::function<Status(std::string_view piece, bool ends_document)>;

/// Plain text: one document, in pieces that end where a tokenizer may be cut (`safe_cut`).
Status read_text(std::string_view content, const TextSink& sink);

/// JSON lines: the string under `field` of each line is a document. Errors read "file:line: ...":
/// no JSON, no object, the field missing (with the fields that are there) or no string, an empty
/// line before the last.
Status read_jsonl(std::string_view content,
                  std::string_view file,
                  std::string_view field,
                  const TextSink& sink);

/// One of the two above.
Status read_documents(std::string_view content,
                      std::string_view file,
                      TextFormat format,
                      std::string_view jsonl_field,
                      const TextSink& sink);

}  // namespace troupe
