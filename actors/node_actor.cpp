/// One per process: takes the run's documents, opens devices and links, makes the actors of its
/// stages, and takes everything down in order.
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <exception>
#include <map>
#include <set>

#include "actors/device_program.h"
#include "actors/errors.h"
#include "actors/interfaces.h"
#include "actors/mailbox_order.h"
#include "actors/measure.h"
#include "actors/run_spec_json.h"
#include "devices/zmq_link.h"
#include "planner/step_costs.h"

namespace troupe {
namespace {

constexpr auto stop_timeout = std::chrono::seconds{10};
constexpr Seconds link_timeout = 20;

/// What one plan epoch made in this process, in the order in which it must outlive what follows.
struct Adopted {
  Adopted() = default;
  ~Adopted() {
    if (hub) hub->set_remote(nullptr);  // who still holds the hub must not find a link that is gone
  }
  Adopted(const Adopted&) = delete;
  Adopted& operator=(const Adopted&) = delete;

  std::shared_ptr<const Plan> plan;
  std::shared_ptr<const Schedule> evaluation;
  std::map<DeviceId, std::shared_ptr<Device>> hardware;
  std::map<DeviceId, std::shared_ptr<Block>> workspaces;
  std::vector<std::shared_ptr<StageRunner>> runners;
  std::shared_ptr<LinkHub> hub;
  std::unique_ptr<ZmqLink> remote;
  std::uint64_t data_fingerprint = 0;
  caf::actor data, trace, storage;
  std::vector<caf::actor> stage_actors;
  std::map<DeviceId, caf::actor> device_actors;
};

struct NodeState {
  NodeState() {}
  static inline const char* name = "node";
  ActorOf<NodeState>* self = nullptr;
  NodeActorSetup setup;
  std::map<std::string, std::vector<std::string>> documents;
  std::unique_ptr<RunSpec> spec;
  std::unique_ptr<Adopted> now;
  std::uint32_t process = 0;

  void take(const DocumentPart& part);
  Result<std::string> document(const std::string& name) const;
  Status read_spec();
  bool is_mine(DeviceId device) const;
  Result<Measured> measure(const MeasureDevices& order);
  Result<PlanAdopted> adopt(const AdoptPlan& order);
  Status open_devices();
  Status make_stages();
  void join_stages();
  Status make_actors(const AdoptPlan& order);
  Status connect(const ConnectPeers& order);
  Status fill(const FillStages& order);
  void close();
};

void NodeState::take(const DocumentPart& part) {
  std::vector<std::string>& parts = documents[part.document];
  if (part.index == 0) parts.clear();
  if (part.index != parts.size() || part.count > 65536) return;  // `document` will miss a part
  parts.push_back(part.text);
  if (part.index + 1 == part.count) parts.emplace_back();  // the mark of the end
}

Result<std::string> NodeState::document(const std::string& wanted) const {
  const auto found = documents.find(wanted);
  if (found == documents.end() || found->second.empty() || !found->second.back().empty())
    return Error{ErrorCode::protocol,
                 fmt::format("the document \"{}\" did not come whole", wanted)};
  std::string text;
  for (const std::string& part : found->second) text += part;
  return text;
}

Status NodeState::read_spec() {
  const auto text = document("run");
  if (!text) return text.error();
  auto read = run_spec_from_json(*text);
  if (!read) return read.error();
  spec = std::make_unique<RunSpec>(std::move(*read));
  for (const std::string& node : setup.nodes)
    if (std::none_of(spec->cluster.nodes.begin(), spec->cluster.nodes.end(),
                     [&](const NodeSpec& one) { return one.name == node; }))
      return Error{ErrorCode::not_found, fmt::format("the run has no node \"{}\"", node)};
  return {};
}

bool NodeState::is_mine(DeviceId device) const {
  const NodeId node = spec->cluster.devices.at(device.index()).node;
  const std::string& node_name = spec->cluster.nodes.at(node.index()).name;
  return std::find(setup.nodes.begin(), setup.nodes.end(), node_name) != setup.nodes.end();
}

Result<Measured> NodeState::measure(const MeasureDevices& order) {
  TROUPE_TRY(read_spec());
  const auto measured = measure_devices(*spec, [this](DeviceId device) { return is_mine(device); });
  if (!measured) return measured.error();
  return Measured{order.epoch, order.step, to_json(*measured)};
}

/// Cores for each device where all threads of the cluster's devices have one of their own.
std::vector<int> cores_of(const ClusterSpec& cluster, DeviceId device) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return {};
  std::size_t before = 0;
  std::size_t all = 0;
  for (std::uint32_t d = 0; d < cluster.devices.size(); ++d) {
    if (d == device.value) before = all;
    all += cluster.devices[d].threads;
  }
  if (all > static_cast<std::size_t>(CPU_COUNT(&allowed))) return {};
  std::vector<int> cores;
  std::size_t seen = 0;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &allowed)) continue;
    if (seen >= before && cores.size() < cluster.devices[device.index()].threads)
      cores.push_back(core);
    ++seen;
  }
  return cores;
}

