#include "actors/run_spec_json.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "planner/json_object.h"
#include "planner/model_json.h"

namespace troupe {

using Json = nlohmann::json;

// One list of members per struct serves both directions.

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(
    StepShape, microbatch_count, microbatch_size, sequence_length, batch_size, compute)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(AdamWSpec, beta1, beta2, epsilon, weight_decay, clip_norm)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(
    LearningRateSpec, shape, learning_rate, minimum, warmup_steps, total_steps)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(DataSpec,
                                   files,
                                   format,
                                   jsonl_field,
                                   tokenizer,
                                   tokenizer_folder,
                                   cache_folder,
                                   validation_fraction)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CheckpointSpec, every_steps, keep, resume_from)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(EvaluationSpec, every_steps, batches)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(
    DeviceRates, matmul_f32, matmul_bf16, vector_f32, memory, launch, action_overhead)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(
    LayerSeconds, forward, backward_input, backward_weight, norm, update)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(NodeSpec, name, own_process)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LinkSpec, latency, bandwidth)

template <class Tag>
void to_json(Json& json, const Id<Tag>& id) {
  json = id.value;
}
template <class Tag>
void from_json(const Json& json, Id<Tag>& id) {
  json.get_to(id.value);
}

namespace {

Json device_to_json(const DeviceSpec& device) {
  Json measured = Json::array();
  for (const auto& [kind, seconds] : device.measured) measured.push_back({kind, seconds});
  Json by_size = Json::array();
  for (const auto& [kind, known] : device.measured_by_size)
    for (const auto& [size, seconds] : known) by_size.push_back({kind, size, seconds});
  return {{"name", device.name},   {"node", device.node},     {"kind", device.kind},
          {"model", device.model}, {"memory", device.memory}, {"threads", device.threads},
          {"rates", device.rates}, {"measured", measured},    {"measured_by_size", by_size}};
}

DeviceSpec device_from_json(const Json& json) {
  DeviceSpec device;
  json.at("name").get_to(device.name);
  json.at("node").get_to(device.node);
  json.at("kind").get_to(device.kind);
  json.at("model").get_to(device.model);
  json.at("memory").get_to(device.memory);
  json.at("threads").get_to(device.threads);
  json.at("rates").get_to(device.rates);
  for (const Json& one : json.at("measured"))
    device.measured[one.at(0).get<LayerKind>()] = one.at(1).get<LayerSeconds>();
  for (const Json& one : json.at("measured_by_size"))
    device.measured_by_size[one.at(0).get<LayerKind>()][one.at(1).get<std::uint32_t>()] =
        one.at(2).get<LayerSeconds>();
  return device;
}

Json cluster_to_json(const ClusterSpec& cluster) {
  Json devices = Json::array();
  for (const DeviceSpec& device : cluster.devices) devices.push_back(device_to_json(device));
  Json overrides = Json::array();
  for (const auto& [ends, link] : cluster.overrides)
    overrides.push_back({ends.first, ends.second, link});
  Json disturbances = Json::array();
  for (const Disturbance& one : cluster.disturbances)
    disturbances.push_back({one.from, one.to, one.factor, one.first_step, one.last_step});
  return {{"nodes", cluster.nodes},
          {"devices", devices},
          {"same_process", cluster.same_process},
          {"between_processes", cluster.between_processes},
          {"overrides", overrides},
          {"disturbances", disturbances},
          {"copy_between_devices", cluster.copy_between_devices}};
}

ClusterSpec cluster_from_json(const Json& json) {
  ClusterSpec cluster;
  json.at("nodes").get_to(cluster.nodes);
  for (const Json& device : json.at("devices")) cluster.devices.push_back(device_from_json(device));
  json.at("same_process").get_to(cluster.same_process);
  json.at("between_processes").get_to(cluster.between_processes);
  for (const Json& one : json.at("overrides"))
    cluster.overrides[{one.at(0).get<std::uint32_t>(), one.at(1).get<std::uint32_t>()}] =
        one.at(2).get<LinkSpec>();
  for (const Json& one : json.at("disturbances"))
    cluster.disturbances.push_back({one.at(0).get<DeviceId>(), one.at(1).get<DeviceId>(),
                                    one.at(2).get<double>(), one.at(3).get<std::uint64_t>(),
                                    one.at(4).get<std::uint64_t>()});
  json.at("copy_between_devices").get_to(cluster.copy_between_devices);
  return cluster;
}

Json options_to_json(const PlanOptions& options) {
  Json pinned = Json::array();
  for (const StagePlan& stage : options.pinned)
    pinned.push_back({stage.layers.first, stage.layers.last, stage.device, stage.recompute.full,
                      stage.recompute.selective});
  return {{"shape", options.shape},
          {"schedule", options.schedule},
          {"chunks", options.chunks},
          {"pinned", pinned},
          {"transfer_slots", options.transfer_slots},
          {"recompute", options.recompute},
          {"choose_microbatches", options.choose_microbatches},
          {"choose_schedule", options.choose_schedule},
          {"choose_recompute", options.choose_recompute}};
}

PlanOptions options_from_json(const Json& json) {
  PlanOptions options;
  json.at("shape").get_to(options.shape);
  json.at("schedule").get_to(options.schedule);
  json.at("chunks").get_to(options.chunks);
  for (const Json& one : json.at("pinned"))
    options.pinned.push_back({{one.at(0).get<std::uint32_t>(), one.at(1).get<std::uint32_t>()},
                              one.at(2).get<DeviceId>(),
                              {one.at(3).get<std::uint32_t>(), one.at(4).get<std::uint32_t>()}});
  json.at("transfer_slots").get_to(options.transfer_slots);
  json.at("recompute").get_to(options.recompute);
  json.at("choose_microbatches").get_to(options.choose_microbatches);
  json.at("choose_schedule").get_to(options.choose_schedule);
  json.at("choose_recompute").get_to(options.choose_recompute);
  return options;
}

}  // namespace

