#include "kernels/optimizer.h"

#include "tests/support/catch.h"

using namespace troupe;

TEST_CASE("learning rates rise over the warm-up and fall to the minimum") {
  LearningRateSpec spec;
  spec.learning_rate = 8;
  spec.minimum = 2;
  spec.warmup_steps = 4;
  spec.total_steps = 12;

  SECTION("cosine") {
    spec.shape = LearningRateShape::cosine;
    CHECK(learning_rate_at(spec, 1) == 2);
    CHECK(learning_rate_at(spec, 2) == 4);
    CHECK(learning_rate_at(spec, 4) == 8);
    CHECK(learning_rate_at(spec, 8) == Approx(5));  // half way: the mean of 8 and 2
    CHECK(learning_rate_at(spec, 12) == 2);
    CHECK(learning_rate_at(spec, 99) == 2);
  }
  SECTION("linear") {
    spec.shape = LearningRateShape::linear;
    CHECK(learning_rate_at(spec, 3) == 6);
    CHECK(learning_rate_at(spec, 6) == Approx(6.5));  // a quarter of the way from 8 to 2
    CHECK(learning_rate_at(spec, 12) == 2);
  }
  SECTION("constant") {
    spec.shape = LearningRateShape::constant;
    CHECK(learning_rate_at(spec, 1) == 2);
    CHECK(learning_rate_at(spec, 5) == 8);
    CHECK(learning_rate_at(spec, 99) == 8);
  }
  SECTION("without warm-up the first step is at the full rate or just below") {
    spec.warmup_steps = 0;
    spec.shape = LearningRateShape::linear;
    CHECK(learning_rate_at(spec, 1) == Approx(7.5));
  }
}