Status NodeState::open_devices() {
  for (const StagePlan& stage : now->plan->stages) {
    if (!is_mine(stage.device) || now->hardware.count(stage.device) != 0) continue;
    auto opened = open_device(spec->cluster.devices.at(stage.device.index()),
                              cores_of(spec->cluster, stage.device));
    if (!opened) return opened.error();
    now->hardware[stage.device] = std::move(*opened);
  }
  return {};
}

Status NodeState::make_stages() {
  const StageOptions options{spec->optimizer, spec->seed};
  std::map<DeviceId, Bytes> workspace;
  for (std::uint32_t s = 0; s < now->plan->stages.size(); ++s) {
    const DeviceId device = now->plan->stages[s].device;
    if (!is_mine(device)) continue;
    Bytes& most = workspace[device];
    most = std::max(most, workspace_bytes(stage_spec_of(*now->plan, StageId{s}, options)));
  }
  for (const auto& [device, bytes] : workspace) {
    if (bytes == 0) continue;
    auto block = now->hardware[device]->arena().allocate(bytes, MemoryCategory::workspace);
    if (!block) return block.error();
    now->workspaces[device] = std::make_shared<Block>(std::move(*block));
  }
  for (std::uint32_t s = 0; s < now->plan->stages.size(); ++s) {
    const DeviceId device = now->plan->stages[s].device;
    if (!is_mine(device)) continue;
    auto runner = StageRunner::create(*now->hardware[device], *now->plan, spec->cluster, StageId{s},
                                      options, now->workspaces[device].get());
    if (!runner) return runner.error();
    // Whoever still holds the stage keeps its memory's owner alive.
    now->runners.emplace_back(runner->release(),
                              [hardware = now->hardware[device],
                               block = now->workspaces[device]](StageRunner* one) { delete one; });
  }
  join_stages();
  return {};
}

void NodeState::join_stages() {
  const StageMap& stages = now->plan->schedule.stages;
  const auto runner_of = [&](std::uint32_t stage) -> StageRunner* {
    for (const auto& runner : now->runners)
      if (runner->id().value == stage) return runner.get();
    return nullptr;
  };
  for (const auto& runner : now->runners) {
    const std::uint32_t s = runner->id().value;
    const auto readable = [&](std::uint32_t other) -> StageRunner* {
      const DeviceId a = stages.device_of_stage[s];
      const DeviceId b = stages.device_of_stage[other];
      return a == b || spec->cluster.by_reference(a, b) ? runner_of(other) : nullptr;
    };
    StageRunner* previous = s > 0 ? readable(s - 1) : nullptr;
    StageRunner* next = s + 1 < stages.stage_count() ? readable(s + 1) : nullptr;
    StageRunner* tied = nullptr;
    const auto other = other_tied_end(runner->id(), stages);
    if (other && same_device(s, other->value, stages)) tied = runner_of(other->value);
    runner->set_neighbours(previous, next, tied);
  }
}

