#include "actors/run_session.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <caf/io/all.hpp>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <utility>

#include "actors/changed_settings.h"
#include "actors/checkpoint/checkpoint.h"
#include "actors/run_session_ask.h"
#include "actors/run_spec_json.h"
#include "devices/zmq_link.h"
#include "kernels/stage.h"
#include "planner/step_costs.h"

namespace troupe {
namespace {

constexpr Seconds start_timeout = 60;   // from a started process to its first message
constexpr Seconds build_timeout = 600;  // allocation, first touch, reading a checkpoint

std::string own_program() {
  std::string path(4096, '\0');
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size());
  path.resize(length > 0 ? static_cast<std::size_t>(length) : 0);
  return path;
}

}  // namespace

RunSession::RunSession(caf::actor_system& system,
                       RunSpec spec,
                       const RunCallbacks& callbacks,
                       const RunOptions& options)
    : system_(system),
      spec_(std::move(spec)),
      callbacks_(callbacks),
      options_(options),
      self_(system) {
  spec_.cluster.copy_between_devices |= spec_.copy_between_devices;
}

RunSession::~RunSession() {
  close();
}

void RunSession::event(const std::string& kind, const std::string& text) {
  if (callbacks_.on_event)
    callbacks_.on_event({kind, text, committed_, std::chrono::system_clock::now()});
}

// ---- children ----

std::optional<Error> RunSession::dead_child() {
  for (NodeProcess& child : children_)
    if (const auto how = child.ended()) {
      const std::string lines = child.last_lines();
      return Error{ErrorCode::peer_lost,
                   fmt::format("node {} (pid {}) ended: {}{}{}", child.node(), child.pid(), *how,
                               lines.empty() ? "" : "; the last lines of its log:\n", lines)};
    }
  return std::nullopt;
}

Error RunSession::explain(Error error) {
  if (error.code != ErrorCode::peer_lost && error.code != ErrorCode::timeout) return error;
  // The exit status of a child may come a moment after its connection broke. A deadline that passed
  // has nothing to do with that.
  const int looks = error.code == ErrorCode::peer_lost ? 10 : 2;
  for (int look = 0; look < looks; ++look) {
    if (const auto dead = dead_child()) {
      if (error.text.find(dead->text) == std::string::npos)
        error.text += fmt::format("\n{}\nAll other nodes were stopped as a result.", dead->text);
      error.code = ErrorCode::peer_lost;
      return error;
    }
    if (children_.empty()) return error;
    (void)children_.front().wait(0.05);
  }
  return error;
}

// ---- opening ----

Status RunSession::open_nodes() {
  Member here;
  here.name = fmt::format("the run's own process (pid {})", getpid());
  std::vector<std::string> awaited;
  for (const NodeSpec& node : spec_.cluster.nodes)
    (node.own_process ? awaited : here.nodes).push_back(node.name);
  if (!here.nodes.empty()) {
    NodeActorSetup setup;
    setup.nodes = here.nodes;
    // Where microbatches are chosen, the node opens them itself when they are.
    if (options_.tokens || !spec_.plan.choose_microbatches) setup.source = tokens_;
    setup.link = options_.link;
    local_ = spawn_node_actor(system_, std::move(setup));
    here.agent = local_;
    members_.push_back(here);
  }
  if (awaited.empty()) return {};
  TROUPE_TRY(open_door(awaited));
  TROUPE_TRY(start_children());
  return await_joins(awaited);
}

Status RunSession::open_door(const std::vector<std::string>& awaited) {
  if (!is_loopback(spec_.listen_host))
    return Error{ErrorCode::invalid_input,
                 fmt::format("listen_host \"{}\" is not a loopback address; without keys Troupe "
                             "listens on this machine only: use 127.0.0.1",
                             spec_.listen_host)};
  DoorActorSetup setup;
  setup.nodes = awaited;
  setup.build = build_text();
  setup.observer = caf::actor_cast<caf::actor>(self_.ptr());
  door_ = spawn_door_actor(system_, std::move(setup));
  // Reused: connections of a run that was killed may wait on this port for a minute.
  const auto port =
      system_.middleman().publish(door_, spec_.listen_port, spec_.listen_host.c_str(), true);
  if (!port)
    return Error{ErrorCode::io,
                 fmt::format("cannot listen on {}:{}: {}", spec_.listen_host, spec_.listen_port,
                             from_caf(port.error(), system_).text)};
  door_port_ = *port;
  event("listening", fmt::format("{}:{}", spec_.listen_host, door_port_));
  return {};
}

Status RunSession::start_children() {
  const std::string program = options_.node_program.empty() ? own_program() : options_.node_program;
  for (std::uint32_t n = 0; n < spec_.cluster.nodes.size(); ++n) {
    const NodeSpec& node = spec_.cluster.nodes[n];
    const auto& joining = spec_.joining_nodes;
    if (!node.own_process || std::find(joining.begin(), joining.end(), NodeId{n}) != joining.end())
      continue;
    auto child =
        NodeProcess::start(program,
                           {"node", "--join", fmt::format("{}:{}", spec_.listen_host, door_port_),
                            "--name", node.name},
                           node.name);
    if (!child) return child.error();
    children_.push_back(std::move(*child));
  }
  return {};
}

