// In-flight counts of schedules: pipeline_inflight_per_stage.
#include "planner/schedules.h"

#include <map>

#include "planner/schedule_cursor.h"
#include "tests/bench/published/score.h"

namespace troupe::published {
std::vector<Score> score_schedules(const std::filesystem::path& folder) {
  const Table table(folder, "pipeline_inflight_per_stage");
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::vector<std::uint32_t>> gpipe, fused;
  Errors errors;
  for (const Row& row : table.sound_rows()) {
    const std::pair key{row.integer("p"), row.integer("m")};
    if (!gpipe.contains(key)) {
      const StageMap map = looped_stages(static_cast<std::uint32_t>(key.first),
                                         static_cast<std::uint32_t>(key.second));
      gpipe[key] = in_flight_per_stage(compute_schedule(ScheduleKind::gpipe, map));
      fused[key] = in_flight_per_stage(compute_schedule(ScheduleKind::one_f_one_b, map));
    }
    const auto stage = static_cast<std::size_t>(row.integer("stage"));
    errors.add(gpipe[key].at(stage), row.number("gpipe"));
    errors.add(fused[key].at(stage), row.number("one_f_one_b"));
  }
  Score score = errors.score("pipeline_inflight_per_stage", "microbatches in flight");
  score.left_out = table.size() - table.sound_rows().size();
  require_exact(score);
  return {score};
}

}  // namespace troupe::published
