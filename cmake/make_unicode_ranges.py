#!/usr/bin/env python3
"""Prints actors/data/unicode_ranges.cpp: the code points of the categories L* and N*, from the
Unicode data of the Python that runs it.

    python3 cmake/make_unicode_ranges.py > actors/data/unicode_ranges.cpp
"""
import sys
import unicodedata


def ranges(major):
    found = []
    for code in range(sys.maxunicode + 1):
        if unicodedata.category(chr(code))[0] != major:
            continue
        if found and found[-1][1] == code - 1:
            found[-1][1] = code
        else:
            found.append([code, code])
    return found


def table(name, major):
    cells = ["{0x%x, 0x%x}" % (first, last) for first, last in ranges(major)]
    lines = []
    for cell in cells:
        if lines and len(lines[-1]) + len(cell) + 3 <= 98:
            lines[-1] += " " + cell + ","
        else:
            lines.append("    " + cell + ",")
    return "constexpr CodeRange %s[] = {\n%s\n};" % (name, "\n".join(lines))


print(f"""// Made by cmake/make_unicode_ranges.py from Unicode {unicodedata.unidata_version}; do not edit.
#include "actors/data/unicode_ranges.h"

#include <algorithm>
#include <iterator>

namespace troupe {{
namespace {{

struct CodeRange {{
  char32_t first, last;
}};

// clang-format off
{table("letters", "L")}

{table("numbers", "N")}
// clang-format on

template <std::size_t N>
bool holds(const CodeRange (&ranges)[N], char32_t code) {{
  const auto* const after = std::upper_bound(
      std::begin(ranges), std::end(ranges), code, [](char32_t c, const CodeRange& range) {{
        return c < range.first;
      }});
  return after != std::begin(ranges) && code <= std::prev(after)->last;
}}

}}  // namespace

bool is_letter(char32_t code) {{
  return holds(letters, code);
}}

bool is_number(char32_t code) {{
  return holds(numbers, code);
}}

bool is_space(char32_t code) {{
  return (code >= 0x9 && code <= 0xd) || code == 0x20 || code == 0x85 || code == 0xa0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 || code == 0x2029 ||
         code == 0x202f || code == 0x205f || code == 0x3000;
}}

}}  // namespace troupe""")
