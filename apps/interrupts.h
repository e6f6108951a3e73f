/// Ctrl-C, and SIGTERM, which a batch system sends: the first one asks, the second ends the process
/// at once.
#pragma once

namespace troupe {

/// Listens while it lives; afterwards both signals end the process again. One at a time.
class Interrupts {
 public:
  Interrupts();
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;
  /// Has one come, in this process's life?
  static bool asked();
};

}  // namespace troupe
