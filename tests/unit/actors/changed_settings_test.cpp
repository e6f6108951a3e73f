#include "actors/changed_settings.h"

#include <functional>
#include <utility>
#include <vector>

#include "tests/support/catch.h"

namespace troupe {
namespace {

template <class Spec>
struct Change {
  std::function<void(Spec&)> make;
  const char* text;
};

}  // namespace

TEST_CASE("every setting that changes a step's numbers is told when it differs") {
  const std::vector<Change<RunSpec>> changes = {
      {[](RunSpec& s) { s.data.format = TextFormat::jsonl; }, "data.format = jsonl, was text"},
      {[](RunSpec& s) { s.data.tokenizer = TokenizerKind::gpt2; },
       "data.tokenizer = gpt2, was bytes"},
      {[](RunSpec& s) { s.data.validation_fraction = 0.25; },
       "data.validation_fraction = 0.25, was 0.1"},
      {[](RunSpec& s) { s.shape.microbatch_count = 3; }, "training.microbatches = 3, was 1"},
      {[](RunSpec& s) { s.shape.sequence_length = 8; }, "training.sequence_length = 8, was 1"},
      {[](RunSpec& s) { s.shape.compute = DType::bf16; }, "training.compute = bf16, was f32"},
      {[](RunSpec& s) { s.optimizer.beta1 = 0.8; }, "optimizer.beta1 = 0.8, was 0.9"},
      {[](RunSpec& s) { s.optimizer.beta2 = 0.95; }, "optimizer.beta2 = 0.95, was 0.999"},
      {[](RunSpec& s) { s.optimizer.epsilon = 1e-6; }, "optimizer.epsilon = 1e-06, was 1e-08"},
      {[](RunSpec& s) { s.optimizer.weight_decay = 0; }, "optimizer.weight_decay = 0, was 0.01"},
      {[](RunSpec& s) { s.optimizer.clip_norm = 2; }, "optimizer.clip_norm = 2, was 1"},
      {[](RunSpec& s) { s.learning_rate.shape = LearningRateShape::linear; },
       "learning_rate.shape = linear, was cosine"},
      {[](RunSpec& s) { s.learning_rate.learning_rate = 0.5; },
       "learning_rate.learning_rate = 0.5, was 0.001"},
      {[](RunSpec& s) { s.learning_rate.minimum = 0.1; }, "learning_rate.minimum = 0.1, was 0"},
      {[](RunSpec& s) { s.learning_rate.warmup_steps = 4; },
       "learning_rate.warmup_steps = 4, was 0"},
      {[](RunSpec& s) { s.learning_rate.total_steps = 9; }, "learning_rate.total_steps = 9, was 1"},
  };
  const RunSpec then;
  CHECK(changed_settings(then, then).empty());
  for (const auto& [make, text] : changes) {
    RunSpec now;
    make(now);
    CHECK(changed_settings(then, now) == text);
  }
}

TEST_CASE("settings that change no number are not told") {
  const RunSpec then;
  RunSpec now;
  now.name = "other";
  now.steps = 100;
  now.data.files = {"elsewhere.txt"};
  now.data.jsonl_field = "body";  // of text files nobody reads it
  now.checkpoint.every_steps = 3;
  now.plan.transfer_slots = 4;
  CHECK(changed_settings(then, now).empty());

  RunSpec constant_then;
  constant_then.learning_rate.shape = LearningRateShape::constant;
  RunSpec constant_now = constant_then;
  constant_now.learning_rate.total_steps = 50;
  constant_now.learning_rate.minimum = 0.1;
  CHECK(changed_settings(constant_then, constant_now).empty());
}

TEST_CASE("an end of the learning rate that follows the steps says so") {
  RunSpec then;
  then.steps = then.learning_rate.total_steps = 100;
  RunSpec now;
  now.steps = now.learning_rate.total_steps = 150;
  CHECK(changed_settings(then, now) ==
        "learning_rate.total_steps = 150, was 100 (follows run.steps)");
  now.learning_rate.total_steps = 140;
  CHECK(changed_settings(then, now) == "learning_rate.total_steps = 140, was 100");
}

TEST_CASE("several changes are told in the order of a configuration") {
  const RunSpec then;
  RunSpec now;
  now.learning_rate.warmup_steps = 4;
  now.data.format = TextFormat::jsonl;
  now.data.jsonl_field = "body";
  CHECK(changed_settings(then, now) ==
        "data.format = jsonl, was text; data.jsonl_field = body, was text; "
        "learning_rate.warmup_steps = 4, was 0");
}

TEST_CASE("two models that differ differ by a named key, whichever it is") {
  const std::vector<Change<ModelSpec>> changes = {
      {[](ModelSpec& m) { m.family = ModelFamily::llama; }, "model.family = llama, was gpt2"},
      {[](ModelSpec& m) { m.blocks = 2; }, "model.blocks = 2, was 0"},
      {[](ModelSpec& m) { m.width = 2; }, "model.width = 2, was 0"},
      {[](ModelSpec& m) { m.heads = 2; }, "model.heads = 2, was 0"},
      {[](ModelSpec& m) { m.kv_heads = 2; }, "model.kv_heads = 2, was 0"},
      {[](ModelSpec& m) { m.ffn_width = 2; }, "model.ffn_width = 2, was 0"},
      {[](ModelSpec& m) { m.vocabulary = 2; }, "model.vocabulary = 2, was 0"},
      {[](ModelSpec& m) { m.context = 2; }, "model.context = 2, was 0"},
      {[](ModelSpec& m) { m.tied = false; }, "model.tied = false, was true"},
      {[](ModelSpec& m) { m.norm_epsilon = 1e-6; }, "model.norm_epsilon = 1e-06, was 1e-05"},
      {[](ModelSpec& m) { m.rope_theta = 5e5; }, "model.rope_theta = 500000, was 10000"},
      {[](ModelSpec& m) { m.dropout = 0.5; }, "model.dropout = 0.5, was 0"},
  };
  const ModelSpec then;
  CHECK(changed_settings(then, then).empty());
  for (const auto& [make, text] : changes) {
    ModelSpec now;
    make(now);
    CHECK(now != then);
    CHECK(changed_settings(then, now) == text);
  }
}

}  // namespace troupe
