#include <cmath>
#include <limits>

#include "kernels/stage.h"
#include "tests/support/catch.h"

using namespace troupe;

TEST_CASE("L048 one norm over all tensors decides the clipping") {
  const UpdateDecision decision = decide_update({{1, 9.0}, {0, 16.0}}, 2.0, 100);
  CHECK(decision.norm == 5.0);
  CHECK(decision.gradient_scale == 0.4);
  CHECK_FALSE(decision.skip);
  CHECK(decide_update({{0, 9.0}, {1, 16.0}}, 5.0, 100).gradient_scale == 1.0);
  CHECK(decide_update({{0, 9.0}, {1, 16.0}}, 0.0, 100).gradient_scale == 1.0);
}

TEST_CASE("the norm is summed in tensor order, whatever the order of arrival") {
  // In this order the small terms are lost one by one; in another they would add up first.
  const std::vector<TensorNorm> norms = {{0, 1.0}, {1, 1e-16}, {2, 1e-16}, {3, 1e-16}};
  const std::vector<TensorNorm> arrived = {{3, 1e-16}, {2, 1e-16}, {1, 1e-16}, {0, 1.0}};
  CHECK(decide_update(arrived, 0, 1).norm == decide_update(norms, 0, 1).norm);
}

TEST_CASE("L051 a gradient that is not finite makes everybody skip") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinite = std::numeric_limits<double>::infinity();
  CHECK(decide_update({{0, 1.0}, {1, nan}}, 1.0, 100).skip);
  CHECK(decide_update({{0, infinite}, {1, 1.0}}, 1.0, 100).skip);
}

TEST_CASE("L044 a step without a trained token updates nothing") {
  CHECK(decide_update({{0, 0.0}}, 1.0, 0).skip);
}

TEST_CASE("a model's hash does not depend on the order of tensors, but on each of them") {
  const std::uint64_t hash = state_hash_of({{0, 11}, {1, 22}});
  CHECK(state_hash_of({{1, 22}, {0, 11}}) == hash);
  CHECK(state_hash_of({{1, 11}, {0, 22}}) != hash);
  CHECK(state_hash_of({{0, 11}, {1, 23}}) != hash);
}
