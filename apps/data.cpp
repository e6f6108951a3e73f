#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <ostream>

#include "actors/data/batches.h"
#include "apps/config_arguments.h"

namespace troupe {
namespace {

/// Rows of T ids.
nlohmann::json rows(const std::vector<std::int32_t>& ids, std::uint32_t length) {
  nlohmann::json out = nlohmann::json::array();
  for (std::size_t at = 0; at + length <= ids.size(); at += length) {
    const auto first = ids.begin() + static_cast<std::ptrdiff_t>(at);
    out.push_back(std::vector<std::int32_t>(first, first + length));
  }
  return out;
}

nlohmann::json to_json(const TokenBatch& batch) {
  nlohmann::json microbatches = nlohmann::json::array();
  for (const MicrobatchData& data : batch.microbatches)
    microbatches.push_back({{"first_sample", data.first_sample},
                            {"sequences", data.sequences},
                            {"tokens", rows(data.tokens, batch.sequence_length)},
                            {"targets", rows(data.targets, batch.sequence_length)}});
  return {{"step", batch.step},
          {"sequence_length", batch.sequence_length},
          {"trained_tokens", batch.trained_tokens()},
          {"samples", batch.samples},
          {"microbatches", microbatches}};
}

/// Text on one line, what cannot be printed as '.'.
std::string printable(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = c == '\n' ? ' ' : '.';
  return text;
}

ExitCode show(const ConfigArguments& arguments,
              std::uint64_t step,
              bool json,
              const Console& console) {
  const auto loaded = load(arguments, console);
  if (!loaded) return report_error(loaded.error(), console);
  const RunSpec& spec = loaded->spec;
  auto dataset = Dataset::open(spec.data, spec.shape, spec.model.vocabulary, spec.seed);
  if (!dataset) return report_error(dataset.error(), console);
  const TokenBatch batch = dataset->batch_for_step(step);
  if (json) {
    console.out << to_json(batch).dump() << '\n';
    return ExitCode::success;
  }
  std::size_t sample = 0;
  for (std::size_t m = 0; m < batch.microbatches.size(); ++m) {
    const MicrobatchData& data = batch.microbatches[m];
    for (std::uint32_t s = 0; s < data.sequences; ++s, ++sample) {
      const std::span<const std::int32_t> ids(
          data.tokens.data() + std::size_t{s} * batch.sequence_length, batch.sequence_length);
      const auto text = dataset->tokenizer().decode(ids);
      if (!text) return report_error(text.error(), console);
      console.out << fmt::format("microbatch {} window {}: {}\n", m, batch.samples.at(sample),
                                 printable(*text));
    }
  }
  return ExitCode::success;
}

}  // namespace

void add_data(CLI::App& app, ChosenCommand& chosen) {
  CLI::App* command = app.add_subcommand("data", "Look at the tokens that a run is trained on");
  command->require_subcommand(1);
  command->footer("Examples:\n  troupe data show conf/demo.toml --step 3 --json");
  CLI::App* sub = command->add_subcommand("show", "Print the tokens of a step");
  const auto arguments = add_config_arguments(*sub);
  const auto step = std::make_shared<std::uint64_t>(1);
  const auto json = std::make_shared<bool>(false);
  sub->add_option("--step", *step, "The step, counted from 1")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 60));
  sub->add_flag("--json", *json, "Token ids and targets as JSON instead of text");
  sub->footer(
      "Examples:\n"
      "  troupe data show conf/demo.toml --step 3\n"
      "  troupe data show conf/demo.toml --step 3 --json\n"
      "\nThe tokens of a step depend on the files, the tokenizer, the seed and the step alone.");
  sub->callback([=, &chosen] {
    chosen.body = [=](const Console& console) { return show(*arguments, *step, *json, console); };
  });
}

}  // namespace troupe
