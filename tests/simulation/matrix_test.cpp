// The matrix of training configurations and placements: through the actors, each has the bits of
// the bare step loop. `test_simulation "[all]"` runs the full product.
#include <map>

#include "tests/support/catch.h"
#include "tests/support/run_fixture.h"
#include "tests/support/sanitizers.h"

using namespace troupe;
using namespace troupe::test;

namespace {

/// What one run of the matrix is made of.
struct MatrixPoint {
  ScheduleKind schedule = ScheduleKind::gpipe;
  std::uint32_t devices = 2;
  std::uint32_t microbatches = 1;
  bool llama = false, tied = false, bf16 = false, dropout = false, two_threads = false;
};

std::string text_of(const MatrixPoint& p) {
  return std::string(to_string(p.schedule)) + " on " + std::to_string(p.devices) + " devices, " +
         std::to_string(p.microbatches) + " microbatches, " + (p.llama ? "llama" : "gpt2") +
         (p.tied ? " tied" : " untied") + (p.bf16 ? " bf16" : " f32") +
         (p.dropout ? ", dropout" : "") + (p.two_threads ? ", two threads" : ", one thread");
}

/// Every run of the matrix. `all`: the full product; else dropout and threads follow from the
/// other six so that any three values of three factors still meet.
std::vector<MatrixPoint> matrix(bool all) {
  std::vector<MatrixPoint> points;
  const ScheduleKind schedules[] = {ScheduleKind::gpipe, ScheduleKind::one_f_one_b,
                                    ScheduleKind::interleaved, ScheduleKind::zero_bubble_h1};
  const std::uint32_t microbatches[] = {1, 2, 3, 8};
  for (std::uint32_t i = 0; i < 4 * 3 * 4 * 8 * (all ? 4 : 1); ++i) {
    std::uint32_t rest = i;
    const auto next = [&](std::uint32_t count) {
      const std::uint32_t value = rest % count;
      rest /= count;
      return value;
    };
    MatrixPoint p;
    const std::uint32_t s = next(4), d = next(3), m = next(4), llama = next(2), tied = next(2),
                        bf16 = next(2);
    p.schedule = schedules[s];
    p.devices = 2 + d;
    p.microbatches = microbatches[m];
    p.llama = llama == 1;
    p.tied = tied == 1;
    p.bf16 = bf16 == 1;
    p.dropout = all ? next(2) == 1 : (s + s / 2 + d + m + m / 2 + llama + tied) % 2 == 1;
    p.two_threads = all ? next(2) == 1 : (s / 2 + d / 2 + m + llama + bf16) % 2 == 1;
    points.push_back(p);
  }
  return points;
}

/// Uneven stages; interleaved: two on each device, of one layer where there are as many as stages.
std::vector<std::uint32_t> stages_of(const MatrixPoint& p) {
  if (p.schedule == ScheduleKind::interleaved)
    return p.devices == 2 ? std::vector<std::uint32_t>{1, 2, 1, 2}
                          : std::vector<std::uint32_t>(2 * p.devices, 1);
  return p.devices == 2   ? std::vector<std::uint32_t>{2, 4}
         : p.devices == 3 ? std::vector<std::uint32_t>{3, 1, 2}
                          : std::vector<std::uint32_t>{1, 2, 2, 1};
}

RunSpec run_of(const MatrixPoint& p) {
  ModelSpec model = p.llama ? tiny_llama(p.tied) : tiny_gpt2(p.tied);
  if (p.dropout) model.dropout = 0.1;
  if (p.schedule == ScheduleKind::interleaved && p.devices == 4) model.blocks = 6;
  const StepShape shape = tiny_shape(p.microbatches, 2, p.bf16 ? DType::bf16 : DType::f32);
  RunSpec spec = tiny_run(model, shape, p.devices, p.schedule, 2);
  for (DeviceSpec& device : spec.cluster.devices) device.threads = p.two_threads ? 2 : 1;
  pin_stages(spec, stages_of(p));
  return spec;
}

void check_matrix(bool all) {
  // One bare loop for all placements of a training configuration.
  std::map<std::string, Trace> references;
  const std::vector<MatrixPoint> points = matrix(all);
  // The thread sanitizer looks for races, not for bits: every seventh run has all factors.
  for (std::size_t i = 0; i < points.size(); i += thread_sanitizer ? 7 : 1) {
    const MatrixPoint& point = points[i];
    INFO(text_of(point));
    const RunSpec spec = run_of(point);
    MatrixPoint training = point;
    training.schedule = ScheduleKind::one_f_one_b;
    training.devices = spec.model.blocks;  // not a placement: the model's depth
    training.two_threads = false;
    const auto [reference, added] = references.emplace(text_of(training), Trace());
    if (added) {
      RandomTokens tokens(spec.model, spec.shape);
      reference->second = reference_trace(spec, tokens);
    }
    check_run(spec, play(spec, with_tokens(spec)), reference->second);
  }
}

}  // namespace

TEST_CASE("every schedule on two, three and four devices equals the bare step loop") {
  check_matrix(false);
}

TEST_CASE("the full product of schedules, devices, models, types, dropout and threads", "[.all]") {
  check_matrix(true);
}

TEST_CASE("any three values of the matrix's factors meet in some run") {
  std::map<std::string, int> met;
  for (const MatrixPoint& p : matrix(false)) {
    const std::string factors[] = {
        std::string(to_string(p.schedule)),     "devices " + std::to_string(p.devices),
        "M " + std::to_string(p.microbatches),  "llama " + std::to_string(p.llama),
        "tied " + std::to_string(p.tied),       "bf16 " + std::to_string(p.bf16),
        "dropout " + std::to_string(p.dropout), "threads " + std::to_string(p.two_threads)};
    for (const std::string& a : factors)
      for (const std::string& b : factors)
        for (const std::string& c : factors)
          if (a < b && b < c) ++met[a + ", " + b + ", " + c];
  }
  // Levels by factor: 4, 3, 4 and five of 2; the sum over triples of the products of their levels.
  const int levels[] = {4, 3, 4, 2, 2, 2, 2, 2};
  std::size_t triples = 0;
  for (int a = 0; a < 8; ++a)
    for (int b = a + 1; b < 8; ++b)
      for (int c = b + 1; c < 8; ++c)
        triples += static_cast<std::size_t>(levels[a] * levels[b] * levels[c]);
  CHECK(met.size() == triples);
}

TEST_CASE("every tensor's gradient through the actors is the bare step loop's") {
  // Without momentum and clipping the first moment in a checkpoint is the last step's gradient.
  const auto schedule = GENERATE(ScheduleKind::gpipe, ScheduleKind::one_f_one_b,
                                 ScheduleKind::interleaved, ScheduleKind::zero_bubble_h1);
  const bool llama = GENERATE(false, true);
  const bool tied = GENERATE(false, true);
  const bool bf16 = GENERATE(false, true);
  if (thread_sanitizer && (llama != tied || tied != bf16)) {
    WARN("skipped under the thread sanitizer: two of eight models are enough to find races");
    return;
  }
  const MatrixPoint point{schedule, 3, 3, llama, tied, bf16, tied != bf16, bf16};
  INFO(text_of(point));
  RunSpec spec = run_of(point);
  without_momentum(spec);
  RandomTokens tokens(spec.model, spec.shape);
  const TemporaryFolder folder(Where::memory);
  RunOptions options = with_tokens(spec);
  options.checkpoint_folder = (folder / "checkpoints").string();
  const PlayedRun run = play(spec, options);
  REQUIRE(run.error == "");
  check_last_gradients(run.outcome.last_checkpoint, reference_gradients(spec, tokens));
}
