/// Which of the models that can be planned can also be trained: a ModelSpec is narrower than an
/// Architecture.
#pragma once

#include "planner/architecture.h"
#include "planner/model.h"
#include "planner/result.h"

namespace troupe {

/// The sizes of the model in the family that is nearest to it, which may compute otherwise.
ModelSpec same_sizes(const Architecture& model);

/// What stands in where a model is planned but not trained: it has the layers, the width, the table
/// and the ends of the model and is valid itself; heads and inner widths may be others.
ModelSpec stand_in(const Architecture& model);

/// The model as kernels/ computes it. norm_epsilon, rope_theta and dropout, which an Architecture
/// does not have, keep ModelSpec's defaults. invalid_input names every feature that stops it, each
/// with the value that would be trained.
Result<ModelSpec> trainable(const Architecture& model);

}  // namespace troupe
