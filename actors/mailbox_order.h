/// What a mailbox orders, told to the thread sanitizer: CAF comes compiled without it, so it sees
/// no order between what a thread wrote before it sent a message and what follows from handling
/// it. One device's tensors reach another device's thread in that way alone, and are given up for
/// the next ones in that way. In all other builds these are nothing.
#pragma once

#include "actors/caf_facade.h"

#if defined(__SANITIZE_THREAD__)
#define TROUPE_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TROUPE_THREAD_SANITIZER 1
#endif
#endif
#if defined(TROUPE_THREAD_SANITIZER)
#include <sanitizer/tsan_interface.h>
#endif

namespace troupe {

/// Before a device's thread, a link's or another actor's sends to `receiver`.
inline void before_sending([[maybe_unused]] const caf::actor& receiver) {
#if defined(TROUPE_THREAD_SANITIZER)
  __tsan_release(caf::actor_cast<caf::abstract_actor*>(receiver));
#endif
}

/// Before an actor passes on to another thread what such messages brought it, in this handler or in
/// an earlier one, which another worker of CAF may have run.
inline void before_passing_on([[maybe_unused]] caf::abstract_actor* self) {
#if defined(TROUPE_THREAD_SANITIZER)
  __tsan_acquire(self);
#endif
}

}  // namespace troupe
