#include "planner/model_json.h"

#include <nlohmann/json.hpp>

#include "planner/json_object.h"
#include "planner/printable.h"
#include "tests/support/catch.h"
#include "tests/unit/planner/plan_fixture.h"

using namespace troupe;
using namespace troupe::testing;
using nlohmann::json;

namespace {

/// What is wrong with the model after a change; "none" where nothing is.
template <class Change>
std::string refusal_after(Change&& change) {
  json value = model_json(small_model(2, true));
  change(value);
  try {
    read_model(value, "model");
    return "none";
  } catch (const JsonRefused& refused) {
    return refused.text;
  }
}

}  // namespace

TEST_CASE("a model comes back from its JSON as it was") {
  ModelSpec model = small_model(3, false);
  model.dropout = 0.125;
  model.rope_theta = 5e5;
  CHECK(read_model(model_json(model), "model") == model);
}

TEST_CASE("a model that is not one is refused by path") {
  CHECK(refusal_after([](json&) {}) == "none");
  CHECK(refusal_after([](json& j) { j = json::array(); }) == "model is not an object");
  const json good = model_json(small_model(2, true));
  for (const auto& [key, ignored] : good.items())
    CHECK(refusal_after([k = key](json& j) { j.erase(k); }) == "model." + key + " is missing");
  CHECK(refusal_after([](json& j) { j["dep\nth"] = 1; }) == "model.dep\\x0ath is not a known key");
  CHECK(refusal_after([](json& j) { j["family"] = "bert"; }) ==
        "model.family is neither \"gpt2\" nor \"llama\"");
  CHECK(refusal_after([](json& j) { j["family"] = 1; }) == "model.family is not a string");
  CHECK(refusal_after([](json& j) { j["blocks"] = -1; }) ==
        "model.blocks is not a whole number from 0");
  CHECK(refusal_after([](json& j) { j["width"] = std::uint64_t{1} << 32; }) ==
        "model.width does not fit into 32 bits");
  CHECK(refusal_after([](json& j) { j["tied"] = 1; }) == "model.tied is not true or false");
  CHECK(refusal_after([](json& j) { j["dropout"] = "0"; }) == "model.dropout is not a number");
  CHECK(refusal_after([](json& j) { j["blocks"] = 0u; }).find("blocks = 0 is out of range") !=
        std::string::npos);
}

TEST_CASE("names for messages are escaped and cut") {
  CHECK(printable("a b") == "a b");
  CHECK(printable("a\"\\\t\x7f") == "a\\x22\\x5c\\x09\\x7f");
  CHECK(printable(std::string(81, 'x')) == std::string(80, 'x') + "...");
}
