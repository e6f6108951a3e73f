/// The published optima of graph partitioning: every split, and those stages that are found fast.
#include <fstream>
#include <iterator>

#include "tests/support/catch.h"
#include "tests/support/partition_tables.h"

using namespace troupe;

namespace {

struct Row {
  std::map<std::string, std::string> fields;
  const std::string& text(const std::string& column) const { return fields.at(column); }
  double number(const std::string& column) const { return std::stod(text(column)); }
  std::uint32_t integer(const std::string& column) const {
    return static_cast<std::uint32_t>(std::stoul(text(column)));
  }
};

/// RFC 4180, without line breaks inside fields.
std::vector<Row> read_csv(const std::string& name) {
  std::ifstream file(std::string(TROUPE_SOURCE_DIR) + "/tests/data/published/" + name + ".csv");
  REQUIRE(file.good());
  const auto split = [](const std::string& line) {
    std::vector<std::string> fields(1);
    bool quoted = false;
    for (std::size_t i = 0; i < line.size(); ++i) {
      if (quoted && line[i] == '"' && i + 1 < line.size() && line[i + 1] == '"') {
        fields.back() += line[++i];
      } else if (line[i] == '"') {
        quoted = !quoted;
      } else if (line[i] == ',' && !quoted) {
        fields.emplace_back();
      } else if (line[i] != '\r') {
        fields.back() += line[i];
      }
    }
    return fields;
  };
  std::string line;
  std::getline(file, line);
  const auto header = split(line);
  std::vector<Row> rows;
  while (std::getline(file, line)) {
    const auto fields = split(line);
    REQUIRE(fields.size() == header.size());
    rows.emplace_back();
    for (std::size_t i = 0; i < header.size(); ++i) rows.back().fields[header[i]] = fields[i];
  }
  return rows;
}

}  // namespace

TEST_CASE("the published optimal splits of layer and operator graphs") {
  const auto graphs = testing::read_partition_graphs(read_csv("partition_oracle_nodes"),
                                                     read_csv("partition_oracle_edges"));
  int compared = 0;
  for (const Row& row : read_csv("partition_oracle_results")) {
    if (row.text("algorithm") != "optimal_dp") continue;
    INFO(row.text("workload"));
    GraphPartitionOptions options;
    options.devices = row.integer("accelerators");
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
  const auto graphs =
      testing::read_layer_graphs(read_csv("piper_bert32_profile"), read_csv("piper_bert32_edges"));
  constexpr double gib = 1024.0 * 1024 * 1024;
  int compared = 0;
  for (const Row& row : read_csv("piper_oracle_results")) {
    StageOptions options;
    options.devices = row.integer("devices");
    if (options.devices > 32) continue;
    INFO(row.text("row_id"));
    options.memory_bytes = row.number("mem_limit_gib") * gib;
    options.bandwidth = row.number("bandwidth_gib_s") * gib;
    options.microbatches = row.integer("microbatches");
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