Status RunSession::await_joins(const std::vector<std::string>& awaited) {
  std::set<std::string> missing(awaited.begin(), awaited.end());
  // People and batch systems start nodes when they can; what this process started comes at once.
  const Seconds patience = spec_.joining_nodes.empty() ? start_timeout : spec_.join_timeout;
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(patience);
  while (!missing.empty()) {
    self_->receive(
        [&](const NodeJoined& joined) {
          Member member;
          member.process = static_cast<std::uint32_t>(members_.size());
          member.name = fmt::format("node {} (pid {})", joined.hello.node, joined.hello.pid);
          member.nodes = {joined.hello.node};
          member.remote = true;
          member.agent = joined.hello.agent;
          members_.push_back(member);
          missing.erase(joined.hello.node);
          event("node_joined", member.name);
        },
        caf::after(look_interval) >> [] {});
    if (const auto dead = dead_child()) return *dead;
    if (callbacks_.should_stop && callbacks_.should_stop())
      return Error{ErrorCode::cancelled, "stopped while waiting for nodes"};
    if (!missing.empty() && std::chrono::steady_clock::now() >= until)
      return Error{ErrorCode::timeout,
                   fmt::format("{} did not join within {}", fmt::join(missing, ", "),
                               format_seconds(patience))};
  }
  return {};
}

// ---- planning ----

void RunSession::send_document(const std::string& name, const std::string& text) {
  const auto count =
      static_cast<std::uint32_t>((text.size() + document_part_bytes - 1) / document_part_bytes);
  for (const Member& member : members_)
    for (std::uint32_t i = 0; i < count; ++i) {
      DocumentPart part;
      part.document = name;
      part.index = i;
      part.count = count;
      part.text = text.substr(std::size_t{i} * document_part_bytes, document_part_bytes);
      self_->send(member.agent, std::move(part));
    }
}

Status RunSession::measure() {
  send_document("run", to_json(spec_));
  // One after the other: nodes may share this machine's cores.
  for (const Member& member : members_) {
    auto asked = ask<Measured>(member, build_timeout, MeasureDevices{});
    const auto reply = wait(member, asked);
    if (!reply) return reply.error();
    const auto measured = measured_from_json(reply->text);
    if (!measured) return measured.error();
    for (const auto& [device, by_size] : *measured) {
      if (device >= spec_.cluster.devices.size())
        return Error{ErrorCode::protocol,
                     fmt::format("{} measured a device d{}", member.name, device)};
      set_measured(spec_.cluster.devices[device], by_size, spec_.shape.microbatch_size);
    }
  }
  return {};
}

Status RunSession::make_the_plan() {
  auto request = std::make_shared<OwnedPlanRequest>();
  request->model = spec_.model;
  request->cluster = spec_.cluster;
  request->profile = profile_model(spec_.model, spec_.shape);
  request->options = spec_.plan;
  request->options.shape = spec_.shape;
  request->profile_at = [model = spec_.model](const StepShape& shape) {
    return profile_model(model, shape);
  };
  Result<std::shared_ptr<const Plan>> proposed = Error{ErrorCode::internal, "no plan came"};
  self_->request(planner_, std::chrono::minutes{5}, ProposePlan{PlanEpoch{1}, 0, request})
      .receive([&](const PlanProposed& made) { proposed = made.plan; },
               [&](caf::error& error) { proposed = from_caf(error, system_); });
  if (!proposed) return proposed.error();
  plan_ = *proposed;
  TROUPE_TRY(settle());
  event("plan_made",
        fmt::format("stages={} microbatches={} schedule={} predicted_step={}", plan_->stages.size(),
                    plan_->shape.microbatch_count, to_string(plan_->schedule_kind),
                    format_seconds(plan_->predicted_step)));
  if (callbacks_.on_plan) return callbacks_.on_plan(*plan_, spec_.cluster);
  return {};
}

/// What the plan chose is as if it had been written, from here on.
Status RunSession::settle() {
  const bool other_microbatches = plan_->shape != spec_.shape;
  spec_ = settled(std::move(spec_), *plan_);
  if (!other_microbatches || options_.tokens) return {};
  auto opened = open_token_source(spec_);
  if (!opened) return opened.error();
  tokens_ = std::move(*opened);
  return {};
}

bool RunSession::holds_stage(const Member& member) const {
  return std::any_of(plan_->stages.begin(), plan_->stages.end(), [&](const StagePlan& stage) {
    const NodeId node = spec_.cluster.devices.at(stage.device.index()).node;
    const std::string& name = spec_.cluster.nodes.at(node.index()).name;
    return std::find(member.nodes.begin(), member.nodes.end(), name) != member.nodes.end();
  });
}

