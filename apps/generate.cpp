#include "kernels/generate.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <charconv>
#include <filesystem>
#include <future>
#include <ostream>

#include "actors/checkpoint/stage_state.h"
#include "actors/data/batches.h"
#include "apps/checkpoint_argument.h"
#include "apps/program.h"
#include "apps/run_config.h"

namespace troupe {
namespace {

namespace fs = std::filesystem;

constexpr Bytes device_memory = Bytes{1} << 46;  // whatever the machine gives

struct GenerateArguments {
  std::string checkpoint;
  std::string prompt;
  std::string prompt_ids;
  std::string tokenizer_folder;
  std::string print = "text";
  std::uint32_t threads = 1;
  GenerateSpec spec;
};

Result<std::vector<std::int32_t>> parse_ids(const std::string& text) {
  std::vector<std::int32_t> ids;
  const char* at = text.data();
  const char* end = at + text.size();
  while (true) {
    std::int32_t id = 0;
    const auto parsed = std::from_chars(at, end, id);
    if (parsed.ec != std::errc{} || (parsed.ptr != end && *parsed.ptr != ','))
      return Error{
          ErrorCode::invalid_input,
          fmt::format("--prompt-ids {}: not a list of token ids; write it like 1,2,3", text)};
    ids.push_back(id);
    if (parsed.ptr == end) return ids;
    at = parsed.ptr + 1;
  }
}

/// The tokenizer that was asked for, that of the run that the checkpoint lies in, or bytes.
Result<std::unique_ptr<Tokenizer>> tokenizer_for(const GenerateArguments& arguments,
                                                 const ModelSpec& model) {
  DataSpec data;
  const auto config = config_of_run(arguments.checkpoint);
  if (!arguments.tokenizer_folder.empty()) {
    data.tokenizer = TokenizerKind::gpt2;
    data.tokenizer_folder = arguments.tokenizer_folder;
  } else if (config) {
    auto loaded = load_config(*config, {.overrides = {}, .look_at_files = false});
    if (!loaded) return loaded.error();
    data = loaded->spec.data;
  } else if (model.vocabulary != 256) {
    return Error{
        ErrorCode::invalid_input,
        fmt::format("nothing says which tokenizer this model of {} tokens has; give "
                    "--tokenizer FOLDER (with encoder.json and vocab.bpe), or --prompt-ids "
                    "with --print ids",
                    model.vocabulary)};
  }
  auto tokenizer = make_tokenizer(data);
  if (tokenizer)
    if (const Status fits = check_tokenizer_fits(**tokenizer, model.vocabulary); !fits)
      return fits.error();
  return tokenizer;
}

/// Runs `body` on the device's thread and waits.
template <class F>
void run_on(Device& device, F&& body) {
  Work work;
  work.body = [&body](Stream& stream) { body(stream); };
  work.done = [](WorkTimes) {};
  device.submit(std::move(work));
  device.drain();
}

Result<std::vector<std::int32_t>> generate_ids(const GenerateArguments& arguments,
                                               const Checkpoint& checkpoint,
                                               const std::vector<std::int32_t>& prompt,
                                               const std::function<void(std::int32_t)>& on_token) {
  DeviceSpec cpu;
  cpu.name = "cpu";
  cpu.memory = device_memory;
  cpu.threads = arguments.threads;
  auto device = open_device(cpu, {});
  if (!device) return device.error();
  StageSpec spec;
  spec.model = checkpoint.run().model;
  spec.model.dropout = 0;
  spec.shape.sequence_length = spec.model.context;
  spec.layers = {0, layer_count(spec.model)};
  spec.weights_only = true;
  auto stage = Stage::create(**device, spec);
  if (!stage) return stage.error();
  TROUPE_TRY(read_state(checkpoint, **stage));
  const auto decoder = Decoder::create(**device, **stage);
  if (!decoder) return decoder.error();
  std::optional<Result<std::vector<std::int32_t>>> ids;
  run_on(**device, [&](Stream& stream) {
    (*stage)->weights_changed(stream);
    ids = generate(**decoder, stream, prompt, arguments.spec, on_token);
  });
  return std::move(*ids);
}

ExitCode generate_text(const GenerateArguments& arguments, const Console& console) {
  const auto checkpoint = open_checkpoint_argument(arguments.checkpoint);
  if (!checkpoint) return report_error(checkpoint.error(), console);
  const ModelSpec& model = checkpoint->run().model;
  std::unique_ptr<Tokenizer> tokenizer;
  if (!arguments.prompt.empty() || arguments.print == "text") {
    auto made = tokenizer_for(arguments, model);
    if (!made) return report_error(made.error(), console);
    tokenizer = std::move(*made);
  }
  std::vector<std::int32_t> prompt;
  if (!arguments.prompt_ids.empty()) {
    const auto ids = parse_ids(arguments.prompt_ids);
    if (!ids) return report_error(ids.error(), console);
    prompt = *ids;
  } else {
    prompt = tokenizer->encode(std::string_view(arguments.prompt));
  }
  const bool text = arguments.print == "text";
  if (text) {
    const auto start = tokenizer->decode(prompt);
    if (!start) return report_error(start.error(), console);
    console.out << *start << std::flush;
  }
  const auto on_token = [&](std::int32_t id) {
    if (!text) return;
    if (const auto piece = tokenizer->decode(std::span(&id, 1)))
      console.out << *piece << std::flush;
  };
  const auto ids = generate_ids(arguments, *checkpoint, prompt, on_token);
  if (text) console.out << '\n';
  if (!ids) return report_error(ids.error(), console);
  if (!text) {
    for (std::size_t i = 0; i < ids->size(); ++i) console.out << (i == 0 ? "" : ",") << (*ids)[i];
    console.out << '\n';
  }
  return ExitCode::success;
}

}  // namespace

void add_generate(CLI::App& app, ChosenCommand& chosen) {
  CLI::App* command = app.add_subcommand("generate", "Write text with a trained model");
  const auto arguments = std::make_shared<GenerateArguments>();
  arguments->spec.max_new_tokens = 100;
  command->add_option("CHECKPOINT", arguments->checkpoint, "Folder of a checkpoint")->required();
  auto* prompt = command->add_option("--prompt", arguments->prompt, "Text to go on from");
  auto* ids = command->add_option("--prompt-ids", arguments->prompt_ids, "Token ids to go on from");
  prompt->excludes(ids);
  command->add_option("--max-new-tokens", arguments->spec.max_new_tokens, "Tokens to write (100)")
      ->check(CLI::Range(std::uint32_t{1}, std::uint32_t{1} << 24));
  command
      ->add_option("--temperature", arguments->spec.temperature, "0: the likeliest token (default)")
      ->check(CLI::Range(0.0, 100.0))
      ->check([](const std::string& text) {  // which no range excludes
        return text.find_first_of("nN") == std::string::npos ? "" : "is no number";
      });
  command->add_option("--seed", arguments->spec.seed, "Of the draws at a temperature above 0 (0)")
      ->check([](const std::string& text) {  // the parser would take -1, and wrap around
        std::uint64_t seed = 0;
        const char* end = text.data() + text.size();
        const auto parsed = std::from_chars(text.data(), end, seed);
        return parsed.ec == std::errc{} && parsed.ptr == end
                   ? ""
                   : "is no whole number from 0 to 2^64 - 1";
      });
  command->add_option("--threads", arguments->threads, "Compute threads (1)")
      ->check(CLI::Range(1U, 16U));
  command->add_option("--tokenizer", arguments->tokenizer_folder,
                      "Folder with encoder.json, vocab.bpe; needed where the checkpoint lies in no "
                      "run folder and the model is not of bytes");
  command->add_option("--print", arguments->print, "text (with the prompt), or ids of new tokens")
      ->check(CLI::IsMember({"text", "ids"}));
  command->footer(
      "Examples:\n"
      "  troupe generate runs/demo/checkpoints/step-00000900 --prompt \"Call me \" --temperature "
      "0.8\n"
      "  troupe generate runs/stories --prompt-ids 1 --max-new-tokens 50 --temperature 0 --print "
      "ids");
  command->callback([=, &chosen] {
    if (prompt->count() + ids->count() == 0)
      throw CLI::RequiredError("generate needs --prompt TEXT or --prompt-ids 1,2,3; it");
    chosen.body = [=](const Console& console) { return generate_text(*arguments, console); };
  });
}

}  // namespace troupe
