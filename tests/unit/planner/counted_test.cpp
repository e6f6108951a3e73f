#include "planner/counted.h"

#include "tests/support/catch.h"

using namespace troupe;

TEST_CASE("counts go with the number of their noun") {
  CHECK(counted(0, "layer") == "0 layers");
  CHECK(counted(1, "layer") == "1 layer");
  CHECK(counted(2, "sequence") == "2 sequences");
  CHECK(counted(1, "microbatch") == "1 microbatch");
  CHECK(counted(4, "microbatch") == "4 microbatches");
}
