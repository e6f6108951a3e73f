// Plans and simulations of models that cannot be trained yet.
#include "apps/plan_inputs.h"

#include <nlohmann/json.hpp>

#include "tests/support/catch.h"
#include "tests/support/program_call.h"
#include "tests/support/temporary_folder.h"

namespace troupe {
namespace {

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Accelerators of two kinds; with `cpu` a processor that nobody measured.
std::string configuration(const std::string& model, bool cpu = false) {
  const std::string root = TROUPE_SOURCE_DIR;
  std::string text = "[run]\nname = \"look\"\nsteps = 1000\n[model]\nfile = \"" + root +
                     "/conf/models/" + model + ".toml\"\n[data]\nfiles = [\"" + root +
                     "/conf/data/moby-dick.txt\"]\n[training]\nbatch_size = 16\nmicrobatches = "
                     "16\nsequence_length = 1024\ncompute = \"bf16\"\n[link.same_process]\n"
                     "latency = \"10 us\"\nbandwidth = \"25 GB/s\"\n[[node]]\nname = \"n\"\n";
  for (const char* device : {"h100-0", "h100-1", "h100-2", "a100-0", "a100-1", "a100-2"})
    text += std::string("[[node.device]]\nname = \"") + device +
            "\"\nkind = \"emulated\"\nmodel = \"" +
            (device[0] == 'h' ? "h100_sxm5_80" : "a100_sxm4_80") + "\"\nmemory = \"80 GB\"\n";
  if (cpu) text += "[[node.device]]\nname = \"cpu\"\nkind = \"cpu\"\nmemory = \"500 GB\"\n";
  return text;
}

struct Written {
  TemporaryFolder folder;
  std::string file = folder / "look.toml";
  explicit Written(const std::string& text) { set_content(file, text); }
  Outcome run(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin() + 1, file);
    Outcome outcome = call(arguments);
    INFO(outcome.err);
    return outcome;
  }
};

}  // namespace

TEST_CASE("plan shows a model that cannot be trained yet, and says that and why") {
  const Written look(configuration("deepseek-v2-lite"));
  const Outcome text = look.run({"plan", "--explain"});
  INFO(text.err);
  REQUIRE(text.code == 0);
  CHECK(holds(text.out, "looked at only: this model can be planned but not trained: "));
  CHECK(holds(text.out, "experts = 64 (trained: 0)"));
  CHECK(holds(text.out, "binding: "));
  CHECK(holds(text.out, "h100-0"));
  const Outcome json = look.run({"plan", "--json"});
  const auto plan = nlohmann::json::parse(json.out);
  CHECK(plan["notes"][0]["kind"] == "looked at only");
  CHECK(holds(plan["notes"][0]["text"], "this model can be planned but not trained: "));
  // f32 weights, gradients and moments, and a bf16 copy of what is in products: all but the
  // embedding and the gains of norms, which are under half a million.
  double bytes = 0;
  for (const auto& device : plan["devices"])
    for (const char* part : {"weights", "gradients", "optimizer"})
      bytes += device[part].get<double>();
  const double copied = 18 * 15'706'484'224.0 - 2 * 102'400.0 * 2048;
  CHECK(bytes > copied - 2 * 0.5e6);
  CHECK(bytes < 1.001 * copied);
  CHECK(plan_from_json(json.out).ok());
}

TEST_CASE("strategies and pages of a model that cannot be trained say so") {
  const Written look(configuration("deepseek-v2-lite"));
  const Outcome table = look.run({"plan", "--compare=even,auto"});
  CHECK(table.code == 0);
  CHECK(holds(table.out, "looked at only: "));
  const Outcome even = look.run({"plan", "--strategy", "even"});
  CHECK(holds(even.out, "looked at only: "));
  const std::string html = look.folder / "p.html";
  REQUIRE(look.run({"plan", "--html", html}).code == 0);
  const std::string page = content_of(html);
  CHECK(holds(page, "looked at only: "));
  CHECK(holds(page, "15706484224 parameters"));
  CHECK(holds(page, "schedule gpipe"));
}

