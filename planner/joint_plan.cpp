#include "planner/joint_plan.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "planner/device_kinds.h"
#include "planner/plan_choice.h"
#include "planner/step_costs.h"
#include "planner/virtual_workers.h"

namespace troupe {
namespace {

constexpr Seconds never = std::numeric_limits<Seconds>::infinity();
/// Of so many devices, all groupings.
constexpr std::size_t few_devices = 5;
/// Up to so many microbatches, pipelines are made for every share of them.
constexpr std::uint32_t few_microbatches = 16;
/// Beyond so many devices, pipelines take long: few groupings, and no second look.
constexpr std::size_t many_devices = 64;

using Group = std::vector<std::uint32_t>;  ///< devices
using Grouping = std::vector<Group>;

// ---- groupings ----

/// Every way to divide `count` devices.
void add_all(std::size_t count, std::vector<Grouping>& out) {
  Grouping made;
  const std::function<void(std::uint32_t)> place = [&](std::uint32_t device) {
    if (device == count) return out.push_back(made);
    for (std::size_t g = 0; g <= made.size() && g < count; ++g) {
      const bool fresh = g == made.size();
      if (fresh) made.emplace_back();
      made[g].push_back(device);
      place(device + 1);
      made[g].pop_back();
      if (fresh) made.pop_back();
      if (fresh) break;
    }
  };
  place(0);
}

/// Runs of equal length of devices in this order.
Grouping runs(const Group& order, std::size_t groups) {
  Grouping out(groups);
  for (std::size_t i = 0; i < order.size(); ++i) out[i * groups / order.size()].push_back(order[i]);
  return out;
}

/// Dealt one by one; there and back: the quickest beside the slowest.
Grouping dealt(const Group& order, std::size_t groups, bool there_and_back) {
  Grouping out(groups);
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::size_t at = i % groups;
    const bool back = there_and_back && (i / groups) % 2 == 1;
    out[back ? groups - 1 - at : at].push_back(order[i]);
  }
  return out;
}

/// Runs of about equal speed.
Grouping runs_of_speed(const Group& order, const std::vector<double>& speed, std::size_t groups) {
  double all = 0, done = 0;
  for (const std::uint32_t d : order) all += speed[d];
  Grouping out(groups);
  for (const std::uint32_t d : order) {
    const double middle = done + speed[d] / 2;
    done += speed[d];
    out[std::min(groups - 1, static_cast<std::size_t>(middle / all * static_cast<double>(groups)))]
        .push_back(d);
  }
  std::erase_if(out, [](const Group& group) { return group.empty(); });
  return out;
}

std::vector<Grouping> groupings_of(const ClusterSpec& cluster,
                                   const std::vector<std::uint32_t>& kinds,
                                   const std::vector<double>& speed) {
  const std::size_t count = cluster.devices.size();
  std::vector<Grouping> out;
  if (count <= few_devices) {
    add_all(count, out);
    return out;
  }
  Group by_node(count), by_speed(count), by_kind(count);
  std::iota(by_node.begin(), by_node.end(), 0u);
  by_speed = by_kind = by_node;
  const auto node = [&](std::uint32_t d) { return cluster.devices[d].node.value; };
  std::stable_sort(by_node.begin(), by_node.end(),
                   [&](auto a, auto b) { return node(a) < node(b); });
  std::stable_sort(by_speed.begin(), by_speed.end(),
                   [&](auto a, auto b) { return speed[a] > speed[b]; });
  std::stable_sort(by_kind.begin(), by_kind.end(), [&](auto a, auto b) {
    return std::pair(kinds[a], node(a)) < std::pair(kinds[b], node(b));
  });
  std::map<std::uint32_t, Group> nodes, kind_groups;
  for (std::uint32_t d = 0; d < count; ++d) {
    nodes[node(d)].push_back(d);
    kind_groups[kinds[d]].push_back(d);
  }
  out.push_back({by_node});
  for (const auto* groups : {&nodes, &kind_groups}) {
    Grouping made;
    for (const auto& [key, group] : *groups) made.push_back(group);
    out.push_back(std::move(made));
  }
  std::set<std::size_t> sizes{nodes.size(), count};
  for (std::size_t r = 2; r < count; r *= 2) sizes.insert(r);
  for (const std::size_t r : sizes) {
    if (r < 2 || (count > many_devices && r != nodes.size())) continue;
    out.push_back(runs(by_node, r));
    out.push_back(dealt(by_kind, r, false));
    out.push_back(dealt(by_speed, r, true));
    out.push_back(runs_of_speed(by_speed, speed, r));
  }
  return out;
}

// ---- one shape of a step ----

class ShapeSearch {
 public:
  ShapeSearch(const ModelSpec& model,
              const ClusterSpec& cluster,
              const ModelProfile& profile,
              const PlanOptions& options,
              StageFreedom freedom)
      : model_(model),
        cluster_(cluster),
        profile_(profile),
        options_(options),
        freedom_(freedom),
        all_(options.shape.microbatch_count),
        every_share_(cluster.devices.size() <= few_devices && all_ <= few_microbatches),
        exact_(every_share_),
        kinds_(device_kinds(cluster)) {
    for (const DeviceSpec& device : cluster.devices) {
      const LayerSeconds one = layer_seconds(device, profile.block, options.shape.compute);
      speed_.push_back(1 /
                       std::max(one.forward + one.backward_input + one.backward_weight, 1e-300));
    }
  }

