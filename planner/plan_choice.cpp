#include "planner/plan_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <set>

#include "planner/chosen_pipeline.h"
#include "planner/counted.h"
#include "planner/device_kinds.h"
#include "planner/partition.h"
#include "planner/plan_checks.h"
#include "planner/recompute_choice.h"
#include "planner/step_costs.h"

namespace troupe {
namespace {

/// Relative difference of step times below which the earlier choice, or fewer microbatches, win.
constexpr double same_time = 1e-9;
/// Up to so many shapes are all tried.
constexpr std::size_t few_shapes = 24;
/// Beyond so many devices a search takes long.
constexpr std::size_t few_devices = 40;
constexpr std::size_t kept_shapes = 3;

/// How a plan comes to what it computes again.
enum class Again : std::uint8_t {
  given,     ///< as the options say
  one,       ///< one policy for all blocks, from which stages with memory left depart
  by_stage,  ///< what each stage has to
};

struct ScheduleChoice {
  ScheduleKind kind = ScheduleKind::one_f_one_b;
  std::uint32_t chunks = 1;
  Again again = Again::given;
  Recompute policy = Recompute::none;  ///< of all blocks where it is `one`
};

std::uint32_t ceil_div(std::uint32_t a, std::uint32_t b) {
  return (a + b - 1) / b;
}

bool power_of_two(std::uint32_t n) {
  return (n & (n - 1)) == 0;
}

std::vector<ScheduleChoice> kinds_of(const ModelSpec& model,
                                     const ClusterSpec& cluster,
                                     const PlanOptions& options) {
  if (!options.choose_schedule) return {{options.schedule, options.chunks}};
  std::vector<ScheduleChoice> all{{ScheduleKind::one_f_one_b, 1}, {ScheduleKind::gpipe, 1}};
  if (options.choose_recompute || !computes_again(options))
    all.insert(all.begin() + 1, {ScheduleKind::zero_bubble_h1, 1});
  // Pinned stages say themselves how many a device has.
  if (!options.pinned.empty()) {
    all.push_back({ScheduleKind::interleaved, 1});
    return all;
  }
  for (std::uint32_t chunks = 2; chunks <= 4; ++chunks)
    if (cluster.devices.size() > 1 && 2 * chunks <= layer_count(model))
      all.push_back({ScheduleKind::interleaved, chunks});
  return all;
}

/// Every kind with every way to compute again that may be chosen: what takes least first.
std::vector<ScheduleChoice> schedules_of(const ModelSpec& model,
                                         const ClusterSpec& cluster,
                                         const PlanOptions& options) {
  std::vector<ScheduleChoice> kinds = kinds_of(model, cluster, options);
  if (!options.choose_recompute) return kinds;
  std::vector<ScheduleChoice> all;
  for (ScheduleChoice choice : kinds) {
    choice.again = Again::one;
    all.push_back(choice);
    if (choice.kind == ScheduleKind::zero_bubble_h1) continue;
    if (choice.kind == ScheduleKind::one_f_one_b) {
      choice.again = Again::by_stage;
      all.push_back(choice);
      continue;
    }
    for (const Recompute policy : {Recompute::selective, Recompute::full}) {
      choice.policy = policy;
      all.push_back(choice);
    }
  }
  return all;
}

/// ", computed again: 2 full | none | 1 selective", by stage.
std::string again_text(const std::vector<StagePlan>& stages, const ModelSpec& model) {
  if (!computes_again(stages)) return ", nothing computed again";
  if (const auto policy = common_policy(stages, model))
    return fmt::format(", recompute {}", to_string(*policy));
  constexpr std::size_t most_listed = 8;
  std::string text;
  for (std::size_t s = 0; s < std::min(stages.size(), most_listed); ++s)
    text += (s == 0 ? "" : " | ") + to_text(stages[s].recompute);
  return fmt::format(", computed again by stage: {}{}", text,
                     stages.size() > most_listed ? " | ..." : "");
}

/// The walk over all choices of one problem.
class ChoiceSearch {
 public:
  ChoiceSearch(const ModelSpec& model,
               const ClusterSpec& cluster,
               const ModelProfile& profile,
               const PlanOptions& options,
               const ProfileAt& profile_at)
      : model_(model), options_(options), profile_at_(profile_at) {
    const std::vector<StepShape> shapes = options.choose_microbatches && profile_at
                                              ? step_shapes(options.shape)
                                              : std::vector{options.shape};
    const std::vector<StepShape> tried = shapes.size() > 1 ? tried_shapes(options.shape) : shapes;
    exact_ = tried.size() == shapes.size();
    for (const StepShape& shape : tried) {
      AtShape at;
      at.shape = shape;
      at.profile = shape == options.shape ? profile : profile_at(shape);
      at.cluster = with_microbatches(cluster, profile, at.profile, shape.microbatch_size);
      at.bound = least_step(model, at.cluster, at.profile, shape);
      at_.push_back(std::move(at));
    }
    schedules_ = schedules_of(model, cluster, options);
  }

