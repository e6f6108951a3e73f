/// The published optima of graph partitioning: every split, and those stages that are found fast.
#include "tests/support/catch.h"
#include "tests/support/partition_tables.h"

using namespace troupe;

namespace {

const std::filesystem::path folder = TROUPE_SOURCE_DIR "/tests/data/published";

std::uint32_t whole(const published::Row& row, const char* column) {
  return static_cast<std::uint32_t>(row.integer(column));
}

}  // namespace

TEST_CASE("the published optimal splits of layer and operator graphs") {
  const auto graphs =
      testing::read_partition_graphs(published::Table(folder, "partition_oracle_nodes"),
                                     published::Table(folder, "partition_oracle_edges"));
  int compared = 0;
  const published::Table results(folder, "partition_oracle_results");
  for (const published::Row& row : results.rows()) {
    if (row.text("algorithm") != "optimal_dp") continue;
    INFO(row.text("workload"));
    GraphPartitionOptions options;
    options.devices = whole(row, "accelerators");
    options.hosts = 1;  // of the published inputs
    options.memory_bytes = row.number("mem_limit_bytes");
    const auto split = partition_contiguous(graphs.at(row.text("workload")), options);
    REQUIRE(split.ok());
    CHECK(split->proven);
    CHECK(split->max_load == Approx(row.number("max_load")).epsilon(1e-6));
    ++compared;
  }
  CHECK(compared == 8);
}

TEST_CASE("the published optimal stages of BERT-32, up to 32 devices") {
  const auto graphs = testing::read_layer_graphs(published::Table(folder, "piper_bert32_profile"),
                                                 published::Table(folder, "piper_bert32_edges"));
  constexpr double gib = 1024.0 * 1024 * 1024;
  int compared = 0;
  const published::Table results(folder, "piper_oracle_results");
  for (const published::Row& row : results.rows()) {
    StageOptions options;
    options.devices = whole(row, "devices");
    if (options.devices > 32) continue;
    INFO(row.text("row_id"));
    options.memory_bytes = row.number("mem_limit_gib") * gib;
    options.bandwidth = row.number("bandwidth_gib_s") * gib;
    options.microbatches = whole(row, "microbatches");
    const auto plan = plan_stages(graphs.at(row.text("workload")), options);
    REQUIRE(plan.ok() == (row.text("status") == "ok"));
    ++compared;
    if (!plan) {
      CHECK(plan.error().code == ErrorCode::does_not_fit);
      continue;
    }
    // Printed with nine digits.
    CHECK(plan->time_per_microbatch == Approx(row.number("time_per_sample_s")).epsilon(1e-8));
  }
  CHECK(compared > 10);
}
