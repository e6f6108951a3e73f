/// plan.json: writing, and reading with nothing taken on trust.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "planner/json_object.h"
#include "planner/model_json.h"
#include "planner/plan.h"
#include "planner/printable.h"
#include "planner/schedules.h"

namespace troupe {
namespace {

using nlohmann::json;

constexpr std::size_t most_bytes = std::size_t{256} << 20;
constexpr std::uint32_t format_version = 2;

json memory_json(const MemoryPlan& memory) {
  return {{"weights", memory.weights},     {"gradients", memory.gradients},
          {"optimizer", memory.optimizer}, {"activations", memory.activations},
          {"workspace", memory.workspace}, {"transfer", memory.transfer}};
}

StepShape read_shape(const json& value) {
  const JsonObject object(
      value, "shape",
      {"microbatch_count", "microbatch_size", "sequence_length", "batch_size", "compute"});
  StepShape shape;
  shape.microbatch_count = object.u32("microbatch_count");
  shape.microbatch_size = object.u32("microbatch_size");
  shape.sequence_length = object.u32("sequence_length");
  shape.batch_size = object.u32("batch_size");
  const std::string compute = object.string("compute");
  if (compute != "f32" && compute != "bf16")
    throw JsonRefused{"shape.compute is neither \"f32\" nor \"bf16\""};
  shape.compute = compute == "f32" ? DType::f32 : DType::bf16;
  return shape;
}

std::vector<StagePlan> read_stages(const json& list, const ModelSpec& model, std::size_t devices) {
  std::vector<StagePlan> stages;
  std::uint32_t next = 0;
  for (const json& value : list) {
    const std::string path = fmt::format("stages[{}]", stages.size());
    const JsonObject object(value, path, {"first_layer", "end_layer", "device", "device_name"},
                            {"recompute"});
    StagePlan stage{{object.u32("first_layer"), object.u32("end_layer")},
                    DeviceId{object.u32("device")}};
    object.string("device_name");
    if (stage.layers.first != next || stage.layers.last <= next)
      throw JsonRefused{
          fmt::format("{} does not continue at layer {} with at least one", path, next)};
    if (stage.device.index() >= devices)
      throw JsonRefused{
          fmt::format("{}.device = {} of {} devices", path, stage.device.value, devices)};
    next = stage.layers.last;
    if (object.has("recompute")) {
      const JsonObject again(object.at("recompute"), object.path("recompute"),
                             {"full", "selective"});
      stage.recompute = {again.u32("full"), again.u32("selective")};
      const std::uint32_t blocks = block_count(model, stage.layers);
      if (std::uint64_t{stage.recompute.full} + stage.recompute.selective > blocks)
        throw JsonRefused{fmt::format("{} is {} of {} blocks", object.path("recompute"),
                                      to_text(stage.recompute), blocks)};
    }
    stages.push_back(stage);
  }
  if (next != layer_count(model))
    throw JsonRefused{fmt::format("stages hold {} of {} layers", next, layer_count(model))};
  return stages;
}

std::vector<std::uint32_t> read_counts(const JsonObject& plan, const char* key) {
  std::vector<std::uint32_t> counts;
  for (const json& value : plan.array(key))
    counts.push_back(
        JsonObject::u32_of(value, fmt::format("{}[{}]", plan.path(key), counts.size())));
  return counts;
}

std::vector<MemoryPlan> read_memory(const json& list) {
  std::vector<MemoryPlan> memory;
  for (const json& value : list) {
    const JsonObject object(value, fmt::format("devices[{}]", memory.size()),
                            {"name", "memory", "weights", "gradients", "optimizer", "activations",
                             "workspace", "transfer"});
    object.string("name");
    object.u64("memory");
    MemoryPlan one;
    one.weights = object.u64("weights");
    one.gradients = object.u64("gradients");
    one.optimizer = object.u64("optimizer");
    one.activations = object.u64("activations");
    one.workspace = object.u64("workspace");
    one.transfer = object.u64("transfer");
    memory.push_back(one);
  }
  return memory;
}

Schedule read_schedule(const JsonObject& plan, const Plan& made, std::size_t devices) {
  StageMap map;
  for (const StagePlan& stage : made.stages) map.device_of_stage.push_back(stage.device);
  map.microbatch_count = made.shape.microbatch_count;
  map.device_count = static_cast<std::uint32_t>(devices);
  map.tied = made.model.tied;
  map.transfer_slots = plan.u32("transfer_slots");
  std::string text;
  for (const json& line : plan.array("schedule"))
    text += JsonObject::string_of(line, plan.path("schedule[]")) + "\n";
  auto schedule = parse_schedule(text, map);
  if (!schedule) throw JsonRefused{schedule.error().text};
  if (const Status status = validate(*schedule); !status) throw JsonRefused{status.error().text};
  return std::move(*schedule);
}

Timeline read_timeline(const json& list) {
  Timeline timeline;
  for (const json& value : list) {
    const std::string path = fmt::format("timeline[{}]", timeline.spans.size());
    if (!value.is_array() || value.size() != 4) throw JsonRefused{path + " is not a list of four"};
    const auto action = parse_action(JsonObject::string_of(value[0], path));
    if (!action) throw JsonRefused{path + ": " + action.error().text};
    timeline.spans.push_back({*action, JsonObject::string_of(value[1], path),
                              JsonObject::number_of(value[2], path),
                              JsonObject::number_of(value[3], path)});
  }
  return timeline;
}

std::vector<PlanNote> read_notes(const json& list) {
  std::vector<PlanNote> notes;
  for (const json& value : list) {
    const JsonObject object(value, fmt::format("notes[{}]", notes.size()), {"kind", "text"});
    const std::string name = object.string("kind");
    const auto kind = parse_note_kind(name);
    if (!kind)
      throw JsonRefused{fmt::format("{} is \"{}\", which is no kind of note", object.path("kind"),
                                    printable(name))};
    notes.push_back({*kind, object.string("text")});
  }
  return notes;
}

Plan read_plan(const json& value) {
  const JsonObject object(value, "plan",
                          {"format", "epoch", "model", "shape", "schedule_kind", "transfer_slots",
                           "stages", "devices", "schedule", "in_flight", "deferred", "unused",
                           "predicted_step_seconds", "timeline", "notes"});
  if (object.u64("format") != format_version)
    throw JsonRefused{
        fmt::format("plan.format is {}, this program reads {}; make the plan again, "
                    "with troupe plan CONF --json",
                    object.u64("format"), format_version)};
  Plan plan;
  plan.epoch.value = object.u64("epoch");
  plan.model = read_model(object.at("model"), "model");
  plan.shape = read_shape(object.at("shape"));
  const auto kind = parse_schedule_kind(object.string("schedule_kind"));
  if (!kind) throw JsonRefused{kind.error().text};
  plan.schedule_kind = *kind;
  plan.memory = read_memory(object.array("devices"));
  plan.stages = read_stages(object.array("stages"), plan.model, plan.memory.size());
  plan.schedule = read_schedule(object, plan, plan.memory.size());
  plan.in_flight = read_counts(object, "in_flight");
  plan.deferred = read_counts(object, "deferred");
  for (const StagePlan& stage : plan.stages)
    if (plan.schedule.split_backward && !stage.recompute.none())
      throw JsonRefused{"plan.schedule cuts the backward in two, and a stage computes again"};
  if (plan.in_flight != in_flight_per_stage(plan.schedule))
    throw JsonRefused{"plan.in_flight is not what the schedule holds"};
  if (plan.deferred != deferred_per_stage(plan.schedule))
    throw JsonRefused{"plan.deferred is not what the schedule holds"};
  for (const std::uint32_t device : read_counts(object, "unused")) {
    if (device >= plan.memory.size() || !plan.schedule.devices[device].empty())
      throw JsonRefused{
          fmt::format("plan.unused names device {}, which is used or unknown", device)};
    plan.unused.push_back(DeviceId{device});
  }
  plan.predicted_step = object.number("predicted_step_seconds");
  plan.timeline = read_timeline(object.array("timeline"));
  plan.notes = read_notes(object.array("notes"));
  return plan;
}

}  // namespace

std::string to_json(const Plan& plan, const ClusterSpec& cluster) {
  json stages = json::array();
  for (const StagePlan& stage : plan.stages) {
    stages.push_back({{"first_layer", stage.layers.first},
                      {"end_layer", stage.layers.last},
                      {"device", stage.device.value},
                      {"device_name", cluster.devices.at(stage.device.index()).name}});
    if (!stage.recompute.none())
      stages.back()["recompute"] = {{"full", stage.recompute.full},
                                    {"selective", stage.recompute.selective}};
  }
  json devices = json::array();
  for (std::size_t d = 0; d < plan.memory.size(); ++d) {
    json device = memory_json(plan.memory[d]);
    device["name"] = cluster.devices.at(d).name;
    device["memory"] = cluster.devices.at(d).memory;
    devices.push_back(std::move(device));
  }
  json lanes = json::array();
  const std::string text = to_text(plan.schedule);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    lanes.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  json spans = json::array();
  for (const Span& span : plan.timeline.spans)
    spans.push_back({to_string(span.action), span.lane, span.begin, span.end});
  json unused = json::array();
  for (const DeviceId device : plan.unused) unused.push_back(device.value);
  json notes = json::array();
  for (const PlanNote& note : plan.notes)
    notes.push_back({{"kind", to_string(note.kind)}, {"text", note.text}});
  const json value = {{"format", format_version},
                      {"epoch", plan.epoch.value},
                      {"model", model_json(plan.model)},
                      {"shape",
                       {{"microbatch_count", plan.shape.microbatch_count},
                        {"microbatch_size", plan.shape.microbatch_size},
                        {"sequence_length", plan.shape.sequence_length},
                        {"batch_size", plan.shape.batch_size},
                        {"compute", to_string(plan.shape.compute)}}},
                      {"schedule_kind", to_string(plan.schedule_kind)},
                      {"transfer_slots", plan.schedule.stages.transfer_slots},
                      {"stages", std::move(stages)},
                      {"devices", std::move(devices)},
                      {"schedule", std::move(lanes)},
                      {"in_flight", plan.in_flight},
                      {"deferred", plan.deferred},
                      {"unused", std::move(unused)},
                      {"predicted_step_seconds", plan.predicted_step},
                      {"timeline", std::move(spans)},
                      {"notes", notes}};
  return value.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
}

Result<Plan> plan_from_json(std::string_view text) {
  const auto refuse = [](const std::string& why) {
    return Error{ErrorCode::corrupt, "plan.json: " + why};
  };
  if (text.size() > most_bytes) return refuse("more than 256 MiB");
  try {
    // Nesting is bounded so that a hostile text cannot exhaust the stack.
    const auto shallow = [](int depth, json::parse_event_t, json&) {
      if (depth > 8) throw JsonRefused{"nested deeper than a plan is"};
      return true;
    };
    const json value = json::parse(text.begin(), text.end(), shallow);
    return read_plan(value);
  } catch (const JsonRefused& refused) {
    return refuse(refused.text);
  } catch (const json::exception& failure) {
    return refuse(failure.what());
  }
}

}  // namespace troupe
