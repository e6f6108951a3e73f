/// Prices candidate partitions fast: tables of stage times and bytes, one schedule per number of
/// devices. Internal to the partition search.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "planner/partition.h"
#include "planner/schedule_cursor.h"
#include "planner/simulate.h"

namespace troupe {

/// Stage s holds layers [cuts[s], cuts[s + 1]) on device order[s % order.size()].
struct Candidate {
  std::vector<std::uint32_t> order;
  std::vector<std::uint32_t> cuts;
  std::uint32_t stage_count() const { return static_cast<std::uint32_t>(cuts.size()) - 1; }
  std::uint32_t device_of(std::uint32_t stage) const { return order[stage % order.size()]; }
  friend bool operator==(const Candidate&, const Candidate&) = default;
};

class Pricer {
 public:
  Pricer(const ModelSpec& model,
         const ClusterSpec& cluster,
         const ModelProfile& profile,
         const PlanOptions& options);

  std::uint32_t layers() const { return layer_count(model_); }
  std::uint32_t device_count() const { return static_cast<std::uint32_t>(device_kind_.size()); }
  std::uint32_t chunks() const { return chunks_; }
  /// Devices with the same number are alike in rates, memory and measured times.
  std::uint32_t device_kind(std::uint32_t device) const { return device_kind_[device]; }

  /// Busy seconds of a whole step: F and B of every microbatch, N and U.
  Seconds busy(std::uint32_t device, std::uint32_t first, std::uint32_t last) const;
  /// Bytes of a stage with these layers as number `stage` over so many devices, its workspace
  /// included, without the buffers at its edges.
  Bytes stage_bytes(std::uint32_t devices,
                    std::uint32_t stage,
                    std::uint32_t first,
                    std::uint32_t last) const;
  /// The same as a function of (first, last), for loops.
  auto stage_bytes_function(std::uint32_t devices, std::uint32_t stage) const {
    const Pipeline& pipe = pipeline(devices);
    const std::uint32_t in_flight = pipe.in_flight[stage];
    const std::uint32_t deferred = pipe.deferred[stage];
    return [this, in_flight, deferred](std::uint32_t first, std::uint32_t last) {
      return bytes_held(in_flight, deferred, first, last);
    };
  }
  /// Bytes of a stage with these layers and so many microbatches in flight and deferred, its
  /// workspace included, without the buffers at its edges.
  Bytes bytes_held(std::uint32_t in_flight,
                   std::uint32_t deferred,
                   std::uint32_t first,
                   std::uint32_t last) const {
    const StageBytes& bytes = stage_table(first, last);
    return bytes.fixed + in_flight * bytes.saved + deferred * bytes.kept + bytes.workspace;
  }
  /// The same with none deferred.
  Bytes bytes_in_flight(std::uint32_t in_flight, std::uint32_t first, std::uint32_t last) const {
    return bytes_held(in_flight, 0, first, last);
  }
  /// Seconds of one action of each kind, without overhead.
  const LayerSeconds& seconds(std::uint32_t device, std::uint32_t first, std::uint32_t last) const {
    return seconds_table(device, first, last);
  }
  Bytes boundary() const;  ///< one tensor between stages, as the arena counts it
  Bytes table() const;     ///< one f32 token table, likewise
  /// By stage: the buffers at its edges.
  std::vector<Bytes> edge_bytes_of(const std::vector<std::uint32_t>& order) const;

  /// Bytes over (positive) or under (negative) its device's memory of the worst device, with the
  /// device's index and need.
  struct Fit {
    std::int64_t over = 0;
    std::uint32_t device = 0;
    Bytes needed = 0;
  };
  Fit fit(const Candidate& candidate) const;

  /// What a simulator needs of a candidate.
  StepCosts costs_of(const Candidate& candidate) const;
  /// No schedule of this kind ends the step sooner.
  Seconds lower_bound(const Candidate& candidate) const;
  Seconds simulate(const Candidate& candidate);
  /// Actions and transfers of one simulation: its cost.
  std::size_t actions(const Candidate& candidate) const;

  std::vector<StagePlan> stages_of(const Candidate& candidate) const;

 private:
  struct StageBytes {
    Bytes fixed = 0;  ///< weights, gradients, optimizer
    Bytes saved = 0;  ///< per microbatch in flight
    Bytes kept = 0;   ///< per microbatch deferred
    Bytes workspace = 0;
  };
  struct Pipeline {
    Schedule schedule;  ///< devices named 0..k-1 in order
    std::vector<std::uint32_t> in_flight, deferred;
    std::unique_ptr<ScheduleRun> run;
  };
  /// Stages with as many layers and the same ends share an entry, where blocks are alike.
  void add_entry(LayerRange range);
  std::size_t entry(std::uint32_t first, std::uint32_t last) const;
  const StageBytes& stage_table(std::uint32_t first, std::uint32_t last) const;
  const LayerSeconds& seconds_table(std::uint32_t device,
                                    std::uint32_t first,
                                    std::uint32_t last) const;
  Pipeline& pipeline(std::uint32_t devices) const;
  Seconds hop(const Candidate& candidate, std::uint32_t from, std::uint32_t to) const;

  const ModelSpec& model_;
  const ClusterSpec& cluster_;
  const ModelProfile& profile_;
  const PlanOptions& options_;
  std::uint32_t chunks_ = 1;
  std::vector<std::uint32_t> device_kind_;
  std::vector<std::uint32_t> kind_example_;
  std::vector<StageBytes> bytes_;                   ///< by entry
  std::vector<std::vector<LayerSeconds>> seconds_;  ///< by device kind, by entry
  mutable std::map<std::uint32_t, Pipeline> pipelines_;
};

}  // namespace troupe
