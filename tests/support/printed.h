/// Whether a figure agrees with a published one to the digits that were printed.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>

namespace troupe::testing {

/// How the source got from its figure to the printed one.
enum class Printed { rounded, rounded_or_cut };

/// `least_decimals`: what the source printed at least, where the file dropped zeros at the end.
inline bool agrees_as_printed(double value,
                              const std::string& printed,
                              unsigned least_decimals = 0,
                              Printed how = Printed::rounded) {
  const auto point = printed.find('.');
  const auto decimals =
      static_cast<unsigned>(point == std::string::npos ? 0 : printed.size() - point - 1);
  const double unit = std::pow(10.0, -static_cast<double>(std::max(decimals, least_decimals)));
  const double over = (value - std::stod(printed)) / unit;
  constexpr double slack = 1e-6;  // a half may have gone either way
  return over >= -0.5 - slack && over <= (how == Printed::rounded ? 0.5 : 1.0) + slack;
}

}  // namespace troupe::testing
