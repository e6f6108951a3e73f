#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <memory>
#include <ostream>

#include "apps/architecture_file.h"
#include "apps/device_catalogue.h"
#include "apps/estimate_table.h"
#include "apps/program.h"
#include "planner/nearest.h"

namespace troupe {
namespace {

struct EstimateArguments {
  std::string model;
  std::vector<std::string> devices;
  std::uint64_t batch = 0;
  std::uint64_t sequence = 0;
  std::string network = "roce_400 x 8";
  double headroom = 0.1;
  double efficiency = 0.75;
  LayoutChoices choices;
  std::vector<std::uint64_t> zero;
  std::vector<std::string> recompute;
  std::uint64_t keep = 5;
  bool explain = false;
  bool json = false;
};

/// What is priced.
struct Question {
  ArchitectureRun run;
  std::vector<DeviceGroup> groups;
  std::uint64_t batch = 0;
  BytesPerSecond network = 0;  ///< of one node, one direction
  LayoutChoices choices;
  Framework framework;
  std::size_t keep = 5;
  double flops = 0;  ///< of one step
};

Error wrong(std::string text) {
  return {ErrorCode::invalid_input, std::move(text)};
}

std::optional<std::uint64_t> count_of(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc{} || end != text.data() + text.size() || value == 0) return std::nullopt;
  return value;
}

/// Share of a link between devices of a node that collectives reach: 235 of 300 GB/s on NVLink 3
/// (the all-reduces of vTrain's repository, A100).
constexpr double peer_share = 0.78;

Result<CatalogueDevice> accelerator_named(const std::string& id) {
  std::vector<std::string> known;
  for (const CatalogueDevice& row : built_in_catalogue().accelerators) {
    if (row.id == id) return row;
    known.push_back(row.id);
  }
  return wrong(fmt::format("the device catalogue has no accelerator \"{}\"; {}", id,
                           near_names_text(id, known)));
}

/// "400 GB/s", "roce_400" or "roce_400 x 8": what leaves a node in one direction.
Result<BytesPerSecond> network_of(const std::string& text) {
  const auto by = text.find(" x ");
  const std::string id = text.substr(0, by);
  const auto times = by == std::string::npos ? std::optional<std::uint64_t>{1}
                                             : count_of(std::string_view(text).substr(by + 3));
  for (const CatalogueLink& link : built_in_catalogue().links)
    if (link.id == id && times) return link.rate * static_cast<double>(*times);
  const auto rate = parse_rate(text);
  if (rate && *rate > 0) return *rate;
  std::vector<std::string> known;
  for (const CatalogueLink& link : built_in_catalogue().links) known.push_back(link.id);
  return wrong(
      fmt::format("--network {}: must be a rate as in \"50 GB/s\", or a link of the "
                  "catalogue and how many a node has, as in \"roce_400 x 8\"; {}",
                  text, near_names_text(id, known)));
}

/// "h100_sxm5_80=8x8": catalogue row, nodes, devices of a node.
Result<DeviceGroup> group_of(const std::string& text, double headroom, BytesPerSecond network) {
  const auto equals = text.find('=');
  const auto by = text.find('x', equals == std::string::npos ? 0 : equals);
  const auto id = text.substr(0, equals);
  const auto nodes = equals == std::string::npos || equals == 0 || by == std::string::npos
                         ? std::nullopt
                         : count_of(std::string_view(text).substr(equals + 1, by - equals - 1));
  const auto per_node =
      nodes ? count_of(std::string_view(text).substr(by + 1)) : std::optional<std::uint64_t>{};
  if (!per_node || *nodes > 1'000'000 || *per_node > 1024)
    return wrong(
        fmt::format("--devices {}: must be ROW=NODESxDEVICES, as in h100_sxm5_80=8x8, with at most "
                    "1000000 nodes of 1024",
                    text));
  const auto row = accelerator_named(id);
  if (!row) return wrong(fmt::format("--devices {}: {}", text, row.error().text));
  const auto rates = accelerator_rates(*row);
  if (!rates)
    return wrong(
        fmt::format("--devices {}: the catalogue row {} lacks multiprocessors or a rate in "
                    "16 bits, which layouts are priced by",
                    text, id));
  DeviceGroup group;
  group.name = id;
  group.devices = *nodes * *per_node;
  group.memory = static_cast<double>(row->memory) * (1 - headroom);
  group.cluster.device = *rates;
  group.cluster.net.devices_per_node = static_cast<double>(*per_node);
  group.cluster.net.intra = row->peer_rate * peer_share;
  group.cluster.net.node = network;
  return group;
}

/// What the parser could not put there itself.
LayoutChoices choices_of(const EstimateArguments& arguments) {
  LayoutChoices out = arguments.choices;
  for (const std::uint64_t stage : arguments.zero)
    out.zero.push_back(static_cast<ZeroStage>(stage));
  for (const std::string& name : arguments.recompute)
    out.recompute.push_back(name == "full"        ? Recompute::full
                            : name == "selective" ? Recompute::selective
                                                  : Recompute::none);
  return out;
}

Result<Question> question_of(const EstimateArguments& arguments) {
  Question out;
  // The parser's ranges let what is no number pass.
  if (!std::isfinite(arguments.headroom))
    return wrong("--headroom: must be a number from 0 to 0.9");
  if (!std::isfinite(arguments.efficiency))
    return wrong("--efficiency: must be a number from 0.05 to 1");
  auto architecture = load_architecture(arguments.model);
  TROUPE_TRY(architecture);
  out.run.model = *architecture;
  const auto sequence =
      arguments.sequence > 0 ? arguments.sequence : std::uint64_t{out.run.model.context};
  if (sequence > out.run.model.context && out.run.model.position == PositionKind::learned)
    return wrong(fmt::format("--sequence {}: the model has {} learned positions", sequence,
                             out.run.model.context));
  out.run.sequence = static_cast<double>(sequence);
  const auto network = network_of(arguments.network);
  TROUPE_TRY(network);
  out.network = *network;
  for (const std::string& text : arguments.devices) {
    auto group = group_of(text, arguments.headroom, out.network);
    TROUPE_TRY(group);
    out.groups.push_back(std::move(*group));
  }
  out.choices = choices_of(arguments);
  out.batch = arguments.batch;
  out.framework.efficiency = arguments.efficiency;
  out.keep = arguments.keep;
  out.flops = model_flops(out.run, out.batch);
  return out;
}

std::string heading(const Question& question) {
  std::string text =
      fmt::format("{:.3g} billion parameters, {} sequences of {:.0f} tokens a step\n",
                  static_cast<double>(parameter_count(question.run.model)) / 1e9, question.batch,
                  question.run.sequence);
  for (const DeviceGroup& group : question.groups)
    text += fmt::format("{} x {}: {:.0f} Tflop/s, {} to fill, {:.0f} a node, {:.3g} GB/s a node\n",
                        group.devices, group.name, group.cluster.device.peak / 1e12,
                        format_bytes(static_cast<Bytes>(group.memory)),
                        group.cluster.net.devices_per_node, group.cluster.net.node / 1e9);
  return text;
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
                               const LayoutSearch& search) {
  nlohmann::ordered_json out;
  out["devices"] = {{"row", group.name}, {"count", group.devices}};
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
std::string against(const PricedLayout& best, const LayoutSearch& other) {
  if (other.best.empty()) return "no layout divides the batch, the heads and the layers";
  const Seconds step = other.best.front().seconds.total();
  return fmt::format("{} ({:+.1f} %), {}", format_seconds(step),
                     100 * (step / best.seconds.total() - 1),
                     layout_text(other.best.front().layout));
}

/// What binds the step, and what more would buy: found by searching again.
std::string reasons(const Question& question, const DeviceGroup& group, const PricedLayout& best) {
  DeviceGroup other = group;
  other.memory = std::numeric_limits<double>::infinity();
  const PricedLayout unbound = search(question, other).best.front();
  std::string out =
      unbound.seconds.total() < best.seconds.total()
          ? fmt::format("binding: memory; {} would take {} but needs {} a device\n",
                        layout_text(unbound.layout), format_seconds(unbound.seconds.total()),
                        format_bytes(static_cast<Bytes>(unbound.bytes.total())))
          : fmt::format("binding: {}; no layout is faster with more memory\n",
                        largest_term(best.seconds));
  other = group;
  other.memory += 1 << 30;
  out += fmt::format("1 GiB more a device: {}\n", against(best, search(question, other)));
  other = group;
  const auto per_node = static_cast<std::uint64_t>(group.cluster.net.devices_per_node);
  other.devices += per_node;
  out += fmt::format("one more node: {}\n", against(best, search(question, other)));
  other.devices = 2 * group.devices;
  return out + fmt::format("twice the nodes: {}\n", against(best, search(question, other)));
}

ExitCode estimate_equal(const Question& question, bool explain, bool json, const Console& console) {
  const DeviceGroup& group = question.groups.front();
  const LayoutSearch found = search(question, group);
  if (found.best.empty()) return report_error(nothing_fits(group, found), console);
  if (json) {
    console.out << json_of(question, group, found).dump() << '\n';
    return ExitCode::success;
  }
  const PricedLayout& best = found.best.front();
  console.out << heading(question)
              << fmt::format("{} layouts, {} of them fit; the fastest:\n\n", found.considered,
                             found.fitting)
              << layout_table(found.best, question.run, group, question.flops).to_text()
              << fmt::format("\nstep of {}\n", layout_text(best.layout))
              << seconds_table(best.seconds).to_text() << "\nmemory of its fullest device\n"
              << bytes_table(best.bytes, group.memory).to_text();
  if (explain) console.out << '\n' << reasons(question, group, best);
  return ExitCode::success;
}

Table share_table(const Question& question, const SharedStep& step) {
  Table table({{"devices", "devices", false},
               {"sequences", "sequences", true},
               {"share", "share", true},
               {"layout", "layout", false},
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
                 {"", nullptr},
                 {"", nullptr}});
      continue;
    }
    const auto bytes = static_cast<Bytes>(share.layout->bytes.total());
    const std::string layout = layout_text(share.layout->layout);
    const Seconds busy = share.layout->seconds.total();
    table.add({{name, name},
               {fmt::format("{}", share.batch), share.batch},
               share_cell(part),
               {layout, layout},
               {format_seconds(busy), busy},
               {format_bytes(bytes), bytes}});
  }
  return table;
}

