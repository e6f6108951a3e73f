#include <nlohmann/json.hpp>

#include "tests/support/catch.h"
#include "tests/support/program_call.h"

namespace troupe {
namespace {

Outcome estimate(const std::vector<std::string>& more) {
  std::vector<std::string> arguments{"estimate"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return call(arguments);
}

std::string model(const std::string& name) {
  return std::string(TROUPE_SOURCE_DIR) + "/conf/models/" + name + ".toml";
}

TEST_CASE("estimate prices layouts of a large model without a device of it") {
  const std::vector<std::string> question{
      model("llama-3.1-70b"), "--devices", "h100_sxm5_80=8x8", "--batch", "128",
      "--sequence",           "4096"};
  const Outcome text = estimate(question);
  INFO(text.err);
  REQUIRE(text.code == 0);
  CHECK(text.out.find("70.6 billion parameters") != std::string::npos);
  CHECK(text.out.find("of them fit; the fastest:") != std::string::npos);
  auto json = question;
  json.emplace_back("--json");
  const auto parsed = nlohmann::json::parse(estimate(json).out);
  REQUIRE(parsed["layouts"].size() == 5);
  double before = 0;
  for (const auto& layout : parsed["layouts"]) {
    CHECK(layout["tensor"].get<int>() * layout["pipeline"].get<int>() * layout["data"].get<int>() ==
          64);
    CHECK(layout["step_s"].get<double>() >= before);
    before = layout["step_s"].get<double>();
    CHECK(layout["memory_share"].get<double>() <= 1);
    CHECK(layout["mfu"].get<double>() > 0.15);
    CHECK(layout["mfu"].get<double>() < 0.8);
  }
  double sum = 0;
  for (const auto& term : parsed["best"]["seconds"]) sum += term["share"].get<double>();
  CHECK(std::abs(sum - 1) < 1e-9);
}

TEST_CASE("nodes of one kind are one group, by however many arguments they are named") {
  const auto of = [](const std::vector<std::string>& devices) {
    std::vector<std::string> arguments{model("gpt2-large"), "--batch", "64", "--json"};
    for (const std::string& one : devices) arguments.insert(arguments.end(), {"--devices", one});
    const Outcome answer = estimate(arguments);
    INFO(answer.err);
    REQUIRE(answer.code == 0);
    return answer.out;
  };
  CHECK(of({"a100_sxm4_80=1x8", "a100_sxm4_80=3x8"}) == of({"a100_sxm4_80=4x8"}));
  CHECK(of({"a100_sxm4_80=1x8", "t4_16=1x4", "a100_sxm4_80=1x8"}) ==
        of({"a100_sxm4_80=2x8", "t4_16=1x4"}));
}

TEST_CASE("estimate --explain says what binds, and what more would buy") {
  const Outcome answer =
      estimate({model("llama-3.1-70b"), "--devices", "h100_sxm5_80=8x8", "--batch", "128",
                "--sequence", "4096", "--tensor", "8", "--zero", "1", "--explain"});
  INFO(answer.err);
  REQUIRE(answer.code == 0);
  for (const char* part :
       {"binding: ", "1 GiB more a device: ", "one more node: ", "twice the nodes: "})
    CHECK(answer.out.find(part) != std::string::npos);
}

TEST_CASE("estimate leaves a node idle that divides nothing, and says what it would cost") {
  const auto with = [](const std::string& devices, std::vector<std::string> more) {
    std::vector<std::string> arguments{
        model("llama-3.1-70b"), "--devices", devices, "--batch", "128", "--sequence", "4096"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return estimate(arguments);
  };
  const auto nine = nlohmann::json::parse(with("h100_sxm5_80=9x8", {"--json"}).out);
  const auto eight = nlohmann::json::parse(with("h100_sxm5_80=8x8", {"--json"}).out);
  CHECK(eight.at("devices").at("idle") == 0);
  CHECK(nine.at("devices").at("idle") == 8);
  CHECK(nine.at("devices").at("count") == 64);
  CHECK(nine.at("layouts") == eight.at("layouts"));
  CHECK(nine.at("step_with_all_devices_s") > nine.at("layouts").at(0).at("step_s"));
  const Outcome text = with("h100_sxm5_80=9x8", {});
  CHECK(text.out.find("8 of 72 devices stay idle: with all of them ") != std::string::npos);
  const Outcome why = with("h100_sxm5_80=8x8", {"--explain"});
  CHECK(why.out.find("one more node: ") != std::string::npos);
  CHECK(why.out.find(" devices idle\n") != std::string::npos);
}

TEST_CASE("a model that fits nowhere is refused with the bytes that are missing, exit code 3") {
  const Outcome refused = estimate(
      {model("llama-3.1-405b"), "--devices", "t4_16=1x1", "--batch", "1", "--sequence", "1024"});
  CHECK(refused.code == 3);
  CHECK(refused.out.empty());
  CHECK(refused.err.find("t4_16 may hold 13.4 GiB") != std::string::npos);
  CHECK(refused.err.find(" more") != std::string::npos);
}

TEST_CASE("unlike devices get shares of the batch by their speed") {
  const Outcome answer = estimate({model("gpt2-large"), "--devices", "a100_sxm4_80=1x4",
                                   "--devices", "v100_sxm2_32=1x4", "--batch", "96", "--json"});
  INFO(answer.err);
  REQUIRE(answer.code == 0);
  const auto parsed = nlohmann::json::parse(answer.out);
  const auto share = [&](std::size_t row) { return parsed["shares"][row]["sequences"].get<int>(); };
  CHECK(share(0) + share(1) == 96);
  CHECK(share(0) > share(1));
  CHECK(share(1) > 0);
}

TEST_CASE("estimate names what is wrong in its arguments, exit code 2") {
  const auto refused = [](const std::vector<std::string>& arguments, const std::string& part) {
    const Outcome answer = estimate(arguments);
    INFO(answer.err);
    CHECK(answer.code == 2);
    CHECK(answer.out.empty());
    CHECK(answer.err.find(part) != std::string::npos);
  };
  const std::string gpt = model("gpt2-large");
  refused({gpt, "--devices", "h100_sxm_80=8x8", "--batch", "8"}, "h100_sxm5_80");
  for (const char* devices : {"t4_16", "t4_16=8", "t4_16=0x8", "t4_16=8x", "=1x1", "t4_16=1x1x1"})
    refused({gpt, "--devices", devices, "--batch", "8"}, "ROW=NODESxDEVICES");
  refused({gpt, "--devices", "t4_16=1x1", "--batch", "0"}, "--batch");
  refused({gpt, "--devices", "t4_16=1x1", "--batch", "8", "--network", "roce_40"}, "roce_400");
  refused({gpt, "--devices", "t4_16=1x1", "--batch", "8", "--network", "0 GB/s"}, "--network");
  refused({gpt, "--devices", "t4_16=1x1", "--batch", "8", "--sequence", "4096"},
          "1024 learned positions");
  refused({gpt, "--devices", "t4_16=1x2", "--batch", "8", "--tensor", "7"},
          "no layout of this model on 2 devices");
  for (const char* flag : {"--headroom", "--efficiency"})
    refused({gpt, "--devices", "t4_16=1x1", "--batch", "8", flag, "nan"}, flag);
  refused({model("gpt-9"), "--devices", "t4_16=1x1", "--batch", "8"}, "gpt-9");
}

}  // namespace
}  // namespace troupe
