#include "actors/checkpoint/hf_architecture.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "actors/checkpoint/hf_families.h"
#include "planner/nearest.h"

namespace troupe {
namespace {

using nlohmann::json;

struct Reader {
  const char* model_type;
  Architecture (*read)(HfKeys& keys);
};

constexpr std::array readers{
    Reader{"bloom", hf::bloom},
    Reader{"dbrx", hf::dbrx},
    Reader{"deepseek", hf::deepseek},
    Reader{"deepseek_v2", hf::deepseek_v2},
    Reader{"deepseek_v3", hf::deepseek_v3},
    Reader{"falcon", hf::falcon},
    Reader{"gemma", hf::gemma},
    Reader{"gemma2", hf::gemma2},
    Reader{"gemma3_text", hf::gemma3},
    Reader{"glm4_moe", hf::glm4_moe},
    Reader{"gpt2", hf::gpt2},
    Reader{"gpt_neox", hf::gpt_neox},
    Reader{"gpt_oss", hf::gpt_oss},
    Reader{"gptj", hf::gpt_j},
    Reader{"granite", hf::granite},
    Reader{"granitemoe", hf::granite_moe},
    Reader{"llama", hf::llama},
    Reader{"mistral", hf::mistral},
    Reader{"mixtral", hf::mixtral},
    Reader{"nemotron", hf::nemotron},
    Reader{"olmo", hf::olmo},
    Reader{"olmo2", hf::olmo2},
    Reader{"olmoe", hf::olmoe},
    Reader{"opt", hf::opt},
    Reader{"phi", hf::phi},
    Reader{"phi3", hf::phi3},
    Reader{"phimoe", hf::phi_moe},
    Reader{"qwen2", hf::qwen2},
    Reader{"qwen2_moe", hf::qwen2_moe},
    Reader{"qwen3", hf::qwen3},
    Reader{"qwen3_moe", hf::qwen3_moe},
    Reader{"stablelm", hf::stablelm},
};

/// Names that Hugging Face's configurations have for what lies between the products of a block.
constexpr std::array<std::string_view, 25> activations{"gelu",
                                                       "gelu_10",
                                                       "gelu_accurate",
                                                       "gelu_fast",
                                                       "gelu_new",
                                                       "gelu_python",
                                                       "gelu_python_tanh",
                                                       "gelu_pytorch_tanh",
                                                       "geglu",
                                                       "laplace",
                                                       "leaky_relu",
                                                       "linear",
                                                       "mish",
                                                       "prelu",
                                                       "quick_gelu",
                                                       "relu",
                                                       "relu2",
                                                       "relu6",
                                                       "sigmoid",
                                                       "silu",
                                                       "swiglu",
                                                       "swish",
                                                       "tanh",
                                                       "xielu",
                                                       "relu_squared"};

/// What holds for a file of any type.
void check_common(HfKeys& keys) {
  for (const char* key : {"hidden_act", "hidden_activation", "activation_function", "activation"})
    keys.check_choice(key, activations);
  keys.refuse_negative_sizes();
}

const Reader* reader_of(const json* type) {
  const auto found = std::find_if(readers.begin(), readers.end(), [type](const Reader& reader) {
    return type != nullptr && *type == reader.model_type;
  });
  return found == readers.end() ? nullptr : &*found;
}

void refuse_type(HfKeys& keys, const json* type) {
  const std::vector<std::string> known = hf_model_types();
  std::string text = "is missing";
  if (type != nullptr && type->is_string()) {
    const std::string written = type->get<std::string>();
    text = fmt::format("is \"{}\", which is not known; {}", printable(written),
                       near_names_text(written, known));
  } else if (type != nullptr) {
    text = "must be text";
  }
  keys.refuse("model_type", fmt::format("{}; known: {}", text, fmt::join(known, ", ")));
}

}  // namespace

std::vector<std::string> hf_model_types() {
  std::vector<std::string> out;
  out.reserve(std::size(readers));
  for (const Reader& reader : readers) out.emplace_back(reader.model_type);
  return out;
}

Result<Architecture> architecture_from_hf_config(std::string_view text, std::string_view file) {
  const auto parsed = parse_json(text, file);
  TROUPE_TRY(parsed);
  if (!parsed->is_object())
    return Error{ErrorCode::invalid_input, fmt::format("{}: must be an object", file)};
  HfKeys keys(*parsed, file);
  const json* const type = keys.find("model_type");
  const Reader* const reader = reader_of(type);
  Architecture model;
  if (reader == nullptr)
    refuse_type(keys, type);
  else
    model = reader->read(keys);
  check_common(keys);
  if (keys.problem()) return *keys.problem();
  if (const Status legal = validate(model); !legal.ok())
    return Error{ErrorCode::invalid_input, fmt::format("{}: {}", file, legal.error().text)};
  return model;
}

}  // namespace troupe
