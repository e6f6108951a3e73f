/// The CHECKPOINT that a command is given.
#pragma once

#include <string>

#include "actors/checkpoint/checkpoint.h"

namespace troupe {

/// Opens and verifies it. invalid_input (exit code 2): there is no such folder, or it is the folder
/// of a run or of several checkpoints; the text names the newest complete one there. corrupt (exit
/// code 1): it is a checkpoint, with something wrong inside.
Result<Checkpoint> open_checkpoint_argument(const std::string& folder);

}  // namespace troupe
