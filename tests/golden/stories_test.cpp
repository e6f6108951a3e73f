// Somebody else's model, end to end: llama2.c's stories260K, imported, read into a stage and run by
// our kernels, against figures computed in double elsewhere (tests/data/stories260K/expected.txt).
#include <cmath>
#include <fstream>
#include <sstream>

#include "actors/checkpoint/convert.h"
#include "actors/checkpoint/stage_state.h"
#include "kernels/generate.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

using namespace troupe;

namespace {

const std::string folder_of_model = TROUPE_SOURCE_DIR "/tests/data/stories260K/";

struct Expected {
  std::vector<std::int32_t> ids;  ///< BOS, then 200 greedy ones
  double mean_loss = 0;           ///< of the first 64 greedy ids
  std::vector<double> logits;     ///< at ids 378, 261, 0, 426 after the first four ids
};

Expected read_expected() {
  Expected expected;
  std::ifstream file(folder_of_model + "expected.txt");
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line.substr(line.rfind(':') + 1));
    if (line.starts_with("# mean negative")) words >> expected.mean_loss;
    if (line.starts_with("# logits"))
      for (double value = 0; words >> value;) expected.logits.push_back(value);
    if (line.empty() || line.front() == '#') continue;
    std::istringstream ids(line);
    for (std::int32_t id = 0; ids >> id;) expected.ids.push_back(id);
  }
  return expected;
}

/// Runs the body on a device of two threads that holds the whole imported model.
template <class F>
void with_stories(F&& body) {
  const TemporaryFolder folder;
  REQUIRE(import_model(folder_of_model + "stories260K.bin", folder / "imported", {}).ok());
  const auto checkpoint = Checkpoint::open((folder / "imported").string());
  REQUIRE(checkpoint.ok());
  DeviceSpec cpu;
  cpu.name = "cpu";
  cpu.memory = 1_GiB;
  cpu.threads = 2;
  auto device = open_device(cpu, {});
  REQUIRE(device.ok());
  StageSpec spec;
  spec.model = checkpoint->run().model;
  spec.shape.sequence_length = spec.model.context;
  spec.layers = {0, layer_count(spec.model)};
  spec.weights_only = true;
  auto stage = Stage::create(**device, spec);
  REQUIRE(stage.ok());
  REQUIRE(read_state(*checkpoint, **stage).ok());
  const auto decoder = Decoder::create(**device, **stage);
  REQUIRE(decoder.ok());
  Work work;
  work.body = [&](Stream& stream) {
    (*stage)->weights_changed(stream);
    body(**decoder, stream);
  };
  work.done = [](WorkTimes) {};
  (*device)->submit(std::move(work));
  (*device)->drain();
}

}  // namespace

TEST_CASE("stories260K writes the expected ids, logits and loss") {
  const Expected expected = read_expected();
  REQUIRE(expected.ids.size() == 201);
  REQUIRE(expected.logits.size() == 4);
  Result<std::vector<std::int32_t>> ids = std::vector<std::int32_t>{};
  Result<std::vector<std::int32_t>> uncached = std::vector<std::int32_t>{};
  std::vector<float> logits;
  double loss = 0;
  with_stories([&](Decoder& decoder, Stream& stream) {
    Stage& stage = decoder.stage();
    GenerateSpec greedy;
    greedy.max_new_tokens = 200;
    ids = generate(decoder, stream, std::span(expected.ids).first(1), greedy);
    uncached = generate(stage, stream, std::span(expected.ids).first(1), greedy);
    if (auto next = next_logits(stage, stream, std::span(expected.ids).first(4))) logits = *next;
    for (std::size_t n = 1; n <= 64; ++n) {
      const auto next = next_logits(stage, stream, std::span(expected.ids).first(n));
      if (!next) return;
      double sum = 0;
      for (const float logit : *next) sum += std::exp(static_cast<double>(logit));
      const auto target = static_cast<std::size_t>(expected.ids[n]);
      loss += (std::log(sum) - static_cast<double>((*next)[target])) / 64;
    }
  });
  REQUIRE(ids.ok());
  REQUIRE(uncached.ok());
  CHECK(*ids == std::vector<std::int32_t>(expected.ids.begin() + 1, expected.ids.end()));
  CHECK(*uncached == *ids);
  REQUIRE(logits.size() == 512);
  const std::size_t at[] = {378, 261, 0, 426};
  for (std::size_t i = 0; i < 4; ++i)
    CHECK(static_cast<double>(logits[at[i]]) == Approx(expected.logits[i]).margin(1e-4).epsilon(0));
  CHECK(loss == Approx(expected.mean_loss).margin(1e-5).epsilon(0));
}
