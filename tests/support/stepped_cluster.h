/// Devices and links on test time under CAF's test scheduler: real run, device, data and trace
/// actors; hardware and wires that only let time pass. Everything happens in the calling thread.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <utility>
#include <vector>

#include "actors/device_program.h"
#include "actors/interfaces.h"
#include "actors/system_config.h"

#include <caf/scheduler/test_coordinator.hpp>

#include "tests/support/run_fixture.h"

namespace troupe::test {

/// A queue of things that happen at given times.
class TestTime {
 public:
  Seconds now() const { return now_; }
  void at(Seconds time, std::function<void()> call) {
    due_.push({time, order_++, std::move(call)});
  }
  /// Lets the earliest thing happen; false: there is nothing more.
  bool step() {
    if (due_.empty()) return false;
    const Due next = due_.top();
    due_.pop();
    now_ = next.time;
    next.call();
    return true;
  }

 private:
  struct Due {
    Seconds time;
    std::uint64_t order;
    std::function<void()> call;
    bool operator<(const Due& other) const {
      return time != other.time ? time > other.time : order > other.order;
    }
  };
  std::priority_queue<Due> due_;
  std::uint64_t order_ = 0;
  Seconds now_ = 0;
};

/// Items take their modelled time, in order; bodies do not run.
class TimedDevice final : public Device {
 public:
  TimedDevice(DeviceSpec spec, TestTime& time)
      : spec_(std::move(spec)),
        arena_(spec_.name, spec_.memory, Arena::Backing::counting),
        time_(time) {}
  const DeviceSpec& spec() const override { return spec_; }
  Arena& arena() override { return arena_; }
  void drain() override {}
  void submit(Work work) override {
    const Seconds begin = std::max(free_at_, time_.now());
    free_at_ = begin + work.modelled;
    time_.at(free_at_, [begin, end = free_at_, done = std::move(work.done)] {
      if (done) done({begin, end});
    });
  }

 private:
  DeviceSpec spec_;
  Arena arena_;
  TestTime& time_;
  Seconds free_at_ = 0;
};

/// Transfers take the given time once they are granted and sent.
class TimedLinks final : public LinkPort {
 public:
  TimedLinks(TestTime& time, ActionSeconds seconds) : time_(time), seconds_(std::move(seconds)) {}
  std::map<DeviceId, LinkSink> sinks;
  std::uint64_t sent = 0;

  void grant(const Grant& grant) override {
    LinkEvent event = event_of(LinkEvent::Kind::granted, grant.key, grant.from, grant.to);
    sinks.at(grant.from)(event);
    const auto parked = parked_.find(grant.key);
    grants_[grant.key] = grant;
    if (parked == parked_.end()) return;
    const Transfer transfer = parked->second;
    parked_.erase(parked);
    start(transfer);
  }
  void send(const Transfer& transfer) override {
    if (grants_.count(transfer.key) == 0)
      parked_[transfer.key] = transfer;
    else
      start(transfer);
  }

