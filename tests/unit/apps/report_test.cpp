#include "apps/report.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <sstream>

#include "apps/html.h"
#include "apps/plan_tables.h"
#include "apps/progress.h"
#include "apps/report_charts.h"
#include "apps/run_folder.h"
#include "apps/table.h"
#include "planner/simulate.h"
#include "tests/support/catch.h"

namespace troupe {
namespace {

StepRow step_row(std::uint64_t step, double loss, Seconds seconds) {
  StepRow row;
  row.step = step;
  row.loss_bits = std::bit_cast<std::uint64_t>(loss);
  row.gradient_norm_bits = std::bit_cast<std::uint64_t>(0.5);
  row.tokens = 1000;
  row.seconds = seconds;
  row.devices = {{DeviceId{0}, seconds / 2, 1000 * step, 7}};
  return row;
}

ReportInput small_report() {
  ReportInput input;
  input.spec.name = "a<b>&\"c\"";
  input.spec.steps = 10;
  input.plan.model = {ModelFamily::gpt2, 2, 8, 2, 2, 32, 16, 4, true, 1e-5, 1e4, 0};
  input.plan.stages = {{{0, 2}, DeviceId{0}}, {{2, 4}, DeviceId{1}}};
  input.plan.in_flight = {2, 1};
  input.plan.deferred = {0, 0};
  input.plan.memory = {{100, 200, 300, 400, 500, 600}, {1, 2, 3, 4, 5, 6}};
  input.plan.predicted_step = 2.0;
  input.cluster.nodes = {{"n<0>", false}};
  for (const char* name : {"fast<script>", "slow"}) {
    DeviceSpec device;
    device.name = name;
    device.memory = 4096;
    input.cluster.devices.push_back(device);
  }
  const auto schedule =
      parse_schedule("d0: F0.0 B0.0 N0 U0\nd1: F1.0 B1.0 N1 U1\nd0>d1: XF0.0\nd1>d0: XB1.0\n",
                     {{DeviceId{0}, DeviceId{1}}, 1, 2, false, 2});
  REQUIRE(schedule.ok());
  input.plan.schedule = *schedule;
  input.plan.timeline.spans = {
      {{Op::forward, StageId{0}, MicrobatchId{0}}, "d0", 0, 1},
      {{Op::transfer_forward, StageId{0}, MicrobatchId{0}}, "d0>d1", 1, 1.5},
      {{Op::forward, StageId{1}, MicrobatchId{0}}, "d1", 1.5, 2}};
  for (std::uint64_t step = 1; step <= 5; ++step)
    input.steps.push_back(step_row(step, 5.0 / static_cast<double>(step), 1.0));
  input.evaluations = {{5, 1.25, 100}};
  input.events = {{"node_joined", "n0 <img src=x>"}};
  return input;
}

}  // namespace

TEST_CASE("the report needs nothing from elsewhere and escapes what it is told") {
  const std::string page = report_html(small_report());
  for (const char* outside : {"http://", "https://", "src=\"", "href=", "@import", "url("})
    CHECK(page.find(outside) == std::string::npos);
  CHECK(page.find("<script") == std::string::npos);
  CHECK(page.find("<img") == std::string::npos);
  CHECK(page.find("fast&lt;script&gt;") != std::string::npos);
  CHECK(page.find("a&lt;b&gt;&amp;&quot;c&quot;") != std::string::npos);
  CHECK(page.find("fast&lt;script&gt; to slow") != std::string::npos);  // the link's lane
  CHECK(page.find("1.2500") != std::string::npos);                      // validation loss
  CHECK(page.find("predicted 2.00 s (+100.0 %)") != std::string::npos);
}

TEST_CASE("a drift from the plan stands at the top of the report") {
  ReportInput input = small_report();
  CHECK(report_html(input).find("<p class=\"warning\">") == std::string::npos);
  input.events.push_back({"drift", "steps take 3 s: link a<b", 7, {}});
  CHECK(report_html(input).find(
            "<p class=\"warning\">After step 7: steps take 3 s: link a&lt;b</p>") !=
        std::string::npos);
}

TEST_CASE("the report stands losses that are not finite, and a run without steps") {
  ReportInput input = small_report();
  input.steps[2] = step_row(3, std::nan(""), 1.0);
  CHECK(report_html(input).find("nan") == std::string::npos);
  input.steps.clear();
  input.evaluations.clear();
  CHECK(report_html(input).find("No step was finished") != std::string::npos);
}

TEST_CASE("text is escaped byte by byte") {
  CHECK(escape_html("a<b>'\"&") == "a&lt;b&gt;&#39;&quot;&amp;");
  CHECK(escape_html("\xc3\xa9") == "\xc3\xa9");
  CHECK(escape_html("\xc3") == "?");
  CHECK(escape_html(std::string("\x01\x00", 2)) == "??");
}

TEST_CASE("a table has the same rows as text and as JSON") {
  Table table({{"name", "name", false}, {"size", "bytes", true}});
  table.add({{"a", "a"}, {"1.00 KiB", 1024}});
  table.add({{"longer", "longer"}, {"3 B", 3}});
  CHECK(table.to_text() == "name        size\na       1.00 KiB\nlonger       3 B\n");
  CHECK(table.to_json().dump() == R"([{"bytes":1024,"name":"a"},{"bytes":3,"name":"longer"}])");
}

TEST_CASE("measured steps leave out the first and keep the highest peak") {
  std::vector<StepRow> steps{step_row(1, 1, 100), step_row(2, 1, 3), step_row(3, 1, 1),
                             step_row(4, 1, 2)};
  const MeasuredRun measured = measure_steps(steps);
  CHECK(measured.step == 2);
  REQUIRE(measured.devices.size() == 1);
  CHECK(measured.devices[0].peak == 4000);
  CHECK(measure_steps({}).step == 0);
  CHECK(measure_steps({step_row(1, 1, 7)}).step == 7);
}

TEST_CASE("progress is one line on a terminal and few lines elsewhere") {
  std::ostringstream piped;
  std::ostringstream screen;
  Progress plain(piped, false, 100);
  Progress live(screen, true, 100);
  for (std::uint64_t step = 1; step <= 100; ++step) {
    plain.step(step_row(step, 2.0, 1.0));
    live.step(step_row(step, 2.0, 1.0));
  }
  plain.finish();
  live.finish();
  const std::string lines = piped.str();
  CHECK(std::count(lines.begin(), lines.end(), '\n') ==
        21);  // the first, then every 5 seconds, the last
  CHECK(lines.find('\r') == std::string::npos);
  CHECK(lines.find("step 1/100  loss 2.0000  1000 tokens/s  1:39 left") == 0);
  const std::string screen_text = screen.str();
  CHECK(std::count(screen_text.begin(), screen_text.end(), '\n') == 1);
  CHECK(std::count(screen_text.begin(), screen_text.end(), '\r') == 100);
  CHECK(format_clock(3723) == "1:02:03");
  CHECK(format_clock(59.6) == "1:00");
  CHECK(format_clock(-1) == "?");
}

TEST_CASE("L142 a metrics line has what was measured and no stand-ins") {
  ReportInput input = small_report();
  StepRow row = step_row(3, 1.5, 2.0);
  const auto line = nlohmann::json::parse(metrics_line(row, input.cluster));
  CHECK(line["loss_bits"] == "3ff8000000000000");  // 1.5
  CHECK(line["tokens_per_second"] == 500);
  CHECK_FALSE(line.contains("state_hash"));
  CHECK(line["devices"][0]["device"] == "fast<script>");
  row.loss_bits = std::bit_cast<std::uint64_t>(std::nan(""));
  CHECK(nlohmann::json::parse(metrics_line(row, input.cluster))["loss"].is_null());
}

}  // namespace troupe
