#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <limits>
#include <memory>
#include <ostream>

#include "apps/estimate_play.h"
#include "apps/estimate_table.h"
#include "apps/program.h"
#include "apps/small_file.h"

namespace troupe {
namespace {

Error wrong(std::string text) {
  return {ErrorCode::invalid_input, std::move(text)};
}

Error nothing_fits(const DeviceGroup& group, const LayoutSearch& search) {
  if (!search.smallest)
    return wrong(
        fmt::format("no layout of this model on {} devices of {} divides its heads, "
                    "layers and batch as asked; leave out a choice or change --batch",
                    group.devices, group.name));
  const double need = search.smallest->bytes.total();
  return {ErrorCode::does_not_fit,
          fmt::format("none of {} layouts fits: {} may hold {}, and the smallest layout ({}) needs "
                      "{}, {} more",
                      search.considered, group.name, format_bytes(static_cast<Bytes>(group.memory)),
                      layout_text(search.smallest->layout), format_bytes(static_cast<Bytes>(need)),
                      format_bytes(static_cast<Bytes>(need - group.memory)))};
}

nlohmann::ordered_json json_of(const Question& question,
                               const DeviceGroup& group,
                               const UsedDevices& used) {
  const LayoutSearch& search = used.search;
  nlohmann::ordered_json out;
  out["devices"] = {
      {"row", group.name}, {"count", used.devices}, {"idle", group.devices - used.devices}};
  if (used.devices < group.devices)
    out["step_with_all_devices_s"] = used.of_all
                                         ? nlohmann::ordered_json(used.of_all->seconds.total())
                                         : nlohmann::ordered_json();
  out["considered"] = search.considered;
  out["fitting"] = search.fitting;
  out["layouts"] = layout_table(search.best, question.run, group, question.flops).to_json();
  out["best"] = {{"seconds", seconds_table(search.best.front().seconds).to_json()},
                 {"memory", bytes_table(search.best.front().bytes, group.memory).to_json()}};
  return out;
}

LayoutSearch search(const Question& question, const DeviceGroup& group) {
  return search_layouts(question.run, group, question.batch, question.framework, question.choices,
                        question.keep);
}

/// The same where devices may stay idle.
UsedDevices search_best(const Question& question, const DeviceGroup& group) {
  return search_used(question.run, group, question.batch, question.framework, question.choices,
                     question.keep);
}

/// "8 of 72 devices stay idle: with all of them ..."; nothing where all are used.
std::string idle_text(const DeviceGroup& group, const UsedDevices& used) {
  if (used.devices == group.devices) return "";
  const Seconds step = used.search.best.front().seconds.total();
  return fmt::format(
      "{} of {} devices stay idle: {}\n", group.devices - used.devices, group.devices,
      used.of_all
          ? fmt::format("with all of them the fastest layout ({}) takes {} ({:+.1f} %)",
                        layout_text(used.of_all->layout),
                        format_seconds(used.of_all->seconds.total()),
                        100 * (used.of_all->seconds.total() / step - 1))
          : "no layout of all of them divides the batch, the heads and the layers and fits");
}

/// The term that takes most of a step.
std::string largest_term(const StepSeconds& seconds) {
  const Table table = seconds_table(seconds);
  const auto largest =
      std::max_element(table.rows().begin(), table.rows().end(), [](const auto& a, const auto& b) {
        return a[1].value.template get<double>() < b[1].value.template get<double>();
      });
  return fmt::format("{} ({})", (*largest)[0].text, (*largest)[2].text);
}

/// "5.18 s (-2.3 %)" against the best layout of the question, or why there is none.
std::string against(const PricedLayout& best, const DeviceGroup& group, const UsedDevices& used) {
  const LayoutSearch& other = used.search;
  if (other.best.empty()) return "no layout divides the batch, the heads and the layers";
  const Seconds step = other.best.front().seconds.total();
  return fmt::format("{} ({:+.1f} %), {}{}", format_seconds(step),
                     100 * (step / best.seconds.total() - 1),
                     layout_text(other.best.front().layout),
                     used.devices == group.devices
                         ? std::string()
                         : fmt::format(", {} devices idle", group.devices - used.devices));
}

/// What binds the step, and what more would buy: found by searching again.
std::string reasons(const Question& question, const DeviceGroup& group, const PricedLayout& best) {
  DeviceGroup other = group;
  other.memory = std::numeric_limits<double>::infinity();
  const PricedLayout unbound = search_best(question, other).search.best.front();
  std::string out =
      unbound.seconds.total() < best.seconds.total()
          ? fmt::format("binding: memory; {} would take {} but needs {} a device\n",
                        layout_text(unbound.layout), format_seconds(unbound.seconds.total()),
                        format_bytes(static_cast<Bytes>(unbound.bytes.total())))
          : fmt::format("binding: {}; no layout is faster with more memory\n",
                        largest_term(best.seconds));
  other = group;
  other.memory += 1 << 30;
  out +=
      fmt::format("1 GiB more a device: {}\n", against(best, other, search_best(question, other)));
  other = group;
  const auto per_node = static_cast<std::uint64_t>(group.cluster.net.devices_per_node);
  other.devices += per_node;
  out += fmt::format("one more node: {}\n", against(best, other, search_best(question, other)));
  other.devices = 2 * group.devices;
  return out +
         fmt::format("twice the nodes: {}\n", against(best, other, search_best(question, other)));
}

/// Everything of the fastest layout as text.
std::string best_text(const Question& question,
                      const DeviceGroup& group,
                      const UsedDevices& used,
                      const Table& layouts) {
  const LayoutSearch& found = used.search;
  const PricedLayout& best = found.best.front();
  return heading(question) +
         fmt::format("{} layouts, {} of them fit; the fastest:\n\n", found.considered,
                     found.fitting) +
         layouts.to_text() + idle_text(group, used) +
         fmt::format("\nstep of {}\n", layout_text(best.layout)) +
         seconds_table(best.seconds).to_text() + "\nmemory of its fullest device\n" +
         bytes_table(best.bytes, group.memory).to_text();
}

ExitCode estimate_equal(const Question& question,
                        const EstimateArguments& arguments,
                        const PlayArguments& play,
                        const Console& console) {
  const DeviceGroup& group = question.groups.front();
  const UsedDevices used = search_best(question, group);
  const LayoutSearch& found = used.search;
  if (found.best.empty()) return report_error(nothing_fits(group, found), console);
  std::optional<PlayedLayouts> played;
  const Table layouts = layout_table(found.best, question.run, group, question.flops);
  if (play.wanted()) {
    std::vector<PlacedLayout> placed;
    DeviceGroup playing = group;
    playing.devices = used.devices;
    const std::size_t shown = play.html.empty() ? 1 : found.best.size();
    for (std::size_t i = 0; i < shown; ++i) placed.push_back({playing, found.best[i]});
    auto made = play_layouts(question, placed, 1, play);
    if (!made) return report_error(made.error(), console);
    if (const Status drawn = write_drawings(play, question, *made, 1, layouts); !drawn)
      return report_error(drawn.error(), console);
    played = std::move(*made);
  }
  if (arguments.json) {
    auto json = json_of(question, group, used);
    if (played) json["played"] = played_json(*played, 0);
    console.out << json.dump() << '\n';
    return ExitCode::success;
  }
  console.out << best_text(question, group, used, layouts);
  if (arguments.explain) console.out << '\n' << reasons(question, group, found.best.front());
  if (played) console.out << played_text(play, *played, 1);
  return ExitCode::success;
}

Table share_table(const Question& question, const SharedStep& step) {
  Table table({{"devices", "devices", false},
               {"sequences", "sequences", true},
               {"share", "share", true},
               {"layout", "layout", false},
               {"idle", "idle_devices", true},
               {"busy", "busy_s", true},
               {"memory", "memory_bytes", true}});
  for (std::size_t g = 0; g < step.shares.size(); ++g) {
    const GroupShare& share = step.shares[g];
    const DeviceGroup& group = question.groups[g];
    const std::string name = fmt::format("{} x {}", group.devices, group.name);
    const double part = static_cast<double>(share.batch) / static_cast<double>(question.batch);
    if (!share.layout) {
      table.add({{name, name},
                 {"0", 0},
                 {"0.0 %", 0.0},
                 {"not used", nullptr},
                 {fmt::format("{}", group.devices), group.devices},
                 {"", nullptr},
                 {"", nullptr}});
      continue;
    }
    const auto bytes = static_cast<Bytes>(share.layout->bytes.total());
    const std::string layout = layout_text(share.layout->layout);
    const Seconds busy = share.layout->seconds.total();
    const std::uint64_t idle = group.devices - share.layout->layout.devices();
    table.add({{name, name},
               {fmt::format("{}", share.batch), share.batch},
               share_cell(part),
               {layout, layout},
               {fmt::format("{}", idle), idle},
               {format_seconds(busy), busy},
               {format_bytes(bytes), bytes}});
  }
  return table;
}

/// Of the groups that have a share.
Result<PlayedLayouts> play_shares(const Question& question,
                                  const SharedStep& step,
                                  const PlayArguments& play,
                                  const Table& table) {
  std::vector<PlacedLayout> placed;
  for (std::size_t g = 0; g < step.shares.size(); ++g)
    if (step.shares[g].layout) {
      placed.push_back({question.groups[g], *step.shares[g].layout});
      placed.back().group.devices = step.shares[g].layout->layout.devices();
    }
  auto played = play_layouts(question, placed, placed.size(), play);
  if (!played) return played;
  for (PagePlan& plan : played->plans)
    plan.plan.notes.push_back(fmt::format(
        "after the slowest group gradients go round between groups: {}, which is not played",
        format_seconds(step.reduction)));
  TROUPE_TRY(write_drawings(play, question, *played, placed.size(), table));
  return played;
}

ExitCode estimate_unlike(const Question& question,
                         bool json,
                         const PlayArguments& play,
                         const Console& console) {
  const auto step = share_batch(question.run, question.groups, question.batch, question.network,
                                question.framework, question.choices);
  if (!step) {
    ExitCode code = ExitCode::usage;
    for (const DeviceGroup& group : question.groups)
      if (report_error(nothing_fits(group, search(question, group)), console) ==
          ExitCode::does_not_fit)
        code = ExitCode::does_not_fit;
    return code;
  }
  const Table table = share_table(question, *step);
  PlayedLayouts played;
  if (play.wanted()) {
    auto made = play_shares(question, *step, play, table);
    if (!made) return report_error(made.error(), console);
    played = std::move(*made);
  }
  if (json) {
    nlohmann::ordered_json out;
    out["step_s"] = step->seconds;
    out["reduction_s"] = step->reduction;
    out["shares"] = table.to_json();
    for (std::size_t i = 0; i < played.plans.size(); ++i)
      out["played"].push_back(played_json(played, i));
    console.out << out.dump() << '\n';
    return ExitCode::success;
  }
  console.out << heading(question)
              << fmt::format("replicas with unequal shares: step {}, of it {} between groups\n\n",
                             format_seconds(step->seconds), format_seconds(step->reduction))
              << table.to_text() << played_text(play, played, played.plans.size());
  return ExitCode::success;
}

ExitCode estimate(const EstimateArguments& arguments,
                  const PlayArguments& play,
                  const Console& console) {
  if (const Status apart = check_outputs({arguments.model}, {play.svg, play.trace, play.html});
      !apart)
    return report_error(apart.error(), console);
  const auto question = question_of(arguments);
  if (!question) return report_error(question.error(), console);
  if (question->groups.size() > 1 && arguments.explain)
    return report_error(wrong("--explain goes with one --devices"), console);
  return question->groups.size() == 1 ? estimate_equal(*question, arguments, play, console)
                                      : estimate_unlike(*question, arguments.json, play, console);
}

void add_choices(CLI::App& command, EstimateArguments& arguments) {
  command.add_option("--tensor", arguments.choices.tensor, "Tensor-parallel ranks to choose from");
  command.add_option("--pipeline", arguments.choices.pipeline, "Pipeline stages to choose from");
  command.add_option("--context", arguments.choices.context,
                     "Ranks to divide each sequence over; else 1");
  command.add_option("--expert", arguments.choices.expert,
                     "Ranks to divide the experts over, to choose from");
  command.add_option("--microbatch", arguments.choices.microbatch,
                     "Sequences per microbatch to choose from");
  command.add_option("--chunks", arguments.choices.chunks,
                     "Virtual stages per device to choose from");
  command.add_option("--zero", arguments.zero, "ZeRO stages to choose from")
      ->check(CLI::Range(0, 3));
  command.add_option("--recompute", arguments.recompute, "Recomputation to choose from")
      ->check(CLI::IsMember({"none", "selective", "full"}));
}

}  // namespace

void add_estimate(CLI::App& app, ChosenCommand& chosen) {
  CLI::App* command = app.add_subcommand(
      "estimate", "Predict time and memory of any model on machines that are not here");
  const auto arguments = std::make_shared<EstimateArguments>();
  command
      ->add_option("MODEL", arguments->model,
                   "A model file (conf/models/), or Hugging Face's config.json or its folder")
      ->required();
  command
      ->add_option("--devices", arguments->devices,
                   "Catalogue row, nodes and devices of a node; repeat for unlike devices")
      ->type_name("ROW=NODESxDEVICES")
      ->required();
  command->add_option("--batch", arguments->batch, "Sequences of a step")
      ->required()
      ->check(CLI::Range(1, 65536));
  command->add_option("--sequence", arguments->sequence, "Tokens of a sequence; else the context")
      ->check(CLI::Range(1, 1 << 24));
  command->add_option("--network", arguments->network, "Of one node, one direction")
      ->capture_default_str();
  command->add_option("--headroom", arguments->headroom, "Share of memory that stays free")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 0.9));
  command
      ->add_option("--efficiency", arguments->efficiency,
                   "Of the framework, beside the best products measured: 0.6 to 0.9 fit published "
                   "runs of torchtitan, MPT and nanotron")
      ->capture_default_str()
      ->check(CLI::Range(0.05, 1.0));
  add_choices(*command, *arguments);
  command->add_option("--keep", arguments->keep, "Layouts to show")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  command->add_flag("--explain", arguments->explain,
                    "Say what binds the step, and what more memory or more nodes would buy");
  const auto play = add_play_arguments(*command);
  command->add_flag("--json", arguments->json, "As JSON");
  command->footer(
      "Examples:\n"
      "  troupe estimate conf/models/llama-3.1-70b.toml --devices h100_sxm5_80=8x8 --batch 512 "
      "--sequence 8192\n"
      "  troupe estimate conf/models/gpt2-large.toml --devices a100_sxm4_80=1x8 --devices "
      "rtx3090_24=2x4 --batch 256\n"
      "  troupe estimate conf/models/deepseek-v3.toml --devices h100_sxm5_80=64x8 --batch 1024 "
      "--sequence 4096 --text --html layouts.html\n"
      "  troupe estimate conf/models/llama-3.1-70b.toml --devices h100_sxm5_80=8x8 --batch 128 "
      "--pipeline 4 --play --slow stage2=1.2\n"
      "\nTimes and bytes are predictions from the device catalogue (conf/devices.toml). Exit code "
      "3: nothing fits.");
  command->callback([=, &chosen] {
    chosen.body = [=](const Console& console) { return estimate(*arguments, *play, console); };
  });
}

}  // namespace troupe