 private:
  void start(const Transfer& transfer) {
    ++sent;
    const Grant grant = grants_.at(transfer.key);
    grants_.erase(transfer.key);
    const Seconds begin = time_.now();
    const Seconds end = begin + seconds_(transfer.key.action);
    time_.at(end, [this, transfer, grant, begin, end] {
      LinkEvent event =
          event_of(LinkEvent::Kind::arrived, transfer.key, transfer.from, transfer.to);
      event.data = grant.data;
      event.begin = begin;
      event.end = end;
      sinks.at(transfer.to)(event);
      event.kind = LinkEvent::Kind::delivered;
      sinks.at(transfer.from)(event);
    });
  }
  TestTime& time_;
  ActionSeconds seconds_;
  std::map<TransferKey, Grant> grants_;
  std::map<TransferKey, Transfer> parked_;
};

class SteppedConfig : public SystemConfig {
 public:
  SteppedConfig() { set("scheduler.policy", caf::atom("testing")); }
};

class SteppedCluster {
 public:
  using MakeActor = std::function<caf::actor(caf::actor_system&)>;
  /// `make_data`: what stands for the data actor.
  SteppedCluster(const RunSpec& spec,
                 const Plan& plan,
                 const ActionSeconds& seconds,
                 const MakeActor& make_data = {})
      : spec_(spec),
        plan_(std::make_shared<const Plan>(plan)),
        links_(std::make_shared<TimedLinks>(time_, seconds)) {
    const auto evaluation = std::make_shared<const Schedule>(evaluation_schedule(plan_->schedule));
    const auto tokens = std::make_shared<RandomTokens>(spec.model, spec.shape);
    run_ = spawn_run_actor(system_);
    data_ = make_data ? make_data(system_) : spawn_data_actor(system_, tokens, false);
    trace_ = spawn_trace_actor(system_, run_);
    for (std::uint32_t s = 0; s < plan_->stages.size(); ++s) {
      const DeviceId device = plan_->stages[s].device;
      if (hardware_.count(device) == 0)
        hardware_[device] =
            std::make_shared<TimedDevice>(spec.cluster.devices.at(device.index()), time_);
      auto runner = StageRunner::create(*hardware_[device], *plan_, spec.cluster, StageId{s},
                                        {spec.optimizer, spec.seed}, nullptr);
      EXPECTS(runner.ok());
      runners_.push_back(std::move(*runner));
    }
    for (const auto& [device, hardware] : hardware_) {
      DeviceActorSetup setup;
      setup.plan = plan_;
      setup.evaluation = evaluation;
      setup.device = device;
      setup.hardware = hardware;
      for (const auto& runner : runners_)
        if (plan_->stages[runner->id().index()].device == device) setup.runners.push_back(runner);
      setup.links = links_;
      setup.modelled = seconds;
      setup.run = run_;
      setup.data = data_;
      setup.trace = trace_;
      const caf::actor actor = spawn_device_actor(system_, std::move(setup));
      links_->sinks[device] = [actor](LinkEvent event) {
        caf::anon_send(actor, LinkNews{std::move(event)});
      };
      devices_.push_back({device, actor});
    }
  }
  ~SteppedCluster() {
    links_->sinks.clear();
    for (const DeviceHandle& device : devices_)
      caf::anon_send_exit(device.actor, caf::exit_reason::kill);
    for (const caf::actor& actor : {run_, data_, trace_})
      caf::anon_send_exit(actor, caf::exit_reason::kill);
    scheduler().run();
  }

  /// Runs steps [1, last] and returns what the run actor told.
  std::vector<RunNews> run_steps(std::uint64_t last, std::uint64_t trace_step) {
    auto setup = std::make_shared<RunActorSetup>();
    setup->plan = plan_;
    setup->optimizer = spec_.optimizer;
    setup->learning_rate = spec_.learning_rate;
    setup->last_step = last;
    setup->state_hash_every = 0;
    setup->evaluation_batches = spec_.evaluation.batches;
    setup->trace_step = trace_step;
    setup->devices = devices_;
    setup->data = data_;
    setup->observer = caf::actor_cast<caf::actor>(self_.ptr());
    self_->send(run_, StartRun{plan_->epoch, 0, std::move(setup)});
    scheduler().run();
    while (time_.step()) scheduler().run();
    std::vector<RunNews> news;
    while (!self_->mailbox().empty())
      self_->receive([&](const RunNews& one) { news.push_back(one); });
    return news;
  }
  caf::scheduler::test_coordinator& scheduler() {
    return dynamic_cast<caf::scheduler::test_coordinator&>(system_.scheduler());
  }
  /// Hands a message to the actor of a device.
  template <class Message>
  void tell(DeviceId device, const Message& message) {
    for (const DeviceHandle& one : devices_)
      if (one.device == device) self_->send(one.actor, message);
    scheduler().run();
  }
  TimedLinks& links() { return *links_; }
  Seconds now() const { return time_.now(); }

 private:
  RunSpec spec_;
  std::shared_ptr<const Plan> plan_;
  SteppedConfig config_;
  caf::actor_system system_{config_};
  caf::scoped_actor self_{system_};
  TestTime time_;
  std::shared_ptr<TimedLinks> links_;
  caf::actor run_, data_, trace_;
  std::map<DeviceId, std::shared_ptr<Device>> hardware_;
  std::vector<std::shared_ptr<StageRunner>> runners_;
  std::vector<DeviceHandle> devices_;
};

}  // namespace troupe::test