  Result<Plan> run() {
    std::vector<AtShape*> shapes;
    for (AtShape& at : at_) shapes.push_back(&at);
    const auto sort_by = [&shapes](auto seconds) {
      std::stable_sort(shapes.begin(), shapes.end(), [&](const AtShape* a, const AtShape* b) {
        return seconds(*a) < seconds(*b);
      });
    };
    sort_by([](const AtShape& at) { return at.bound; });
    for (const ScheduleChoice& schedule : schedules_) {
      for (AtShape* at : shapes) consider(*at, schedule);
      const bool large = at_.front().cluster.devices.size() > few_devices;
      if (!large || shapes.size() <= kept_shapes) continue;
      exact_ = false;
      sort_by([](const AtShape& at) { return at.step; });
      shapes.resize(kept_shapes);
    }
    if (!best_.at) {
      // Small microbatches under 1F1B need least, and with everything computed again that can be.
      AtShape& at = at_.back();
      ScheduleChoice least = schedules_.front();
      if (least.again != Again::given && least.kind != ScheduleKind::zero_bubble_h1)
        least.policy = Recompute::full;
      return make_plan(model_, at.cluster, at.profile, options_for(at, least), profile_at_);
    }
    const AtShape& at = *best_.at;
    PlanOptions options = options_for(at, best_.schedule);
    if (!options.pinned.empty()) options.pinned = best_.found.stages;
    auto plan = options.pinned.empty()
                    ? plan_of(best_.found, model_, at.cluster, at.profile, options)
                    : make_plan(model_, at.cluster, at.profile, options, profile_at_);
    if (plan) add_notes(*plan);
    return plan;
  }

 private:
  struct AtShape {
    StepShape shape;
    ModelProfile profile;
    ClusterSpec cluster;
    Seconds bound = 0;
    Seconds step = std::numeric_limits<Seconds>::infinity();  ///< the best found
  };
  struct Choice {
    AtShape* at = nullptr;
    ScheduleChoice schedule;
    Partition found;  ///< of pinned stages these and the step alone
    Seconds step() const { return at ? found.step : std::numeric_limits<Seconds>::infinity(); }
  };

  PlanOptions options_for(const AtShape& at, const ScheduleChoice& schedule) const {
    PlanOptions options = options_;
    options.shape = at.shape;
    options.schedule = schedule.kind;
    options.chunks = schedule.chunks;
    options.choose_microbatches = options.choose_schedule = options.choose_recompute = false;
    if (schedule.again != Again::given) set_recompute(options, schedule.policy);
    return options;
  }
  void set_recompute(PlanOptions& options, Recompute policy) const {
    options.recompute = policy;
    for (StagePlan& stage : options.pinned)
      stage.recompute = recompute_all(model_, stage.layers, policy);
  }

  /// Nothing where nothing fits, or nothing is as quick as the second best known.
  std::optional<Partition> found_at(const AtShape& at, const ScheduleChoice& schedule) {
    PlanOptions options = options_for(at, schedule);
    if (!options.pinned.empty()) {
      if (schedule.again == Again::by_stage || schedule.policy != Recompute::none) {
        // From the policy that was tried at first, stages depart where they have memory left.
        auto stages = recompute_by_stage(options.pinned, model_, at.cluster, at.profile, options);
        if (stages)
          options.pinned = std::move(*stages);
        else if (schedule.again == Again::by_stage)
          set_recompute(options, Recompute::full);
      }
      return priced(at, options);
    }
    if (schedule.again == Again::by_stage) {
      auto made = choose_pipeline(model_, at.cluster, at.profile, options, {true, false});
      if (!made || !computes_again(made->stages)) return std::nullopt;  // a choice of its own
      exact_ = exact_ && made->exact;
      Partition found;
      found.stages = std::move(made->stages);
      found.step = made->step;
      found.exact = made->exact;
      found.candidates = found.simulated = made->candidates;
      return found;
    }
    PartitionSearch search =
        search_partition(model_, at.cluster, at.profile, options, second_.step());
    exact_ = exact_ && search.complete;
    if (!search.found || schedule.policy == Recompute::none) return std::move(search.found);
    options.pinned = search.found->stages;
    auto less = recompute_by_stage(options.pinned, model_, at.cluster, at.profile, options);
    if (!less) return std::move(search.found);
    options.pinned = std::move(*less);
    const auto plan = priced(at, options);
    if (plan && plan->step < search.found->step) {
      search.found->stages = plan->stages;
      search.found->step = plan->step;
    }
    return std::move(search.found);
  }