std::string to_json(const RunSpec& spec) {
  const Json json = {{"name", spec.name},
                     {"folder", spec.folder},
                     {"steps", spec.steps},
                     {"seed", spec.seed},
                     {"state_hash_every", spec.state_hash_every},
                     {"listen_host", spec.listen_host},
                     {"listen_port", spec.listen_port},
                     {"model", model_json(spec.model)},
                     {"shape", spec.shape},
                     {"optimizer", spec.optimizer},
                     {"learning_rate", spec.learning_rate},
                     {"data", spec.data},
                     {"checkpoint", spec.checkpoint},
                     {"evaluation", spec.evaluation},
                     {"cluster", cluster_to_json(spec.cluster)},
                     {"joining_nodes", spec.joining_nodes},
                     {"plan", options_to_json(spec.plan)},
                     {"emulation_time_scale", spec.emulation_time_scale},
                     {"request_timeout", spec.request_timeout},
                     {"join_timeout", spec.join_timeout},
                     {"copy_between_devices", spec.copy_between_devices}};
  return json.dump();
}

Result<RunSpec> run_spec_from_json(std::string_view text) try {
  const Json json = Json::parse(text);
  RunSpec spec;
  json.at("name").get_to(spec.name);
  json.at("folder").get_to(spec.folder);
  json.at("steps").get_to(spec.steps);
  json.at("seed").get_to(spec.seed);
  json.at("state_hash_every").get_to(spec.state_hash_every);
  json.at("listen_host").get_to(spec.listen_host);
  json.at("listen_port").get_to(spec.listen_port);
  spec.model = read_model(json.at("model"), "model");
  json.at("shape").get_to(spec.shape);
  json.at("optimizer").get_to(spec.optimizer);
  json.at("learning_rate").get_to(spec.learning_rate);
  json.at("data").get_to(spec.data);
  json.at("checkpoint").get_to(spec.checkpoint);
  json.at("evaluation").get_to(spec.evaluation);
  spec.cluster = cluster_from_json(json.at("cluster"));
  json.at("joining_nodes").get_to(spec.joining_nodes);
  spec.plan = options_from_json(json.at("plan"));
  json.at("emulation_time_scale").get_to(spec.emulation_time_scale);
  json.at("request_timeout").get_to(spec.request_timeout);
  json.at("join_timeout").get_to(spec.join_timeout);
  json.at("copy_between_devices").get_to(spec.copy_between_devices);
  return spec;
} catch (const JsonRefused& refused) {
  return Error{ErrorCode::protocol, fmt::format("the run's description: {}", refused.text)};
} catch (const nlohmann::json::exception& wrong) {
  return Error{ErrorCode::protocol, fmt::format("the run's description: {}", wrong.what())};
}

std::string to_json(const MeasuredDevices& measured) {
  Json json = Json::array();
  for (const auto& [device, kinds] : measured)
    for (const auto& [kind, known] : kinds)
      for (const auto& [size, seconds] : known) json.push_back({device, kind, size, seconds});
  return json.dump();
}

Result<MeasuredDevices> measured_from_json(std::string_view text) try {
  MeasuredDevices measured;
  for (const Json& one : Json::parse(text))
    measured[one.at(0).get<std::uint32_t>()][one.at(1).get<LayerKind>()]
            [one.at(2).get<std::uint32_t>()] = one.at(3).get<LayerSeconds>();
  return measured;
} catch (const nlohmann::json::exception& wrong) {
  return Error{ErrorCode::protocol, fmt::format("measured rates: {}", wrong.what())};
}

}  // namespace troupe
