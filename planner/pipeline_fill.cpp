#include "planner/pipeline_fill.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <tuple>

#include "planner/step_costs.h"

namespace troupe {
namespace {

constexpr Seconds never = std::numeric_limits<Seconds>::infinity();

/// What makes a device worth keeping for the stages ahead.
enum class Worth { speed, memory };

struct Label {
  Seconds time = 0;        ///< W
  Seconds round_trip = 0;  ///< R
  double spent = 0;        ///< worth of the devices in use
  std::uint32_t before = 0, kind = 0, layers = 0;
  std::vector<std::uint16_t> used;  ///< devices by kind; empty where there are enough
};

class Filling {
 public:
  Filling(const Pricer& pricer,
          const ClusterSpec& cluster,
          const PlanOptions& options,
          bool tied,
          const StagePoints* points)
      : pricer_(pricer), cluster_(cluster), options_(options), tied_(tied), points_(points) {
    for (std::uint32_t d = 0; d < pricer.device_count(); ++d) {
      const std::uint32_t kind = pricer.device_kind(d);
      if (kind >= of_kind_.size()) of_kind_.resize(kind + 1);
      of_kind_[kind].push_back(d);
    }
    // Neighbours in the pipeline are taken from one node where that can be.
    for (auto& devices : of_kind_)
      std::stable_sort(devices.begin(), devices.end(), [&](std::uint32_t a, std::uint32_t b) {
        return cluster.devices[a].node.value < cluster.devices[b].node.value;
      });
    places_ = std::min(pricer.device_count(), pricer.layers());
    scarce_ = std::any_of(of_kind_.begin(), of_kind_.end(),
                          [&](const auto& devices) { return devices.size() < places_; });
    price_edges();
  }

  std::vector<FilledPipeline> run(std::size_t most) {
    std::vector<FilledPipeline> found;
    for (const Worth worth : {Worth::speed, Worth::memory}) {
      fill(worth, most);
      for (const auto& [place, label] : complete_)
        found.push_back({candidate_of(place, label), states_[place][0][label].time});
      if (!scarce_) break;
    }
    std::stable_sort(found.begin(), found.end(),
                     [](const auto& a, const auto& b) { return a.estimate < b.estimate; });
    std::vector<FilledPipeline> unlike;
    for (FilledPipeline& one : found)
      if (unlike.size() < most &&
          std::none_of(unlike.begin(), unlike.end(),
                       [&](const auto& known) { return known.candidate == one.candidate; }))
        unlike.push_back(std::move(one));
    return unlike;
  }

 private:
  void price_edges() {
    const std::uint32_t count = pricer_.device_count();
    bool by_reference = count > 0;
    for (std::uint32_t d = 1; d < count; ++d)
      by_reference &= cluster_.by_reference(DeviceId{0}, DeviceId{d});
    if (count > 1)
      edge_bytes_ = (by_reference ? 2 : 3) * options_.transfer_slots * pricer_.boundary();
    // Most hops of a good order stay within a node, where nodes have several devices.
    hop_ = transfer_seconds(
        count > cluster_.nodes.size() ? cluster_.same_process : cluster_.between_processes,
        pricer_.boundary());
  }

  std::uint32_t in_flight(std::uint32_t place) const {
    const std::uint32_t all = options_.shape.microbatch_count;
    return options_.schedule == ScheduleKind::gpipe ? all : std::min(place + 1, all);
  }

  Seconds round(std::uint32_t device, std::uint32_t first, std::uint32_t last) const {
    const LayerSeconds& s = pricer_.seconds(device, first, last);
    const double actions = options_.schedule == ScheduleKind::zero_bubble_h1 ? 3 : 2;
    return s.forward + s.backward_input + s.backward_weight +
           actions * cluster_.devices[device].rates.action_overhead;
  }

