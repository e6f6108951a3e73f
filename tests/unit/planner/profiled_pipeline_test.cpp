#include "planner/profiled_pipeline.h"

#include <catch2/catch.hpp>

namespace troupe {
namespace {

ProfiledReplica replica_of(std::vector<ProfiledStage> stages, ProfiledEdge edge) {
  ProfiledReplica out;
  out.edges.assign(stages.size() - 1, edge);
  out.stages = std::move(stages);
  return out;
}

TEST_CASE("profiled_pipeline: 1f1b of equal stages takes (m + p - 1)(f + b)") {
  const auto replica = replica_of({4, {1, 2, 0.5}}, {0, 0, true});
  CHECK(last_backward(replica, 8)[0] == Approx((8 + 4 - 1) * 3.0));
  CHECK(step_seconds({{replica}, {0, 0, 0, 0}, 8}) == Approx(33.5));
}

TEST_CASE("profiled_pipeline: a tensor in hand holds both stages, a buffered one the link alone") {
  const std::vector<ProfiledStage> stages{{1, 2, 0}, {1, 2, 0}};
  // Hand to hand: each stage pays 0.5 s of F and of B of every microbatch.
  CHECK(last_backward(replica_of(stages, {0.5, 0.5, false}), 8)[0] == Approx((8 + 1) * 4.0));
  // Buffered: only what one F and one B wait for their neighbour.
  const double buffered = last_backward(replica_of(stages, {0.5, 0.5, true}), 8)[0];
  CHECK(buffered > 9 * 3.0);
  CHECK(buffered < 9 * 4.0);
}

TEST_CASE("profiled_pipeline: replicas meet at the slowest, stage by stage") {
  const auto fast = replica_of({{1, 2, 0}, {1, 2, 0}}, {0, 0, true});
  const auto slow = replica_of({{2, 4, 1}, {2, 4, 1}}, {0, 0, true});
  CHECK(step_seconds({{fast, slow}, {7, 0}, 4}) == Approx((4 + 1) * 6.0 + 7 + 1));
}

TEST_CASE("profiled_pipeline: bandwidth follows the curve between its bounds") {
  const BandwidthCurve curve{0, 1, 2, 4e9, 1e6};  // 2 GB/s at 1 MB, one more per doubling
  CHECK(curve.at(1e6) == Approx(2e9));
  CHECK(curve.at(2e6) == Approx(3e9));
  CHECK(curve.at(64e6) == Approx(4e9));
  CHECK(curve.at(1) == Approx(1e6));
  const BandwidthCurve slow{0, 0, 1, 1e9, 1e6};
  CHECK(message_seconds(curve, slow, 3e6) == Approx(3e-3));
  CHECK(ring_all_reduce_seconds(1e9, 1e9, 4) == Approx(1.5));
  CHECK(ring_all_reduce_seconds(1e9, 1e9, 1) == 0);
}

TEST_CASE("profiled_pipeline: memory counts four parameters and what is in flight") {
  CHECK(fullest_stage_bytes({10, 10, 10}, {5, 5, 5}, 8, {100, 0}) == Approx(100 + 40 + 15));
  CHECK(fullest_stage_bytes({10, 10, 10}, {5, 5, 50}, 8, {0, 0.1}) == Approx(1.1 * (40 + 50)));
  CHECK(fullest_stage_bytes({10, 10, 10}, {5, 5, 5}, 1, {0, 0}) == Approx(45));
}

}  // namespace
}  // namespace troupe
