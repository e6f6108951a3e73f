/// Pieces of self-contained HTML pages: nothing is loaded from elsewhere.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/table.h"

namespace troupe {

/// Width of every drawing, in its own units.
inline constexpr double chart_width = 1000;

/// Text for HTML and SVG: & < > " ' are escaped, control characters and broken UTF-8 shown as '?'.
std::string escape_html(std::string_view text);

/// A page with a heading; `title` is escaped, `body` is HTML.
std::string html_page(const std::string& title, const std::string& body);
/// A framed part of a page; `title` and `body` are HTML.
std::string section(const std::string& title, const std::string& body);
/// A figure with what it means; both are escaped.
std::string tile(const std::string& value, const std::string& label);
/// Every cell is escaped.
std::string html_table(const Table& table);
/// A coloured square with its meaning, for legends.
std::string swatch(const char* color, const char* name);

/// A round step for about five marks over `range`.
double round_step(double range);
/// The multiples of `step` in a range: where the marks of an axis stand. At most a thousand.
std::vector<double> marks_of(double from, double to, double step);

}  // namespace troupe
