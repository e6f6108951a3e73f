#include "planner/step_choices.h"

#include <algorithm>

#include "planner/chosen_pipeline.h"
#include "planner/partition.h"
#include "planner/step_costs.h"

namespace troupe {
namespace {

std::vector<StepShape> shapes_of(const PlanRequest& request, bool open) {
  const StepShape& given = request.options.shape;
  if (!open || !request.profile_at) return {given};
  std::vector<StepShape> shapes;
  const std::uint32_t batch = std::max(given.batch_size, 1u);
  for (std::uint32_t size = 1;; size = std::min(2 * size, batch)) {
    StepShape shape = given;
    shape.microbatch_size = size;
    shape.microbatch_count = (batch + size - 1) / size;
    shapes.push_back(shape);
    if (size == batch) return shapes;
  }
}

std::vector<std::pair<ScheduleKind, std::uint32_t>> schedules_of(const PlanRequest& request,
                                                                 bool open,
                                                                 bool again) {
  if (!open) return {{request.options.schedule, request.options.chunks}};
  std::vector<std::pair<ScheduleKind, std::uint32_t>> all{{ScheduleKind::gpipe, 1},
                                                          {ScheduleKind::one_f_one_b, 1}};
  if (!again) all.emplace_back(ScheduleKind::zero_bubble_h1, 1);
  if (layer_count(request.model) >= 4) all.emplace_back(ScheduleKind::interleaved, 2);
  return all;
}

}  // namespace

std::vector<StepChoice> step_choices(const PlanRequest& request, const OpenChoices& open) {
  std::vector<StepChoice> choices;
  for (const StepShape& shape : shapes_of(request, open.microbatches)) {
    const ModelProfile kept =
        shape == request.options.shape ? request.profile : request.profile_at(shape);
    const ClusterSpec at_shape =
        with_microbatches(request.cluster, request.profile, kept, shape.microbatch_size);
    for (const bool again : {false, true}) {
      if (again && !open.recompute) break;
      for (const auto& [schedule, chunks] : schedules_of(request, open.schedule, again)) {
        PlanOptions options = request.options;
        options.pinned.clear();
        options.shape = shape;
        options.schedule = schedule;
        options.chunks = chunks;
        if (again) options.recompute = Recompute::full;
        StepChoice choice{shape, schedule, chunks, again, {}, std::nullopt};
        if (again && schedule == ScheduleKind::one_f_one_b) {
          if (auto made = choose_pipeline(request.model, at_shape, kept, options, {true, false})) {
            choice.step = made->step;
            for (const StagePoint& point : made->points)
              choice.again.push_back(point.choices.recompute);
          }
        } else if (const auto found =
                       search_partition(request.model, at_shape, kept, options).found) {
          choice.step = found->step;
        }
        choices.push_back(choice);
      }
    }
  }
  std::stable_sort(choices.begin(), choices.end(), [](const StepChoice& a, const StepChoice& b) {
    return a.step && (!b.step || *a.step < *b.step);
  });
  return choices;
}

}  // namespace troupe
