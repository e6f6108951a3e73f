#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "apps/config_builder.h"
#include "planner/counted.h"
#include "planner/printable.h"

namespace troupe {
namespace {

/// "3" or "0-3" as [first, last + 1); nothing when it is neither.
std::optional<LayerRange> parse_layers(const std::string& text) {
  LayerRange range;
  const char* end = text.data() + text.size();
  auto parsed = std::from_chars(text.data(), end, range.first);
  if (parsed.ec != std::errc{}) return std::nullopt;
  std::uint32_t last = range.first;
  if (parsed.ptr != end) {
    if (*parsed.ptr != '-') return std::nullopt;
    parsed = std::from_chars(parsed.ptr + 1, end, last);
    if (parsed.ec != std::errc{} || parsed.ptr != end) return std::nullopt;
  }
  if (last < range.first || last > 1000000) return std::nullopt;
  range.last = last + 1;
  return range;
}

}  // namespace

void ConfigBuilder::build_plan() {
  const ConfigReader plan = reader_.table("plan");
  PlanOptions& options = spec_.plan;
  options.shape = spec_.shape;
  if (const auto kind = parse_schedule_kind(plan.text("schedule"))) options.schedule = *kind;
  options.choose_schedule = plan.text("schedule") == "auto";
  options.chunks = plan.integer32("chunks");
  options.transfer_slots = plan.integer32("transfer_slots");
  check_bf16();
  options.choose_recompute = plan.text("recompute") == "auto";
  if (const auto policy = parse_recompute(plan.text("recompute"))) options.recompute = *policy;
  build_stages(plan);
  check_recompute(plan);
}

void ConfigBuilder::build_stages(const ConfigReader& plan) {
  PlanOptions& options = spec_.plan;
  if (plan.usable({"chunks", "schedule"})) {
    if (options.chunks > 1 && options.choose_schedule)
      report(plan.at("chunks"),
             fmt::format("plan.chunks = {} with plan.schedule = \"auto\"{}: the planner chooses "
                         "them with the schedule; nearest legal value: 1, or schedule = "
                         "\"interleaved\"",
                         options.chunks, place(plan, "schedule", "plan.schedule")));
    else if (options.chunks > 1 && options.schedule != ScheduleKind::interleaved)
      report(plan.at("chunks"),
             fmt::format(
                 "plan.chunks = {} with plan.schedule = \"{}\"{}: only \"interleaved\" gives a "
                 "device several stages; nearest legal value: 1",
                 options.chunks, plan.text("schedule"), place(plan, "schedule", "plan.schedule")));
    if (options.chunks == 1 && options.schedule == ScheduleKind::interleaved &&
        plan.text("plan") == "auto")
      report(
          plan.at("schedule"),
          fmt::format("plan.schedule = \"interleaved\" with plan.chunks = 1{} interleaves nothing; "
                      "nearest legal value: chunks = 2, or schedule = \"1f1b\"",
                      place(plan, "chunks", "plan.chunks")));
  }
  const ConfigNode* stages = plan.node("stage");
  const ConfigNode* cuts = plan.node("cuts");
  const ConfigNode* devices = plan.node("devices");
  if (!plan.has("plan") || (stages != nullptr && stages->bad)) return;
  if (plan.text("plan") == "auto") {
    for (const ConfigNode* node : {stages, cuts, devices})
      if (node != nullptr)
        report(
            node->at,
            fmt::format("pinned stages with plan.plan = \"auto\"{}: the planner would ignore them; "
                        "nearest legal value: plan = \"pinned\"",
                        place(plan, "plan", "plan.plan")));
    return;
  }
  if (options.chunks > 1)
    report(plan.at("chunks"),
           fmt::format(
               "plan.chunks = {} with plan.plan = \"pinned\"{}: pinned stages say themselves how "
               "many a device has; nearest legal value: 1",
               options.chunks, place(plan, "plan", "plan.plan")));
  if (stages != nullptr && cuts != nullptr)
    return report(cuts->at,
                  fmt::format("plan.cuts and [[plan.stage]] ({}) both pin the stages; keep one",
                              to_string(stages->items.empty() ? stages->at : stages->items[0].at)));
  if (stages == nullptr && cuts == nullptr)
    return report(
        plan.at("plan"),
        "plan.plan = \"pinned\" pins nothing; add [[plan.stage]] tables or cuts, or write "
        "plan = \"auto\"");
  if (stages != nullptr)
    build_pinned_stages(plan);
  else
    build_cuts(plan);
}

void ConfigBuilder::check_bf16() {
  if (spec_.shape.compute != DType::bf16) return;
  const ConfigReader training = reader_.table("training");
  for (std::size_t d = 0; d < spec_.cluster.devices.size(); ++d) {
    const DeviceSpec& device = spec_.cluster.devices[d];
    if (device.kind != DeviceKind::emulated || device.rates.matmul_f32 <= 0) continue;
    if (device.rates.matmul_bf16 > 0) continue;
    report(training.at("compute"),
           fmt::format("training.compute = \"bf16\", and device \"{}\" plays {}, which has no bf16 "
                       "(node.device.model at {}); nearest legal value: \"f32\"",
                       device.name, device.model, to_string(device_models_[d])));
  }
}

void ConfigBuilder::build_pinned_stages(const ConfigReader& plan) {
  bool whole = true;
  for (const ConfigReader& stage : plan.tables("stage")) {
    StagePlan pinned;
    if (stage.has("layers")) {
      const auto range = parse_layers(stage.text("layers"));
      if (range)
        pinned.layers = *range;
      else
        report(
            stage.at("layers"),
            fmt::format("plan.stage.layers = \"{}\" is no range of layers; write \"0-3\" or \"4\"",
                        stage.text("layers")));
      whole = whole && range.has_value();
    } else {
      whole = false;
    }
    if (stage.has("device"))
      if (const auto index =
              device_named(stage.at("device"), "plan.stage.device", stage.text("device")))
        pinned.device = DeviceId{*index};
    Recompute policy = spec_.plan.recompute;
    if (stage.has("recompute") && spec_.plan.choose_recompute)
      report(stage.at("recompute"),
             fmt::format("plan.stage.recompute = \"{}\" with plan.recompute = \"auto\"{}: the "
                         "planner chooses for every stage; nearest legal value: none here, or "
                         "another policy there",
                         stage.text("recompute"), place(plan, "recompute", "plan.recompute")));
    if (stage.has("recompute"))
      if (const auto own = parse_recompute(stage.text("recompute"))) policy = *own;
    if (pinned.layers.last > pinned.layers.first)
      pinned.recompute = recompute_all(spec_.model, pinned.layers, policy);
    stage_places_.push_back(stage.at("layers"));
    spec_.plan.pinned.push_back(pinned);
  }
  if (whole && !spec_.plan.pinned.empty()) check_coverage();
}

void ConfigBuilder::build_cuts(const ConfigReader& plan) {
  const ConfigReader model = reader_.table("model");
  if (!plan.has("cuts") || !model.has("blocks")) return;
  const std::uint32_t layers = layer_count(spec_.model);
  std::uint32_t first = 0;
  bool holds = true;
  for (const ConfigNode& cut : plan.node("cuts")->items) {
    const auto value = static_cast<std::uint32_t>(cut.integer);
    if (value <= first || value >= layers) {
      const std::string nearest =
          first + 1 < layers
              ? fmt::format("nearest legal value: {}", std::clamp(value, first + 1, layers - 1))
              : "leave it out: no layer is left for another stage";
      report(
          cut.at,
          value >= layers
              ? fmt::format("plan.cuts holds {}, and model.blocks = {}{} makes layers 0-{}; {}",
                            value, spec_.model.blocks, place(model, "blocks", "model.blocks"),
                            layers - 1, nearest)
              : fmt::format("plan.cuts holds {} after {}; cuts rise; {}", value, first, nearest));
      holds = false;
    }
    spec_.plan.pinned.push_back({{first, value}, {}});
    first = std::max(first, value);
  }
  spec_.plan.pinned.push_back({{first, layers}, {}});
  if (!holds) return;
  const std::size_t stages = spec_.plan.pinned.size();
  std::vector<std::uint32_t> devices;
  if (const ConfigNode* named = plan.node("devices")) {
    if (named->bad) return;
    for (const ConfigNode& item : named->items)
      if (const auto index = device_named(item.at, "plan.devices", item.text))
        devices.push_back(*index);
    if (devices.size() < named->items.size()) return;
    if (devices.size() != stages)
      return report(named->at,
                    fmt::format("plan.devices names {}, and {} (plan.cuts at {}) make {}; name {}",
                                counted(devices.size(), "device"), counted(stages - 1, "cut"),
                                to_string(plan.at("cuts")), counted(stages, "stage"), stages));
  } else {
    for (std::uint32_t d = 0; d < spec_.cluster.devices.size(); ++d) devices.push_back(d);
    if (devices.empty()) return;  // reported where the devices are
    if (devices.size() < stages)
      return report(
          plan.at("cuts"),
          fmt::format("plan.cuts makes {}, and the cluster has {}; at most {}, or say which "
                      "devices take several stages with plan.devices",
                      counted(stages, "stage"), counted(devices.size(), "device"),
                      counted(devices.size() - 1, "cut")));
  }
  for (std::size_t s = 0; s < stages; ++s) {
    StagePlan& stage = spec_.plan.pinned[s];
    stage.device = DeviceId{devices[s]};
    stage.recompute = recompute_all(spec_.model, stage.layers, spec_.plan.recompute);
  }
}

void ConfigBuilder::check_recompute(const ConfigReader& plan) {
  if (spec_.plan.choose_schedule || spec_.plan.schedule != ScheduleKind::zero_bubble_h1) return;
  const auto refuse = [&](Position at, const std::string& key, const std::string& value) {
    report(at, fmt::format(
                   "{} = \"{}\" with plan.schedule = \"zb-h1\"{}: a backward that is cut in two "
                   "computes nothing again; nearest legal value: \"none\", or schedule = "
                   "\"1f1b\"",
                   key, value, place(plan, "schedule", "plan.schedule")));
  };
  if (spec_.plan.recompute != Recompute::none)
    refuse(plan.at("recompute"), "plan.recompute", plan.text("recompute"));
  for (const ConfigReader& stage : plan.tables("stage"))
    if (stage.has("recompute") && stage.text("recompute") != "none")
      refuse(stage.at("recompute"), "plan.stage.recompute", stage.text("recompute"));
}

void ConfigBuilder::check_coverage() {
  const ConfigReader model = reader_.table("model");
  if (!model.has("blocks")) return;
  const std::uint32_t layers = layer_count(spec_.model);
  const std::string blocks =
      fmt::format("model.blocks = {}{} makes {} layers (0-{}: embedding, {}, head)",
                  spec_.model.blocks, place(model, "blocks", "model.blocks"), layers, layers - 1,
                  counted(spec_.model.blocks, "block"));
  std::uint32_t next = 0;
  for (std::size_t s = 0; s < spec_.plan.pinned.size(); ++s) {
    const LayerRange range = spec_.plan.pinned[s].layers;
    if (next == layers)
      return report(stage_places_[s],
                    fmt::format("{} are placed already; leave this stage out", blocks));
    if (range.first != next) {
      const LayerRange right{next, std::clamp(range.last, next + 1, std::max(layers, next + 1))};
      return report(
          stage_places_[s],
          fmt::format("plan.stage.layers = \"{}\" {}: the next layer to place is {}; nearest "
                      "legal value: \"{}\"",
                      layers_text(range),
                      range.first > next
                          ? fmt::format("leaves out layers {}", layers_text({next, range.first}))
                          : "places a layer twice",
                      next, layers_text(right)));
    }
    next = range.last;
    if (next > layers)
      return report(stage_places_[s],
                    fmt::format("plan.stage.layers = \"{}\" goes past the model: {}; nearest legal "
                                "value: \"{}\"",
                                layers_text(range), blocks,
                                layers_text({std::min(range.first, layers - 1), layers})));
  }
  if (next < layers)
    report(stage_places_.back(),
           fmt::format("the pinned stages place {} (0-{}), and {}; nearest legal value: "
                       "\"{}\"",
                       counted(next, "layer"), next - 1, blocks,
                       layers_text({spec_.plan.pinned.back().layers.first, layers})));
}

}  // namespace troupe
