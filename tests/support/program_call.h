/// The program called within the test, with what it said.
#pragma once

#include <sstream>
#include <string>
#include <vector>

#include "apps/program.h"

namespace troupe {

struct Outcome {
  int code = 0;
  std::string out, err;
};

inline Outcome call(const std::vector<std::string>& arguments) {
  std::ostringstream out;
  std::ostringstream err;
  const int code = run_program(arguments, {out, err, false});
  return {code, out.str(), err.str()};
}

}  // namespace troupe
