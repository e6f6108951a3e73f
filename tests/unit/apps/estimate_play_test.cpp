#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/support/catch.h"
#include "tests/support/program_call.h"
#include "tests/support/temporary_folder.h"

namespace troupe {
namespace {

std::string model(const std::string& name) {
  return std::string(TROUPE_SOURCE_DIR) + "/conf/models/" + name + ".toml";
}

Outcome estimate(std::vector<std::string> arguments, const std::vector<std::string>& more) {
  arguments.insert(arguments.begin(), "estimate");
  arguments.insert(arguments.end(), more.begin(), more.end());
  return call(arguments);
}

/// Pipelines of four stages, with experts and latent attention: nothing that Troupe trains.
const std::vector<std::string> experts{model("deepseek-v2-lite"),
                                       "--devices",
                                       "a100_sxm4_80=2x8",
                                       "--batch",
                                       "64",
                                       "--sequence",
                                       "4096",
                                       "--pipeline",
                                       "4",
                                       "--keep",
                                       "3"};

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("estimate --play: the fastest layout's step, stage by stage, as long as it is priced") {
  const std::string name = GENERATE("deepseek-v2-lite", "llama-3-8b", "gpt2-large");
  const std::string pipeline = GENERATE("1", "2", "4");
  const std::vector<std::string> question{model(name), "--devices",  "a100_sxm4_80=2x8",
                                          "--batch",   "64",         "--sequence",
                                          "1024",      "--pipeline", pipeline};
  const Outcome answer = estimate(question, {"--play", "--json"});
  INFO(answer.err);
  REQUIRE(answer.code == 0);
  const auto json = nlohmann::json::parse(answer.out);
  const auto& played = json["played"];
  const double priced = json["layouts"][0]["step_s"];
  CAPTURE(name, pipeline, played["against_closed_form"].get<std::string>());
  const std::size_t stages = std::stoul(pipeline);
  REQUIRE(played["devices"].size() == stages);
  const double step = played["step_seconds"];
  const std::string against = played["against_closed_form"];
  CHECK(step == Approx(priced).epsilon(0.1));
  if (std::abs(step / priced - 1) <= 0.01)
    CHECK(!holds(against, ", which"));
  else  // 27 blocks, or many sends
    CHECK((holds(against, "as full as the fullest") || holds(against, "of its sends")));
  if (stages == 1) CHECK(step == Approx(priced).epsilon(1e-9));
  for (const auto& device : played["devices"]) {
    CHECK(device["peak_bytes"] <= device["cap_bytes"]);
    CHECK(device["busy_seconds"].get<double>() > 0);
  }
  CHECK(played["fits"] == true);
}

TEST_CASE("estimate --text draws the stages, and says what they wait for") {
  const Outcome answer = estimate(experts, {"--text", "--width", "60"});
  INFO(answer.err);
  REQUIRE(answer.code == 0);
  for (const char* part : {"exposed communication", "stage0", "stage3", "stage0 to stage1", "fill",
                           "drain", "peak memory", "against the closed form's", "FF", "BB", "0-6"})
    CHECK(holds(answer.out, part));
}

TEST_CASE("estimate draws a layout as SVG, as a trace, and layouts side by side on a page") {
  const TemporaryFolder folder;
  const std::string svg = folder / "a.svg", trace = folder / "a.json", html = folder / "a.html";
  const Outcome answer =
      estimate(experts, {"--svg", svg, "--trace", trace, "--html", html, "--json"});
  INFO(answer.err);
  REQUIRE(answer.code == 0);
  CHECK(holds(content_of(svg), "<svg"));
  CHECK(holds(content_of(svg), "stage3"));
  const auto events = nlohmann::json::parse(content_of(trace));
  CHECK(events["traceEvents"].size() > 4 * 2 * 4);
  const std::string page = content_of(html);
  CHECK(holds(page, "Layouts"));
  CHECK(!holds(page, "src=\"http"));
  // A timeline and memory bars for each of the three.
  std::size_t drawings = 0;
  for (auto at = page.find("<svg"); at != std::string::npos; at = page.find("<svg", at + 1))
    ++drawings;
  CHECK(drawings == 6);
}

TEST_CASE("of several drawings that are asked for, one that cannot be written leaves none") {
  const TemporaryFolder folder;
  const std::string trace = folder / "a.json";
  const Outcome refused = estimate(experts, {"--trace", trace, "--html", "/nowhere/a.html"});
  CHECK(refused.code == 1);
  CHECK(holds(refused.err, "/nowhere/a.html"));
  CHECK_FALSE(std::filesystem::exists(trace));
}

TEST_CASE("estimate answers what if a stage is slow, or a link") {
  const auto seconds = [](const std::vector<std::string>& what_if) {
    auto arguments = what_if;
    arguments.emplace_back("--json");
    const Outcome answer = estimate(experts, arguments);
    INFO(answer.err);
    REQUIRE(answer.code == 0);
    const auto played = nlohmann::json::parse(answer.out)["played"];
    CHECK(played["what_if"].size() == what_if.size() / 2);
    return played["step_seconds"].get<double>();
  };
  const double undisturbed = seconds({"--play"});
  CHECK(seconds({"--slow", "stage1=2"}) > 1.3 * undisturbed);
  CHECK(seconds({"--link", "stage0>stage1=bandwidth:1 GB/s,latency:1 ms"}) > undisturbed);
  const Outcome wrong = estimate(experts, {"--slow", "stage7=2"});
  CHECK(wrong.code == 2);
  CHECK(holds(wrong.err, "there is no device \"stage7\""));
}

TEST_CASE("unlike devices are played layout by layout") {
  const std::vector<std::string> question{
      model("gpt2-large"), "--devices", "a100_sxm4_80=1x4", "--devices", "v100_sxm2_32=1x4",
      "--batch",           "96"};
  const TemporaryFolder folder;
  const std::string html = folder / "a.html";
  const Outcome answer = estimate(question, {"--text", "--html", html});
  INFO(answer.err);
  REQUIRE(answer.code == 0);
  CHECK(holds(answer.out, "between groups: "));
  CHECK(holds(content_of(html), "4 x v100_sxm2_32: "));
  const Outcome refused = estimate(question, {"--svg", folder / "a.svg"});
  CHECK(refused.code == 2);
  CHECK(holds(refused.err, "--svg draws one layout"));
  CHECK(estimate(question, {"--slow", "stage0=2"}).code == 2);
}

TEST_CASE("estimate writes over nothing that it reads") {
  const TemporaryFolder folder;
  const std::string copy = folder / "model.toml";
  set_content(copy, content_of(model("gpt2-large")));
  const Outcome refused =
      estimate({copy, "--devices", "t4_16=1x4", "--batch", "8"}, {"--html", copy});
  CHECK(refused.code == 2);
  CHECK(content_of(copy) == content_of(model("gpt2-large")));
}

TEST_CASE("a step of too many actions is not played, and says what would be") {
  const Outcome refused =
      estimate({model("gpt2-large"), "--devices", "t4_16=4x8", "--batch", "65536"},
               {"--play", "--pipeline", "32", "--tensor", "1", "--microbatch", "1"});
  CHECK(refused.code == 2);
  CHECK(holds(refused.err, "--microbatch"));
}

}  // namespace troupe