  std::optional<JointPlan> run() {
    std::set<std::vector<std::vector<std::uint64_t>>> seen;
    for (const Grouping& grouping : groupings_of(cluster_, kinds_, speed_)) {
      std::vector<std::vector<std::uint64_t>> alike;
      for (const Group& group : grouping) alike.push_back(signature(group));
      std::sort(alike.begin(), alike.end());
      if (!seen.insert(alike).second) continue;
      ++groupings_;
      consider(grouping);
    }
    if (!best_) return std::nullopt;
    best_->groupings = groupings_;
    best_->exact = exact_;
    best_->runner_up = runner_up_ < never ? runner_up_ : 0;
    return std::move(best_);
  }

 private:
  /// Devices as far as anything tells them apart.
  std::uint64_t class_of(std::uint32_t device) const {
    if (!cluster_.overrides.empty()) return device;
    return std::uint64_t{kinds_[device]} << 32 | cluster_.devices[device].node.value;
  }
  Group sorted(Group group) const {
    std::stable_sort(group.begin(), group.end(),
                     [&](auto a, auto b) { return class_of(a) < class_of(b); });
    return group;
  }
  /// Equal for groups whose pipelines are: nodes are numbered as they appear, and told apart by
  /// whether they have a process of their own.
  std::vector<std::uint64_t> signature(const Group& group) const {
    std::vector<std::uint64_t> out;
    std::map<std::uint32_t, std::uint64_t> nodes;
    for (const std::uint32_t device : sorted(group)) {
      if (!cluster_.overrides.empty()) {
        out.push_back(device);
        continue;
      }
      const NodeId node = cluster_.devices[device].node;
      const std::uint64_t number = nodes.try_emplace(node.value, nodes.size()).first->second;
      out.push_back(std::uint64_t{kinds_[device]} << 32 | number << 1 |
                    (cluster_.nodes[node.index()].own_process ? 1 : 0));
    }
    return out;
  }

  /// The best pipeline of a group for so many microbatches, its devices by their place in the
  /// sorted group.
  const std::optional<ChosenPipeline>& pipeline(const Group& group, std::uint32_t microbatches) {
    const auto [known, fresh] = pipelines_.try_emplace({signature(group), microbatches});
    if (fresh) {
      PlanOptions options = options_;
      options.shape.microbatch_count = microbatches;
      known->second =
          choose_pipeline(model_, part_of(cluster_, sorted(group)), profile_, options, freedom_);
      if (known->second) exact_ = exact_ && known->second->exact;
    }
    return known->second;
  }