Status RunSession::adopt() {
  send_document("run", to_json(spec_));  // with what was measured
  send_document("plan", to_json(*plan_, spec_.cluster));
  const auto holders = std::count_if(members_.begin(), members_.end(),
                                     [&](const Member& member) { return holds_stage(member); });
  std::random_device random;
  const std::uint64_t nonce = (std::uint64_t{random()} << 32) | random();
  std::vector<std::future<Result<PlanAdopted>>> asked;
  for (const Member& member : members_) {
    AdoptPlan order;
    order.epoch = plan_->epoch;
    order.process = member.process;
    order.process_count = static_cast<std::uint32_t>(members_.size());
    order.remote_links = holders > 1 && holds_stage(member);
    order.link_host = spec_.listen_host;
    order.nonce = nonce;
    order.run = run_;
    asked.push_back(ask<PlanAdopted>(member, build_timeout, order));
  }
  ConnectPeers peers;
  peers.epoch = plan_->epoch;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    auto adopted = wait(members_[i], asked[i]);
    if (!adopted) return adopted.error();
    if (adopted->data_fingerprint != tokens_->fingerprint())
      return Error{ErrorCode::invalid_input,
                   fmt::format("{} reads other data than the run: {} or the tokenizer's files have "
                               "another content there",
                               members_[i].name, fmt::join(spec_.data.files, ", "))};
    PeerAddress peer;
    peer.process = members_[i].process;
    peer.node = members_[i].name;
    peer.host = spec_.listen_host;
    peer.port = adopted->link_port;
    for (const DeviceHandle& device : adopted->devices) {
      devices_.push_back(device);
      peer.devices.push_back(device.device);
    }
    if (peer.port != 0) peers.peers.push_back(std::move(peer));
  }
  if (peers.peers.size() > 1) {
    const auto connected = ask_all<Ready>(spec_.request_timeout, peers);
    if (!connected) return connected.error();
  }
  FillStages fill;
  fill.epoch = plan_->epoch;
  fill.step = committed_;
  fill.checkpoint = spec_.checkpoint.resume_from;
  const auto filled = ask_all<Ready>(build_timeout, fill);
  if (!filled) return filled.error();
  return {};
}

Status RunSession::read_resume() {
  const std::string& folder = spec_.checkpoint.resume_from;
  if (folder.empty()) return {};
  const auto checkpoint = Checkpoint::open(folder);  // reads and compares everything once
  if (!checkpoint) return checkpoint.error();
  const RunRecord& record = checkpoint->run();
  if (record.model != spec_.model)
    return Error{ErrorCode::invalid_input,
                 fmt::format("{} holds another model than the configuration: {}", folder,
                             changed_settings(record.model, spec_.model))};
  if (record.step > 0 && record.seed != spec_.seed)
    return Error{ErrorCode::invalid_input,
                 fmt::format("{} was trained with seed {}, the configuration says {}", folder,
                             record.seed, spec_.seed)};
  if (record.step > 0 && record.data_position != record.step * spec_.shape.batch_size)
    return Error{ErrorCode::invalid_input,
                 fmt::format("{} has drawn {} samples in {} steps; a batch of {} does not continue "
                             "that, one of {} does",
                             folder, record.data_position, record.step, spec_.shape.batch_size,
                             record.data_position / record.step)};
  if (record.step >= spec_.steps)
    return Error{ErrorCode::invalid_input,
                 fmt::format("{} has done {} steps already; steps = {} asks for no more", folder,
                             record.step, spec_.steps)};
  committed_ = record.step;
  event("resumed", fmt::format("from {}", spec_.checkpoint.resume_from));
  adam_steps_ = record.adam_step;
  resumed_data_ = record.data_fingerprint;
  return {};
}

// ---- training ----

Result<RunOutcome> RunSession::run() {
  if (spec_.shape.microbatch_count > most_microbatches)
    return Error{ErrorCode::invalid_input,
                 fmt::format("{} microbatches: the losses of a step travel in one message, which "
                             "holds {}",
                             spec_.shape.microbatch_count, most_microbatches)};
  TROUPE_TRY(read_resume());
  if (options_.tokens) {
    tokens_ = options_.tokens;
  } else {
    auto opened = open_token_source(spec_);  // makes the caches before any node opens them
    if (!opened) return opened.error();
    tokens_ = std::move(*opened);
  }
  if (resumed_data_ != 0 && resumed_data_ != tokens_->fingerprint())
    event("data_changed",
          fmt::format("{} was trained on other data than {} hold now", spec_.checkpoint.resume_from,
                      fmt::join(spec_.data.files, ", ")));
  const auto trained = [this]() -> Result<RunOutcome> {
    TROUPE_TRY(open_nodes());
    TROUPE_TRY(measure());
    planner_ = spawn_planner_actor(system_);
    TROUPE_TRY(make_the_plan());
    run_ = spawn_run_actor(system_);
    data_ = spawn_data_actor(system_, tokens_);
    TROUPE_TRY(adopt());
    return train();
  };
  auto outcome = trained();
  if (!outcome) {
    const Error error = explain(outcome.error());
    event("run_failed", error.text);
    close();
    return error;
  }
  close();
  return outcome;
}

}  // namespace troupe
