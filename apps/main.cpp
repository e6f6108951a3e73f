#include <unistd.h>

#include <algorithm>
#include <iostream>

#include "apps/program.h"

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  const troupe::Console console{std::cout, std::cerr, isatty(STDERR_FILENO) == 1};
  return troupe::run_program(arguments, console);
}