  /// Of a replica: its pipelines were made for `made_for` microbatches.
  struct Replica {
    const Group* group = nullptr;
    const ChosenPipeline* pipeline = nullptr;
    ClusterSpec part;
    std::uint32_t made_for = 0, share = 0;
  };

  /// The step of a replica with so many microbatches.
  Seconds seconds(Replica& replica, std::uint32_t microbatches) {
    if (microbatches == 0) return 0;
    const bool enough =
        replica.pipeline != nullptr &&
        (microbatches <= replica.made_for || replica.made_for >= replica.pipeline->stages.size());
    if (every_share_ || !enough) {
      const auto& made = pipeline(*replica.group, microbatches);
      if (every_share_) return made ? made->step : never;
      if (!made) return never;
      replica.pipeline = &*made;
      replica.made_for = microbatches;
    }
    return step_with(*replica.pipeline, model_, replica.part, profile_, options_, microbatches);
  }

  /// One microbatch after the other to the replica that ends soonest with it: as a replica's step
  /// never falls with more of them, the slowest ends as soon as can be.
  bool share_out(std::vector<Replica>& replicas) {
    for (Replica& one : replicas) one.share = 0;
    std::vector<Seconds> next;
    for (Replica& one : replicas) next.push_back(seconds(one, 1));
    for (std::uint32_t m = 0; m < all_; ++m) {
      const auto first =
          static_cast<std::size_t>(std::min_element(next.begin(), next.end()) - next.begin());
      if (next[first] == never) return false;
      ++replicas[first].share;
      next[first] = seconds(replicas[first], replicas[first].share + 1);
    }
    return true;
  }

  void consider(const Grouping& grouping) {
    std::vector<Replica> replicas;
    const auto groups = static_cast<std::uint32_t>(grouping.size());
    for (const Group& group : grouping) {
      const std::uint32_t first = (all_ + groups - 1) / groups;
      const auto& made = pipeline(group, first);
      Replica replica{&group, made ? &*made : nullptr, part_of(cluster_, sorted(group)), first, 0};
      if (made || every_share_) replicas.push_back(std::move(replica));
    }
    if (replicas.empty()) return;
    if (groups == 1) {
      replicas.front().share = all_;
      return offer(replicas);
    }
    const int looks = every_share_ || cluster_.devices.size() > many_devices ? 1 : 2;
    for (int look = 0; look < looks; ++look) {
      if (!share_out(replicas)) return;
      offer(replicas);
      for (Replica& one : replicas) {
        if (one.share == 0) continue;
        const auto& again = pipeline(*one.group, one.share);
        if (!again) continue;
        one.pipeline = &*again;
        one.made_for = one.share;
      }
    }
    if (looks > 1) offer(replicas);
  }

  void offer(std::vector<Replica>& replicas) {
    JointPlan made;
    made.shape = options_.shape;
    for (Replica& one : replicas) {
      if (one.share == 0) continue;
      const Seconds step = seconds(one, one.share);
      if (step == never) return;
      JointReplica out{every_share_ ? *pipeline(*one.group, one.share) : *one.pipeline, one.share,
                       step};
      const Group members = sorted(*one.group);
      for (StagePlan& stage : out.pipeline.stages)
        stage.device = DeviceId{members[stage.device.index()]};
      made.step = std::max(made.step, step);
      made.replicas.push_back(std::move(out));
    }
    made.exchange = exchange(made.replicas);
    made.step += made.exchange;
    if (best_ && made.step >= best_->step) {
      if (made.step > best_->step * (1 + 1e-9)) runner_up_ = std::min(runner_up_, made.step);
      return;
    }
    if (best_ && best_->step > made.step * (1 + 1e-9))
      runner_up_ = std::min(runner_up_, best_->step);
    best_ = std::move(made);
  }

  Seconds exchange(const std::vector<JointReplica>& replicas) const {
    std::vector<VirtualWorker> workers;
    for (const JointReplica& replica : replicas) {
      VirtualWorker& worker = workers.emplace_back();
      for (const StagePlan& stage : replica.pipeline.stages)
        worker.stages.push_back({stage.device.value, stage.layers.first, stage.layers.last});
    }
    WorkerCosts costs;
    for (std::uint32_t l = 0; l < layer_count(model_); ++l) {
      WorkerLayer layer;
      layer.gradient_bytes = static_cast<double>(profile_.layer(model_, l).gradient_bytes);
      costs.layers.push_back(layer);
    }
    return exchange_seconds(worker_cluster(cluster_), costs, workers);
  }

