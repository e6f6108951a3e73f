#include "actors/checkpoint/checkpoint.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <ostream>

#include "actors/checkpoint/convert.h"
#include "apps/checkpoint_argument.h"
#include "apps/program.h"
#include "apps/table.h"

namespace troupe {
namespace {

namespace fs = std::filesystem;

/// A run folder stands for its checkpoints.
fs::path checkpoints_of(const fs::path& folder) {
  std::error_code failure;
  return fs::is_directory(folder / "checkpoints", failure) ? folder / "checkpoints" : folder;
}

/// Of a folder of runs: their names.
std::string runs_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code failure;
  for (const auto& entry : fs::directory_iterator(folder, failure))
    if (fs::is_directory(entry.path() / "checkpoints", failure))
      names.push_back(entry.path().string());
  std::sort(names.begin(), names.end());
  return names.empty() ? "" : fmt::format("; it holds runs: {}", fmt::join(names, ", "));
}

ExitCode list(const std::string& folder, bool verify, bool json, const Console& console) {
  std::error_code failure;
  if (!fs::is_directory(folder, failure))
    return report_error(
        {ErrorCode::invalid_input, fmt::format("there is no folder \"{}\"", folder)}, console);
  const auto found = list_checkpoints(checkpoints_of(folder), verify);
  if (!found) return report_error(found.error(), console);
  Table table(
      {{"step", "step", true}, {"checkpoint", "folder", false}, {"state", "problem", false}});
  for (const ListedCheckpoint& entry : *found)
    table.add({{fmt::format("{}", entry.step), entry.step},
               {entry.folder.string(), entry.folder.string()},
               entry.problem ? TableCell{entry.problem->text, entry.problem->text}
                             : TableCell{"complete", nullptr}});
  if (json)
    console.out << table.to_json().dump() << '\n';
  else if (table.rows().empty())
    console.out << "no checkpoints in " << folder << runs_in(folder) << '\n';
  else
    console.out << table.to_text();
  const bool damaged = std::any_of(found->begin(), found->end(), [](const ListedCheckpoint& entry) {
    return entry.problem.has_value();
  });
  return verify && damaged ? ExitCode::failure : ExitCode::success;
}

ExitCode verify_one(const std::string& folder, const Console& console) {
  const auto opened = open_checkpoint_argument(folder);
  if (!opened) return report_error(opened.error(), console);
  Bytes bytes = 0;
  for (const ShardRecord& shard : opened->manifest().files) bytes += shard.file.bytes;
  console.out << fmt::format("{}: complete, step {}, {} parameters, {} files, {}\n", folder,
                             opened->run().step, parameter_count(opened->run().model),
                             opened->manifest().files.size(), format_bytes(bytes));
  return ExitCode::success;
}

ExitCode import(const std::string& source,
                const std::string& out,
                const ImportOptions& options,
                const Console& console) {
  const auto imported = import_model(source, out, options);
  if (!imported) return report_error(imported.error(), console);
  for (const std::string& note : imported->notes) console.err << "note: " << note << '\n';
  console.out << fmt::format("{}: {} parameters from {}\n", imported->folder.string(),
                             parameter_count(imported->model), source);
  return ExitCode::success;
}

ExitCode export_one(const std::string& folder, const std::string& out, const Console& console) {
  const auto opened = open_checkpoint_argument(folder);
  if (!opened) return report_error(opened.error(), console);
  if (const Status done = export_hf(*opened, out); !done)
    return report_error(done.error(), console);
  console.out << out << ": config.json and model.safetensors of step " << opened->run().step
              << '\n';
  return ExitCode::success;
}

void add_ls(CLI::App& command, ChosenCommand& chosen) {
  CLI::App* sub = command.add_subcommand("ls", "List the checkpoints of a run");
  const auto folder = std::make_shared<std::string>();
  const auto verify = std::make_shared<bool>(false);
  const auto json = std::make_shared<bool>(false);
  sub->add_option("FOLDER", *folder, "A run folder, or a folder of checkpoints")->required();
  sub->add_flag("--verify", *verify, "Read all bytes and compare checksums; else sizes and names");
  sub->add_flag("--json", *json, "As JSON");
  sub->footer(
      "Examples:\n  troupe checkpoint ls runs/demo\n  troupe checkpoint ls runs/demo --json");
  sub->callback([=, &chosen] {
    chosen.body = [=](const Console& console) { return list(*folder, *verify, *json, console); };
  });
}

void add_verify(CLI::App& command, ChosenCommand& chosen) {
  CLI::App* sub = command.add_subcommand("verify", "Read a checkpoint and compare its checksums");
  const auto folder = std::make_shared<std::string>();
  sub->add_option("CHECKPOINT", *folder, "Folder of the checkpoint")->required();
  sub->footer("Examples:\n  troupe checkpoint verify runs/demo/checkpoints/step-00000900");
  sub->callback([=, &chosen] {
    chosen.body = [=](const Console& console) { return verify_one(*folder, console); };
  });
}

void add_import(CLI::App& command, ChosenCommand& chosen) {
  CLI::App* sub = command.add_subcommand("import", "Make a checkpoint of someone else's model");
  const auto source = std::make_shared<std::string>();
  const auto out = std::make_shared<std::string>();
  const auto options = std::make_shared<ImportOptions>();
  sub->add_option("SOURCE", *source, "A Hugging Face folder, or a llama2.c file")->required();
  sub->add_option("OUT", *out, "Folder of the new checkpoint; must not exist")->required();
  sub->add_flag("--allow-extra", options->allow_extra, "Leave out tensors that the model lacks");
  sub->add_flag("--head-from-embedding", options->head_from_embedding,
                "Give an untied model without a head a copy of its token table");
  sub->footer(
      "Examples:\n"
      "  troupe checkpoint import models/gpt2 runs/gpt2\n"
      "  troupe checkpoint import tests/data/stories260K/stories260K.bin runs/stories");
  sub->callback([=, &chosen] {
    chosen.body = [=](const Console& console) { return import(*source, *out, *options, console); };
  });
}

void add_export(CLI::App& command, ChosenCommand& chosen) {
  CLI::App* sub = command.add_subcommand("export", "Write a folder that Hugging Face's tools load");
  const auto folder = std::make_shared<std::string>();
  const auto out = std::make_shared<std::string>();
  sub->add_option("CHECKPOINT", *folder, "Folder of the checkpoint")->required();
  sub->add_option("OUT", *out, "The new folder; must not exist")->required();
  sub->footer("Examples:\n  troupe checkpoint export runs/demo/checkpoints/step-00000900 demo-hf");
  sub->callback([=, &chosen] {
    chosen.body = [=](const Console& console) { return export_one(*folder, *out, console); };
  });
}

}  // namespace

void add_checkpoint(CLI::App& app, ChosenCommand& chosen) {
  CLI::App* command =
      app.add_subcommand("checkpoint", "List, verify, import and export checkpoints");
  command->require_subcommand(1);
  command->footer(
      "Examples:\n"
      "  troupe checkpoint ls runs/demo\n"
      "  troupe checkpoint verify runs/demo/checkpoints/step-00000900\n"
      "\nExit codes: 1 the checkpoint is damaged, 2 there is none at the place that was named.");
  add_ls(*command, chosen);
  add_verify(*command, chosen);
  add_import(*command, chosen);
  add_export(*command, chosen);
}

}  // namespace troupe
