#include "planner/result.h"

#include <cstdio>
#include <cstdlib>

namespace troupe {

const char* to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_input: return "invalid_input";
    case ErrorCode::does_not_fit: return "does_not_fit";
    case ErrorCode::out_of_memory: return "out_of_memory";
    case ErrorCode::io: return "io";
    case ErrorCode::corrupt: return "corrupt";
    case ErrorCode::not_found: return "not_found";
    case ErrorCode::peer_lost: return "peer_lost";
    case ErrorCode::timeout: return "timeout";
    case ErrorCode::stale_epoch: return "stale_epoch";
    case ErrorCode::protocol: return "protocol";
    case ErrorCode::not_finite: return "not_finite";
    case ErrorCode::cancelled: return "cancelled";
    case ErrorCode::internal: return "internal";
  }
  return "unknown";
}

namespace detail {

void expects_failed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "troupe: broken promise: %s (%s:%d)\n", condition, file, line);
  std::abort();
}

}  // namespace detail

}  // namespace troupe