Status NodeState::make_actors(const AdoptPlan& order) {
  caf::actor_system& system = self->system();
  auto source = setup.source;
  if (!source) {
    auto opened = open_token_source(*spec);
    if (!opened) return opened.error();
    source = std::move(*opened);
  }
  now->data_fingerprint = source->fingerprint();
  now->data = spawn_data_actor(system, std::move(source));
  now->trace = spawn_trace_actor(system, order.run);
  now->storage =
      spawn_storage_actor(system, {order.process, order.process_count, spec->model, now->runners});
  const ModelProfile profile = profile_model(spec->model, spec->shape);
  const StepCosts costs =
      step_costs(now->plan->stages, spec->cluster, spec->model, profile, spec->shape.compute);
  for (const auto& [device, hardware] : now->hardware) {
    DeviceActorSetup made;
    made.plan = now->plan;
    made.evaluation = now->evaluation;
    made.device = device;
    made.hardware = hardware;
    for (const auto& runner : now->runners)
      if (now->plan->stages[runner->id().index()].device == device) {
        made.runners.push_back(runner);
        now->stage_actors.push_back(spawn_stage_actor(system, runner, hardware));
      }
    made.links = now->hub;
    made.modelled = [costs](const Action& action) { return costs.of(action); };
    if (!spec->cluster.disturbances.empty())
      made.disturbed = [cluster = spec->cluster, device = made.device](std::uint64_t step) {
        return cluster.disturbed(device, device, step);
      };
    made.run = order.run;
    made.data = now->data;
    made.trace = now->trace;
    const caf::actor actor = spawn_device_actor(system, std::move(made));
    now->hub->attach(device, [actor](LinkEvent event) {
      before_sending(actor);
      caf::anon_send(actor, LinkNews{std::move(event)});
    });
    now->device_actors[device] = actor;
  }
  return {};
}

Result<PlanAdopted> NodeState::adopt(const AdoptPlan& order) {
  close();
  TROUPE_TRY(read_spec());
  const auto text = document("plan");
  if (!text) return text.error();
  auto plan = plan_from_json(*text);
  if (!plan) return plan.error();
  if (plan->epoch != order.epoch)
    return Error{ErrorCode::stale_epoch, fmt::format("the plan is of epoch {}, the order of {}",
                                                     plan->epoch.value, order.epoch.value)};
  process = order.process;
  now = std::make_unique<Adopted>();
  now->plan = std::make_shared<const Plan>(std::move(*plan));
  now->evaluation = std::make_shared<const Schedule>(evaluation_schedule(now->plan->schedule));
  now->hub = std::make_shared<LinkHub>(spec->cluster, spec->cluster.copy_between_devices);
  now->hub->set_epoch(order.epoch);
  TROUPE_TRY(open_devices());
  TROUPE_TRY(make_stages());
  PlanAdopted adopted{order.epoch, order.step, process, 0, 0, {}};
  if (order.remote_links) {
    ZmqLinkOptions options = setup.link;
    options.run = order.nonce;
    auto remote = ZmqLink::open(*now->hub, process, order.link_host, std::move(options));
    if (!remote) return remote.error();
    now->remote = std::move(*remote);
    now->hub->set_remote(now->remote.get());
    adopted.link_port = now->remote->port();
  }
  TROUPE_TRY(make_actors(order));
  adopted.data_fingerprint = now->data_fingerprint;
  for (const auto& [device, actor] : now->device_actors) adopted.devices.push_back({device, actor});
  return adopted;
}

Status NodeState::connect(const ConnectPeers& order) {
  if (!now || order.epoch != now->plan->epoch)
    return Error{ErrorCode::stale_epoch, "no plan of that epoch is adopted"};
  if (!now->remote) return {};
  std::vector<LinkPeer> peers;
  std::string own_name;
  for (const PeerAddress& peer : order.peers)
    if (peer.process != process)
      peers.push_back({peer.process, peer.node, peer.host, peer.port, peer.devices});
    else
      own_name = peer.node;
  return now->remote->connect(peers, link_timeout, own_name);
}

Status NodeState::fill(const FillStages& order) {
  if (!now || order.epoch != now->plan->epoch)
    return Error{ErrorCode::stale_epoch, "no plan of that epoch is adopted"};
  caf::scoped_actor asker{self->system()};
  Status result;
  for (const caf::actor& stage : now->stage_actors)
    asker->request(stage, std::chrono::minutes{10}, order)
        .receive([](const Ready&) {},
                 [&](caf::error& error) {
                   if (result) result = from_caf(error, self->system());
                 });
  return result;
}