  const ModelSpec& model_;
  const ClusterSpec& cluster_;
  const ModelProfile& profile_;
  const PlanOptions& options_;
  StageFreedom freedom_;
  std::uint32_t all_;  ///< microbatches
  bool every_share_;   ///< pipelines are made for every number of microbatches
  bool exact_;
  std::vector<std::uint32_t> kinds_;
  std::vector<double> speed_;
  std::map<std::pair<std::vector<std::uint64_t>, std::uint32_t>, std::optional<ChosenPipeline>>
      pipelines_;
  std::optional<JointPlan> best_;
  Seconds runner_up_ = never;
  std::size_t groupings_ = 0;
};

}  // namespace

bool JointPlan::trains() const {
  return replicas.size() == 1 &&
         std::all_of(replicas.front().pipeline.points.begin(),
                     replicas.front().pipeline.points.end(),
                     [](const StagePoint& point) { return point.choices.resident(); });
}

ClusterSpec part_of(const ClusterSpec& cluster, const std::vector<std::uint32_t>& members) {
  ClusterSpec part = cluster;
  part.devices.clear();
  part.overrides.clear();
  part.disturbances.clear();
  std::vector<std::uint64_t> here(cluster.nodes.size()), all(cluster.nodes.size());
  for (const DeviceSpec& device : cluster.devices) ++all[device.node.index()];
  std::map<std::uint32_t, std::uint32_t> place;
  for (const std::uint32_t member : members) {
    place[member] = static_cast<std::uint32_t>(part.devices.size());
    part.devices.push_back(cluster.devices.at(member));
    ++here[part.devices.back().node.index()];
  }
  for (std::size_t n = 0; n < part.nodes.size(); ++n) {
    if (here[n] == 0 || here[n] == all[n]) continue;
    NodeSpec& node = part.nodes[n];
    const double share = static_cast<double>(here[n]) / static_cast<double>(all[n]);
    node.host.memory = node.host.memory / all[n] * here[n];
    node.disk.space = node.disk.space / all[n] * here[n];
    for (BytesPerSecond* rate : {&node.host.memory_rate, &node.disk.read, &node.disk.write})
      *rate *= share;
  }
  for (const auto& [ends, link] : cluster.overrides)
    if (place.count(ends.first) > 0 && place.count(ends.second) > 0)
      part.overrides[{place[ends.first], place[ends.second]}] = link;
  return part;
}

std::optional<JointPlan> joint_plan(const ModelSpec& model,
                                    const ClusterSpec& cluster,
                                    const ModelProfile& profile,
                                    const PlanOptions& options,
                                    const ProfileAt& profile_at,
                                    StageFreedom freedom) {
  std::optional<JointPlan> best;
  const bool open = options.choose_microbatches && profile_at;
  for (const StepShape& shape : open ? tried_shapes(options.shape) : std::vector{options.shape}) {
    const ModelProfile own = shape == options.shape ? profile : profile_at(shape);
    const ClusterSpec at_shape = with_microbatches(cluster, profile, own, shape.microbatch_size);
    // That bound lets no more devices work than there are layers.
    if (best && cluster.devices.size() <= layer_count(model) &&
        least_step(model, at_shape, own, shape) >= best->step)
      continue;
    PlanOptions with = options;
    with.shape = shape;
    auto found = ShapeSearch(model, at_shape, own, with, freedom).run();
    if (!found) continue;
    if (best && best->step <= found->step) {
      if (best->runner_up == 0 || found->step < best->runner_up) best->runner_up = found->step;
      continue;
    }
    if (best && (found->runner_up == 0 || best->step < found->runner_up))
      found->runner_up = best->step;
    best = std::move(found);
  }
  return best;
}

}  // namespace troupe
