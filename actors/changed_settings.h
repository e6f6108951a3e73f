/// What a run does otherwise than the one whose checkpoint it goes on from.
#pragma once

#include <string>

#include "actors/run_spec.h"

namespace troupe {

/// The settings that decide a step's tokens and arithmetic and differ, as "training.compute = bf16,
/// was f32; ..." in the order of a configuration; empty: none. Left out: what a checkpoint cannot
/// go on with at all (model, seed, batch size), where the files lie (their content is compared when
/// they are open), and placement, which changes no number.
std::string changed_settings(const RunSpec& then, const RunSpec& now);

/// The same for [model]. Not empty where the two differ.
std::string changed_settings(const ModelSpec& then, const ModelSpec& now);

}  // namespace troupe