  /// One microbatch's time on a stage that fits; nothing where it does not.
  std::optional<Seconds> seconds_within(std::uint32_t device,
                                        std::uint32_t place,
                                        std::uint32_t first,
                                        std::uint32_t last) const {
    const bool end = first == 0 || last == pricer_.layers();
    const bool whole = first == 0 && last == pricer_.layers();
    const Bytes bytes = pricer_.bytes_in_flight(in_flight(place), first, last) +
                        (whole ? 0 : edge_bytes_) + (tied_ && end && !whole ? pricer_.table() : 0);
    const Bytes room = cluster_.devices[device].memory;
    if (bytes <= room) return round(device, first, last);
    if (points_ == nullptr) return std::nullopt;
    return tight(device, place, {first, last},
                 bytes - pricer_.bytes_in_flight(in_flight(place), first, last));
  }

  /// The same of a stage that has to leave something out, kept by what tells stages apart.
  std::optional<Seconds> tight(std::uint32_t device,
                               std::uint32_t place,
                               LayerRange layers,
                               Bytes edges) const {
    const std::uint32_t flight = in_flight(place);
    // Stages without an end of the model are told apart by their number of layers alone.
    if (points_->blocks_alike() && layers.first > 1 && layers.last < pricer_.layers())
      layers = {1, 1 + layers.size()};
    const std::tuple key{pricer_.device_kind(device), flight, layers.first, layers.last};
    const auto [known, fresh] = tight_.try_emplace(key);
    if (!fresh) return known->second;
    const std::uint32_t all = options_.shape.microbatch_count;
    const auto point = points_->quickest(DeviceId{device}, layers, flight, edges, all);
    if (!point) return std::nullopt;
    const LayerSeconds& s = point->seconds;
    known->second = s.forward + s.backward_input + s.backward_weight +
                    2 * cluster_.devices[device].rates.action_overhead +
                    (point->waits.norm + point->waits.update) / all;
    return known->second;
  }

  double worth(std::size_t kind, Worth by) const {
    const std::uint32_t device = of_kind_[kind].front();
    return by == Worth::speed ? 1 / std::max(round(device, 1, 2), 1e-300)
                              : static_cast<double>(cluster_.devices[device].memory);
  }

  void fill(Worth by, std::size_t most) {
    const std::uint32_t layers = pricer_.layers();
    states_.assign(places_ + 1, std::vector<std::vector<Label>>(layers + 1));
    complete_.clear();
    limit_ = never;
    worths_.clear();
    for (std::size_t kind = 0; kind < of_kind_.size(); ++kind) worths_.push_back(worth(kind, by));
    Label none;
    if (scarce_) none.used.resize(of_kind_.size());
    states_[0][layers].push_back(none);
    for (std::uint32_t place = 0; place < places_; ++place)
      for (std::uint32_t last = layers; last > 0; --last) {
        thin(states_[place][last]);
        for (std::uint32_t i = 0; i < states_[place][last].size(); ++i)
          extend(place, last, i, most);
      }
  }

  void extend(std::uint32_t place, std::uint32_t last, std::uint32_t index, std::size_t most) {
    const Label& from = states_[place][last][index];
    if (from.time >= limit_) return;
    const double all = options_.shape.microbatch_count;
    const double trips = std::ceil(all / in_flight(place));
    for (std::uint32_t kind = 0; kind < of_kind_.size(); ++kind) {
      if (scarce_ && from.used[kind] == of_kind_[kind].size()) continue;
      const std::uint32_t device = of_kind_[kind].front();
      for (std::uint32_t n = 1; n <= last; ++n) {
        const std::uint32_t first = last - n;
        const auto within = seconds_within(device, place, first, last);
        if (!within || all * *within >= limit_) break;
        const Seconds one = *within;
        Label next;
        const Seconds hops = place == 0 ? 0 : 2 * hop_;
        next.round_trip = from.round_trip + one + hops;
        next.time = std::max(all * one, one + hops + from.time);
        if (options_.schedule != ScheduleKind::gpipe)
          next.time = std::max(next.time, trips * next.round_trip);
        if (next.time >= limit_) continue;
        next.spent = from.spent + worths_[kind];
        next.before = index;
        next.kind = kind;
        next.layers = n;
        put(place + 1, first, std::move(next), from.used, most);
      }
    }
  }

