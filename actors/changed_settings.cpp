#include "actors/changed_settings.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "planner/model_json.h"

namespace troupe {
namespace {

std::string_view name_of(TextFormat format) {
  return format == TextFormat::text ? "text" : "jsonl";
}
std::string_view name_of(TokenizerKind kind) {
  return kind == TokenizerKind::bytes ? "bytes" : "gpt2";
}
std::string_view name_of(DType type) {
  return to_string(type);
}
std::string_view name_of(LearningRateShape shape) {
  switch (shape) {
    case LearningRateShape::constant: return "constant";
    case LearningRateShape::linear: return "linear";
    case LearningRateShape::cosine: return "cosine";
  }
  return "unknown";
}
/// A number as fmt writes it elsewhere in these texts: 10000, not JSON's 10000.0.
std::string name_of(const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  return value.is_number_float() ? fmt::to_string(value.get<double>()) : value.dump();
}
template <class Number>
Number name_of(Number number) {
  return number;
}

class Changes {
 public:
  /// `why`: where the value comes from, if not from the key itself.
  template <class Value>
  void compare(std::string_view key,
               const Value& then,
               const Value& now,
               std::string_view why = {}) {
    if (then == now) return;
    text_ += fmt::format("{}{} = {}, was {}{}", text_.empty() ? "" : "; ", key, name_of(now),
                         name_of(then), why);
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

/// The rate of a constant shape depends on neither its minimum nor its end.
void compare_learning_rate(Changes& changes, const RunSpec& run_then, const RunSpec& run_now) {
  const LearningRateSpec& then = run_then.learning_rate;
  const LearningRateSpec& now = run_now.learning_rate;
  changes.compare("learning_rate.shape", then.shape, now.shape);
  changes.compare("learning_rate.learning_rate", then.learning_rate, now.learning_rate);
  changes.compare("learning_rate.warmup_steps", then.warmup_steps, now.warmup_steps);
  if (now.shape == LearningRateShape::constant) return;
  changes.compare("learning_rate.minimum", then.minimum, now.minimum);
  const bool follows = then.total_steps == run_then.steps && now.total_steps == run_now.steps;
  changes.compare("learning_rate.total_steps", then.total_steps, now.total_steps,
                  follows ? " (follows run.steps)" : "");
}

}  // namespace

std::string changed_settings(const RunSpec& then, const RunSpec& now) {
  Changes changes;
  changes.compare("data.format", then.data.format, now.data.format);
  if (now.data.format == TextFormat::jsonl)
    changes.compare("data.jsonl_field", then.data.jsonl_field, now.data.jsonl_field);
  changes.compare("data.tokenizer", then.data.tokenizer, now.data.tokenizer);
  changes.compare("data.validation_fraction", then.data.validation_fraction,
                  now.data.validation_fraction);
  changes.compare("training.microbatches", then.shape.microbatch_count, now.shape.microbatch_count);
  changes.compare("training.sequence_length", then.shape.sequence_length,
                  now.shape.sequence_length);
  changes.compare("training.compute", then.shape.compute, now.shape.compute);
  changes.compare("optimizer.beta1", then.optimizer.beta1, now.optimizer.beta1);
  changes.compare("optimizer.beta2", then.optimizer.beta2, now.optimizer.beta2);
  changes.compare("optimizer.epsilon", then.optimizer.epsilon, now.optimizer.epsilon);
  changes.compare("optimizer.weight_decay", then.optimizer.weight_decay,
                  now.optimizer.weight_decay);
  changes.compare("optimizer.clip_norm", then.optimizer.clip_norm, now.optimizer.clip_norm);
  compare_learning_rate(changes, then, now);
  return changes.take();
}

std::string changed_settings(const ModelSpec& then, const ModelSpec& now) {
  const nlohmann::json before = model_json(then);
  const nlohmann::json after = model_json(now);
  Changes changes;
  for (const auto& [key, value] : before.items())
    changes.compare("model." + key, value, after.at(key));
  return changes.take();
}

}  // namespace troupe
