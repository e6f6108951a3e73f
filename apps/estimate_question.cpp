#include "apps/estimate_question.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "apps/architecture_file.h"
#include "apps/device_catalogue.h"
#include "planner/nearest.h"

namespace troupe {
namespace {

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

}  // namespace

Result<Question> question_of(const EstimateArguments& arguments) {
  Question out;
  // The parser's ranges let what is no number pass.
  if (!std::isfinite(arguments.headroom))
    return wrong("--headroom: must be a number from 0 to 0.9");
  if (!std::isfinite(arguments.efficiency))
    return wrong("--efficiency: must be a number from 0.05 to 1");
  auto architecture = load_architecture(arguments.model);
  TROUPE_TRY(architecture);
  out.model = arguments.model;
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
    // Nodes of one kind are one group, however many arguments name them.
    const auto known =
        std::find_if(out.groups.begin(), out.groups.end(), [&](const DeviceGroup& other) {
          return other.name == group->name &&
                 other.cluster.net.devices_per_node == group->cluster.net.devices_per_node;
        });
    if (known != out.groups.end())
      known->devices += group->devices;
    else
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

}  // namespace troupe