ExitCode estimate_unlike(const Question& question, bool json, const Console& console) {
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
  if (json) {
    nlohmann::ordered_json out;
    out["step_s"] = step->seconds;
    out["reduction_s"] = step->reduction;
    out["shares"] = table.to_json();
    console.out << out.dump() << '\n';
    return ExitCode::success;
  }
  console.out << heading(question)
              << fmt::format("replicas with unequal shares: step {}, of it {} between groups\n\n",
                             format_seconds(step->seconds), format_seconds(step->reduction))
              << table.to_text();
  return ExitCode::success;
}

ExitCode estimate(const EstimateArguments& arguments, const Console& console) {
  const auto question = question_of(arguments);
  if (!question) return report_error(question.error(), console);
  if (question->groups.size() > 1 && arguments.explain)
    return report_error(wrong("--explain goes with one --devices"), console);
  return question->groups.size() == 1
             ? estimate_equal(*question, arguments.explain, arguments.json, console)
             : estimate_unlike(*question, arguments.json, console);
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
  command->add_flag("--json", arguments->json, "As JSON");
  command->footer(
      "Examples:\n"
      "  troupe estimate conf/models/llama-3.1-70b.toml --devices h100_sxm5_80=8x8 --batch 512 "
      "--sequence 8192\n"
      "  troupe estimate conf/models/gpt2-large.toml --devices a100_sxm4_80=1x8 --devices "
      "rtx3090_24=2x4 --batch 256\n"
      "\nTimes and bytes are predictions from the device catalogue (conf/devices.toml). Exit code "
      "3: nothing fits.");
  command->callback([=, &chosen] {
    chosen.body = [=](const Console& console) { return estimate(*arguments, console); };
  });
}

}  // namespace troupe
