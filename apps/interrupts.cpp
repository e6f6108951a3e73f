#include "apps/interrupts.h"

#include <unistd.h>

#include <csignal>
#include <initializer_list>

namespace troupe {
namespace {

volatile std::sig_atomic_t interrupts = 0;

extern "C" void note_interrupt(int) {
  interrupts = interrupts + 1;
  if (interrupts > 1) _exit(130);
}

}  // namespace

Interrupts::Interrupts() {
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, note_interrupt);
}

Interrupts::~Interrupts() {
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, SIG_DFL);
}

bool Interrupts::asked() {
  return interrupts > 0;
}

}  // namespace troupe