  /// Keeps a label unless a known one is as good in time and in what it spends.
  void put(std::uint32_t place,
           std::uint32_t left,
           Label&& label,
           const std::vector<std::uint16_t>& used,
           std::size_t most) {
    auto& labels = states_[place][left];
    for (const Label& known : labels)
      if (known.time <= label.time && (!scarce_ || known.spent <= label.spent)) return;
    if (scarce_) {
      label.used = used;
      ++label.used[label.kind];
    }
    if (left > 0 && labels.size() == (scarce_ ? 4 * width : 1)) thin(labels);
    if (left > 0 && !scarce_) labels.clear();
    labels.push_back(std::move(label));
    if (left > 0) return;
    complete_.emplace_back(place, static_cast<std::uint32_t>(labels.size()) - 1);
    std::stable_sort(complete_.begin(), complete_.end(), [&](const auto& a, const auto& b) {
      return states_[a.first][0][a.second].time < states_[b.first][0][b.second].time;
    });
    if (complete_.size() > most) complete_.resize(most);
    if (complete_.size() == most)
      limit_ = states_[complete_.back().first][0][complete_.back().second].time;
  }

  /// Leaves the labels that no other beats, spread over time: the quickest and the least spending
  /// among them.
  void thin(std::vector<Label>& labels) const {
    if (labels.size() <= 1) return;
    std::stable_sort(labels.begin(), labels.end(), [](const Label& a, const Label& b) {
      return a.time < b.time || (a.time == b.time && a.spent < b.spent);
    });
    std::vector<Label> kept;
    for (Label& label : labels)
      if (kept.empty() || label.spent < kept.back().spent) kept.push_back(std::move(label));
    if (!scarce_) kept.resize(1);
    if (kept.size() > width) {
      std::vector<Label> spread;
      for (std::size_t i = 0; i < width; ++i)
        spread.push_back(std::move(kept[i * (kept.size() - 1) / (width - 1)]));
      kept = std::move(spread);
    }
    labels = std::move(kept);
  }

  /// Back along the labels; devices of a kind in order of their node, each in the node of the one
  /// before it where it has one left.
  Candidate candidate_of(std::uint32_t place, std::uint32_t label) const {
    Candidate made;
    made.cuts.push_back(0);
    std::vector<std::vector<std::uint32_t>> left = of_kind_;
    NodeId node = cluster_.devices[of_kind_[states_[place][0][label].kind].front()].node;
    for (std::uint32_t first = 0; place > 0; --place) {
      const Label& one = states_[place][first][label];
      auto& devices = left[one.kind];
      auto at = std::find_if(devices.begin(), devices.end(),
                             [&](std::uint32_t d) { return cluster_.devices[d].node == node; });
      if (at == devices.end()) at = devices.begin();
      node = cluster_.devices[*at].node;
      made.order.push_back(*at);
      devices.erase(at);
      label = one.before;
      first += one.layers;
      made.cuts.push_back(first);
    }
    return made;
  }

  /// Labels kept a state.
  static constexpr std::size_t width = 6;

  const Pricer& pricer_;
  const ClusterSpec& cluster_;
  const PlanOptions& options_;
  bool tied_;
  const StagePoints* points_;
  mutable std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t>,
                   std::optional<Seconds>>
      tight_;                                        ///< by stage
  std::vector<std::vector<std::uint32_t>> of_kind_;  ///< devices by kind
  std::uint32_t places_ = 0;                         ///< the most stages
  bool scarce_ = false;                              ///< a kind may run out
  Bytes edge_bytes_ = 0;
  Seconds hop_ = 0;
  std::vector<double> worths_;
  Seconds limit_ = never;  ///< of the least good pipeline that is still wanted
  std::vector<std::vector<std::vector<Label>>> states_;  ///< by stages made, by layers left
  std::vector<std::pair<std::uint32_t, std::uint32_t>> complete_;  ///< (stages, label)
};

}  // namespace

std::vector<FilledPipeline> filled_pipelines(const Pricer& pricer,
                                             const ClusterSpec& cluster,
                                             const PlanOptions& options,
                                             bool tied,
                                             std::size_t most,
                                             const StagePoints* points) {
  return Filling(pricer, cluster, options, tied, points).run(most);
}

}  // namespace troupe