TEST_CASE("experts apart from attention: each device's part, as text and as JSON, with reasons") {
  const Written look(configuration("deepseek-v2-lite"));
  for (const char* strategy : {"zebra", "expert-parallel"}) {
    INFO(strategy);
    const Outcome text = look.run({"plan", "--strategy", strategy, "--explain"});
    INFO(text.err);
    REQUIRE(text.code == 0);
    CHECK(holds(text.out, "looked at only: "));
    CHECK(holds(text.out, "it is priced, it does not train yet"));
    CHECK(holds(text.out, "experts a layer"));
    CHECK(holds(text.out, "\nbinds: "));
    CHECK(holds(text.out, "with one more device like a100-0: "));
    const auto json = nlohmann::json::parse(
        look.run({"plan", "--strategy", strategy, "--explain", "--json"}).out);
    CHECK(json["reasons"]["changes"].size() >= 3);
    const auto& experts = json["experts"];
    CHECK(experts["zebra"] == (std::string(strategy) == "zebra"));
    double share = 0;
    std::vector<std::uint32_t> held(26, 0);  // layers with experts
    for (const auto& device : experts["devices"]) {
      share += device["token_share"].get<double>();
      for (std::size_t layer = 0; layer < held.size(); ++layer)
        held[layer] += device["experts_by_layer"].at(layer).get<std::uint32_t>();
      CHECK(device["peak_bytes"] <= device["memory_bytes"]);
      CHECK(device["busy_seconds"] <= json["step_seconds"]);
    }
    CHECK(share == Approx(1));
    CHECK(held == std::vector<std::uint32_t>(26, 64));
  }
  const auto rows =
      nlohmann::json::parse(look.run({"plan", "--compare=zebra,expert-parallel", "--json"}).out);
  REQUIRE(rows.size() == 2);
  for (const auto& row : rows) CHECK(row["step_seconds"].get<double>() > 0);
}

TEST_CASE("experts on devices of one kind are for expert parallelism; too many do not fit") {
  std::string text = configuration("mixtral-8x7b");
  for (auto at = text.find("h100_sxm5_80"); at != std::string::npos; at = text.find("h100_sxm5_80"))
    text.replace(at, 12, "a100_sxm4_80");
  const Written look(text);
  const Outcome zebra = look.run({"plan", "--strategy", "zebra"});
  CHECK(zebra.code == 2);
  CHECK(holds(zebra.err, "nearest: expert-parallel"));
  // 46.7 billion parameters of 18 bytes on 480 GB.
  const Outcome large = look.run({"plan", "--strategy", "expert-parallel"});
  CHECK(large.code == 3);
  CHECK(holds(large.err, " and has 74.5 GiB"));
  CHECK(holds(large.err, " would fit"));
}

TEST_CASE("simulate plays a model that cannot be trained, from its configuration and its plan") {
  const Written look(configuration("deepseek-v2-lite"));
  const Outcome text = look.run({"simulate", "--text"});
  INFO(text.err);
  REQUIRE(text.code == 0);
  CHECK(holds(text.out, "note: looked at only: "));
  CHECK(holds(text.out, "h100-0"));
  const auto seconds = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments{"simulate", "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const auto json = nlohmann::json::parse(look.run(arguments).out);
    return json["step_seconds"].get<double>();
  };
  const double step = seconds({});
  CHECK(seconds({"--slow", "a100-0=3"}) > step);
  CHECK(seconds({"--schedule", "zb-h2"}) > 0);
  const std::string file = look.folder / "plan.json";
  set_content(file, look.run({"plan", "--json"}).out);
  const Outcome again = call({"simulate", file, "--json"});
  INFO(again.err);
  const auto json = nlohmann::json::parse(again.out);
  CHECK(json["step_seconds"].get<double>() == Approx(step));
  CHECK(holds(json["notes"][0], "looked at only: "));
}

TEST_CASE("profile measures nothing in place of a model that cannot be trained") {
  const Written look(configuration("deepseek-v2-lite", true));
  const std::string out = look.folder / "here.toml";
  const Outcome measured = look.run({"profile", "--out", out, "--budget", "1 s"});
  REQUIRE(measured.code == 0);
  CHECK(holds(measured.err,
              "left out: layers of the model: this model can be planned but not trained: "));
  CHECK(holds(measured.out, "layers measured with "));
  CHECK_FALSE(holds(measured.out, "of width 2048"));  // the model's own
  CHECK_FALSE(holds(content_of(out), "width = 2048"));
}

TEST_CASE("a processor without rates is refused where a model cannot be measured on it") {
  const Written look(configuration("deepseek-v2-lite", true));
  for (const char* command : {"plan", "simulate"}) {
    const Outcome refused = look.run({command});
    CHECK(refused.code == 2);
    CHECK(refused.out.empty());
    CHECK(holds(refused.err, "device cpu is a CPU without rates"));
    CHECK(holds(refused.err, "cluster.profile"));
  }
}

TEST_CASE("a model that cannot be trained and fits nowhere is refused as any other") {
  const Written look(configuration("deepseek-v3"));
  const Outcome refused = look.run({"plan"});
  CHECK(refused.code == 3);
  CHECK(refused.out.empty());
  CHECK(holds(refused.err, "would fit"));
}

TEST_CASE("train and check go on refusing what cannot be trained") {
  const Written look(configuration("deepseek-v2-lite"));
  for (const char* command : {"train", "check"}) {
    const Outcome refused = look.run({command});
    CHECK(refused.code == 2);
    CHECK(holds(refused.err, "this model can be planned but not trained: "));
  }
}

TEST_CASE("a model that can be trained is planned from its layers, and nothing is said") {
  const Written look(configuration("gpt2"));
  const Outcome text = look.run({"plan"});
  INFO(text.err);
  REQUIRE(text.code == 0);
  CHECK(!holds(text.out, "looked at only"));
}

}  // namespace troupe
