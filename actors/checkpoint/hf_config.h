/// config.json as Hugging Face writes it for GPT-2 and Llama, both ways.
#pragma once

#include <string>
#include <string_view>

#include "planner/model.h"
#include "planner/result.h"

namespace troupe {

/// The text of config.json for a model.
std::string hf_config_text(const ModelSpec& model);

class HfKeys;

/// The sizes in the keys of a "gpt2" file, whatever its arithmetic.
ModelSpec gpt2_sizes(HfKeys& keys);

/// Reads one. Absent keys have Hugging Face's defaults; settings that Troupe has no arithmetic for
/// (other activations, scaled rotary positions, biases in Llama, ...) are refused by their key.
/// `dropout` becomes resid_pdrop (gpt2) or 0.
Result<ModelSpec> model_from_hf_config(std::string_view text, std::string_view file);

}  // namespace troupe