  /// The step of pinned stages; nothing where they do not fit.
  std::optional<Partition> priced(const AtShape& at, const PlanOptions& options) const {
    auto plan = make_plan(model_, at.cluster, at.profile, options);
    if (!plan) return std::nullopt;
    Partition pinned;
    pinned.stages = std::move(plan->stages);
    pinned.step = plan->predicted_step;
    return pinned;
  }

  void consider(AtShape& at, const ScheduleChoice& schedule) {
    ++choices_;
    if (at.bound > second_.step() * (1 + same_time)) return;
    ++planned_;
    auto found = found_at(at, schedule);
    if (!found) return;
    at.step = std::min(at.step, found->step);
    Choice choice{&at, schedule, std::move(*found)};
    const auto beats = [&](const Choice& other) {
      if (other.at == nullptr || choice.step() < other.step() * (1 - same_time)) return true;
      return choice.step() <= other.step() * (1 + same_time) &&
             at.shape.microbatch_count < other.at->shape.microbatch_count;
    };
    if (beats(best_)) {
      second_ = std::move(best_);
      best_ = std::move(choice);
    } else if (beats(second_)) {
      second_ = std::move(choice);
    }
  }

  std::string choice_text(const Choice& choice) const {
    const StepShape& shape = choice.at->shape;
    return fmt::format(
        "{} of {}, schedule {}{}{}", counted(shape.microbatch_count, "microbatch"),
        shape.microbatch_size, to_string(choice.schedule.kind),
        choice.schedule.chunks > 1 ? fmt::format(" with {} chunks", choice.schedule.chunks) : "",
        options_.choose_recompute ? again_text(choice.found.stages, model_) : "");
  }

  void add_notes(Plan& plan) const {
    std::vector<PlanNote> notes;
    notes.push_back(
        {NoteKind::chosen,
         fmt::format(
             "{}, {} of {} choices{}", choice_text(best_),
             exact_ ? "the quickest" : "the quickest found", choices_,
             planned_ == choices_
                 ? std::string(", all of them planned")
                 : fmt::format(", {} of them planned, the others bound to be slower", planned_))});
    if (second_.at != nullptr)
      notes.push_back(
          {NoteKind::next_choice,
           fmt::format("{} in {} ({:+.1f} %)", choice_text(second_), format_seconds(second_.step()),
                       100 * (second_.step() / std::max(best_.step(), 1e-300) - 1))});
    plan.notes.insert(plan.notes.begin(), notes.begin(), notes.end());
  }

