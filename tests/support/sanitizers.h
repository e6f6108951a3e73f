/// Which sanitizer a test runs under. Results do not depend on it; sizes and time limits may.
#pragma once

namespace troupe::test {

#if defined(__SANITIZE_THREAD__)
inline constexpr bool thread_sanitizer = true;
#else
inline constexpr bool thread_sanitizer = false;
#endif

#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool address_sanitizer = true;
#else
inline constexpr bool address_sanitizer = false;
#endif

}  // namespace troupe::test
