/// Unicode categories that the GPT-2 pre-tokenizer asks for.
#pragma once

namespace troupe {

bool is_letter(char32_t code);  ///< categories L*
bool is_number(char32_t code);  ///< categories N*
bool is_space(char32_t code);   ///< the property White_Space

}  // namespace troupe