/// Nobody may touch a stage's memory when it is freed: first the actors, then links, then devices.
void NodeState::close() {
  if (!now) return;
  for (const auto& [device, actor] : now->device_actors) now->hub->detach(device);
  caf::scoped_actor waiter{self->system()};
  std::vector<caf::actor> actors = now->stage_actors;
  for (const auto& [device, actor] : now->device_actors) actors.push_back(actor);
  for (const caf::actor& actor : {now->data, now->trace, now->storage})
    if (actor) actors.push_back(actor);
  for (const auto& [device, hardware] : now->hardware) hardware->drain();
  for (const caf::actor& actor : actors) {
    waiter->monitor(actor);
    waiter->send_exit(actor, caf::exit_reason::user_shutdown);
  }
  for (std::size_t left = actors.size(); left > 0; --left) {
    bool gone = false;
    waiter->receive([&](const caf::down_msg&) { gone = true; }, caf::after(stop_timeout) >> [] {});
    if (!gone) break;  // it keeps what it holds alive
  }
  actors.clear();
  now->hub->set_remote(nullptr);
  now->remote.reset();
  // An action that was on its way into a queue has run by now, or will not.
  for (const auto& [device, hardware] : now->hardware) hardware->drain();
  now->device_actors.clear();
  now->stage_actors.clear();
  now->data = now->trace = now->storage = nullptr;
  now->hub.reset();
  now->runners.clear();
  now->workspaces.clear();
  now.reset();
}

template <class Reply>
caf::result<Reply> answer(Result<Reply> result) {
  if (!result) return to_caf(result.error());
  return std::move(*result);
}

caf::behavior node_actor(ActorOf<NodeState>* self, NodeActorSetup setup) {
  NodeState& state = self->state;
  state.self = self;
  state.setup = std::move(setup);
  self->set_exit_handler([&state, self](const caf::exit_msg& message) {
    state.close();
    self->quit(message.reason);
  });
  const auto ready = [&state](PlanEpoch epoch, std::uint64_t step,
                              const Status& status) -> caf::result<Ready> {
    if (!status) return to_caf(status.error());
    return Ready{epoch, step, state.process};
  };
  return {
      [&state](const DocumentPart& part) { state.take(part); },
      [&state](const MeasureDevices& order) -> caf::result<Measured> {
        return answer(state.measure(order));
      },
      [&state](const AdoptPlan& order) -> caf::result<PlanAdopted> {
        auto adopted = state.adopt(order);
        if (!adopted) state.close();
        return answer(std::move(adopted));
      },
      [&state, ready](const ConnectPeers& order) -> caf::result<Ready> {
        return ready(order.epoch, order.step, state.connect(order));
      },
      [&state, ready](const FillStages& order) -> caf::result<Ready> {
        return ready(order.epoch, order.step, state.fill(order));
      },
      [&state, self](const WriteShards& order) -> caf::result<ShardsWritten> {
        if (!state.now || order.epoch != state.now->plan->epoch)
          return to_caf(Error{ErrorCode::stale_epoch, "no plan of that epoch is adopted"});
        // Asked from here and not delegated: storage is detached and must stay unknown elsewhere.
        auto promise = self->make_response_promise();
        self->request(state.now->storage, caf::infinite, order)
            .then([promise](const ShardsWritten& written) mutable { promise.deliver(written); },
                  [promise](caf::error& error) mutable { promise.deliver(std::move(error)); });
        return caf::delegated<ShardsWritten>{};
      },
      [&state, self, ready](const CloseNode& order) -> caf::result<Ready> {
        state.close();
        if (order.leave) self->quit();
        return ready(order.epoch, order.step, {});
      },
  };
}

}  // namespace

caf::actor spawn_node_actor(caf::actor_system& system, NodeActorSetup setup) {
  // Not detached: a detached actor that other processes know may keep the system from ending, as
  // its thread waits for the last reference to it. It blocks one worker while it sets up, opens and
  // closes, when the others have nothing to do (SystemConfig has three).
  return system.spawn(node_actor, std::move(setup));
}

}  // namespace troupe
