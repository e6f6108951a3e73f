/// config.json as Hugging Face writes it for the common decoder-only families, read as the shape of
/// a model that can be planned. hf_config.h reads the two families that can be trained.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "planner/architecture.h"
#include "planner/result.h"

namespace troupe {

/// Values of "model_type" that are read.
std::vector<std::string> hf_model_types();

/// Reads one. Keys that are absent have Hugging Face's defaults, but sizes have to be there. What
/// an Architecture has no field for and what changes neither parameters nor matrix products is
/// passed over (activations, epsilons, dropout, windows of attention, scaled positions, prediction
/// of several tokens); what would change them is refused by its key (projections of embeddings,
/// norms without parameters, experts in blocks that follow no rule).
Result<Architecture> architecture_from_hf_config(std::string_view text, std::string_view file);

}  // namespace troupe
