/// Passes that complete a schedule of compute actions. They are pure and keep the order of the
/// compute actions.
#pragma once

#include "planner/schedule.h"

namespace troupe {

/// Adds the link lanes: outputs, input gradients and the halves of a tied table. A link sends in
/// the order in which a dry run at unit cost (F 1, B 2, I 1, W 1) finds its transfers possible.
/// Where a link carries one kind alone that is the sender's program order; where it carries both
/// directions of interleaved stages, a transfer that waits for room never stands before one that
/// its room depends on. What a deadlocked compute order never reaches is left out: `validate`
/// then names it.
Schedule add_transfers(Schedule compute);

}  // namespace troupe
