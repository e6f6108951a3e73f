/// Our errors as CAF errors and back, so that a failed request names place and reason.
#pragma once

#include "actors/caf_facade.h"
#include "planner/result.h"

namespace troupe {

caf::error to_caf(const Error& error);
/// Also of CAF's own errors: a request's time-out becomes `timeout`, a lost peer `peer_lost`.
Error from_caf(const caf::error& error, const caf::actor_system& system);

}  // namespace troupe