  const ModelSpec& model_;
  const PlanOptions& options_;
  const ProfileAt& profile_at_;
  std::vector<AtShape> at_;
  std::vector<ScheduleChoice> schedules_;
  Choice best_, second_;
  std::size_t choices_ = 0;
  std::size_t planned_ = 0;
  bool exact_ = true;  ///< every choice was planned exactly or bounded away
};

}  // namespace

std::vector<StepShape> step_shapes(const StepShape& given) {
  std::vector<StepShape> shapes;
  const std::uint32_t batch = std::max(given.batch_size, 1u);
  for (std::uint32_t size = batch;;) {
    StepShape shape = given;
    shape.microbatch_count = ceil_div(batch, size);
    shape.microbatch_size = ceil_div(batch, shape.microbatch_count);
    if (shape.microbatch_count > most_microbatches) return shapes;
    shapes.push_back(shape);
    if (shape.microbatch_size == 1) return shapes;
    size = shape.microbatch_size - 1;
  }
}

std::vector<StepShape> tried_shapes(const StepShape& given) {
  std::vector<StepShape> shapes = step_shapes(given);
  if (shapes.size() <= few_shapes) return shapes;
  // Those that people would write, and both ends.
  const StepShape last = shapes.back();
  std::erase_if(shapes, [&](const StepShape& shape) {
    return !power_of_two(shape.microbatch_count) && !power_of_two(shape.microbatch_size) &&
           shape != last;
  });
  return shapes;
}

Seconds least_step(const ModelSpec& model,
                   const ClusterSpec& cluster,
                   const ModelProfile& profile,
                   const StepShape& shape) {
  // Layers that are not alike, and how many there are of each.
  std::vector<const LayerProfile*> kinds{&profile.embedding};
  std::vector<double> layers{1};
  if (profile.blocks.empty()) {
    kinds.push_back(&profile.block);
    layers.push_back(model.blocks);
  }
  for (const LayerProfile& block : profile.blocks) {
    kinds.push_back(&block);
    layers.push_back(1);
  }
  kinds.push_back(&profile.head);
  layers.push_back(1);
  using Row = std::vector<Seconds>;  // by kind, one microbatch
  std::vector<Row> work;             // by device
  // Forward and what the stage before waits for.
  Row quickest(kinds.size(), std::numeric_limits<Seconds>::infinity());
  for (const DeviceSpec& device : cluster.devices) {
    Row& row = work.emplace_back(kinds.size());
    for (std::size_t k = 0; k < kinds.size(); ++k) {
      const LayerSeconds one = layer_seconds(device, *kinds[k], shape.compute);
      row[k] = one.forward + one.backward_input + one.backward_weight;
      quickest[k] = std::min(quickest[k], one.forward + one.backward_input);
    }
  }
  Seconds bound = 0;
  for (std::size_t k = 0; k < kinds.size(); ++k) bound += layers[k] * quickest[k];
  const auto kind_of = device_kinds(cluster);
  const std::size_t most = std::min<std::size_t>(work.size(), layer_count(model));
  std::set<std::uint32_t> seen;
  for (std::size_t d = 0; d < work.size(); ++d) {
    if (!seen.insert(kind_of[d]).second) continue;
    // A layer of each kind is priced as on this device; what a second of each device is worth.
    const Row& prices = work[d];
    std::vector<double> worth;
    for (const Row& row : work) {
      double best = 0;
      for (std::size_t k = 0; k < kinds.size(); ++k)
        if (prices[k] > 0) best = std::max(best, prices[k] / std::max(row[k], 1e-300));
      worth.push_back(best);
    }
    std::sort(worth.begin(), worth.end(), std::greater<>());
    double all = 0, bought = 0;
    for (std::size_t k = 0; k < kinds.size(); ++k) all += layers[k] * prices[k];
    for (std::size_t i = 0; i < most; ++i) bought += worth[i];
    if (bought > 0) bound = std::max(bound, shape.microbatch_count * all / bought);
  }
  return bound;
}

std::vector<std::string> choice_notes(const Plan& plan) {
  std::vector<std::string> notes;
  for (const PlanNote& note : plan.notes)
    if (note.kind == NoteKind::chosen || note.kind == NoteKind::next_choice)
      notes.push_back(to_text(note));
  return notes;
}

PlanOptions settled(PlanOptions options, const Plan& plan) {
  options.shape = plan.shape;
  if (options.choose_schedule) {
    options.schedule = plan.schedule_kind;
    std::set<DeviceId> used;
    for (const StagePlan& stage : plan.stages) used.insert(stage.device);
    options.chunks =
        options.pinned.empty() && plan.schedule_kind == ScheduleKind::interleaved
            ? static_cast<std::uint32_t>(plan.stages.size() / std::max<std::size_t>(used.size(), 1))
            : 1;
  }
  if (options.choose_recompute) {
    for (std::size_t s = 0; s < options.pinned.size() && s < plan.stages.size(); ++s)
      options.pinned[s].recompute = plan.stages[s].recompute;
    const auto policy = common_policy(plan.stages, plan.model);
    options.choose_recompute = options.pinned.empty() && !policy;
    options.recompute = policy.value_or(Recompute::full);
  }
  options.choose_microbatches = options.choose_schedule = false;
  return options;
}

Result<Plan> choose_plan(const ModelSpec& model,
                         const ClusterSpec& cluster,
                         const ModelProfile& profile,
                         const PlanOptions& options,
                         const ProfileAt& profile_at) {
  if (!options.open()) return make_plan(model, cluster, profile, options, profile_at);
  TROUPE_TRY(check_request(model, cluster, options));
  return ChoiceSearch(model, cluster, profile, options, profile_at).run();
}

}  // namespace troupe
