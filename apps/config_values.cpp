#include <fmt/format.h>

#include <algorithm>

#include "apps/architecture_file.h"
#include "apps/config_builder.h"
#include "planner/trainable.h"

namespace troupe {
namespace {

namespace fs = std::filesystem;

/// The divisor of `whole` nearest to `wanted`.
std::uint32_t nearest_divisor(std::uint32_t whole, std::uint32_t wanted) {
  std::uint32_t best = 1;
  const auto distance = [wanted](std::uint32_t n) { return n > wanted ? n - wanted : wanted - n; };
  for (std::uint32_t n = 1; n <= whole; ++n)
    if (whole % n == 0 && distance(n) < distance(best)) best = n;
  return best;
}

std::uint32_t ceil_div(std::uint32_t a, std::uint32_t b) {
  return (a + b - 1) / b;
}

bool is_name(const std::string& text) {
  return !text.empty() && text.size() <= 128 && text != "." && text != ".." &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-';
         });
}

/// The nearest legal name: what is not allowed becomes '-'.
std::string legal_name(const std::string& text) {
  std::string out;
  for (const unsigned char c : text.substr(0, 128))
    out += (c < 0x80 && std::isalnum(c) != 0) || c == '.' || c == '_' || c == '-'
               ? static_cast<char>(c)
               : '-';
  return out.find_first_not_of('.') == std::string::npos ? "run" : out;
}

}  // namespace

ConfigBuilder::ConfigBuilder(ConfigNode& root,
                             const std::string& file,
                             const ConfigOptions& options,
                             std::vector<ConfigProblem>& problems)
    : root_(root),
      reader_(&root),
      file_(file),
      folder_(fs::path(file).parent_path()),
      options_(options),
      problems_(problems) {}

RunSpec ConfigBuilder::build() {
  build_run();
  build_model();
  build_data();
  check_vocabulary();
  build_training();
  build_optimizer();
  build_learning_rate();
  build_checkpoints();
  build_network();
  load_catalogue();
  load_profile();
  build_nodes();
  build_links();
  build_plan();
  price_profiled_layers();
  return spec_;
}

void ConfigBuilder::report(const Position& at, std::string text) {
  problems_.push_back({at, std::move(text)});
}

std::string ConfigBuilder::place(const ConfigReader& table,
                                 std::string_view name,
                                 std::string_view path) const {
  const ConfigNode* node = table.node(name);
  if (node == nullptr || node->is_default) return "";
  return fmt::format(" ({} at {})", path, to_string(node->at));
}

void ConfigBuilder::check_name(const ConfigReader& table,
                               std::string_view key,
                               std::string_view path) {
  if (!table.has(key)) return;
  const std::string name = table.text(key);
  if (is_name(name)) return;
  report(table.at(key),
         fmt::format("{} = \"{}\" is no name: 1 to 128 letters, digits, '.', '_' or '-'; nearest "
                     "legal value: \"{}\"",
                     path, name, legal_name(name)));
}

std::string ConfigBuilder::shown(const std::string& path) const {
  return fs::path(path).is_absolute() ? path : (folder_ / path).lexically_normal().string();
}

std::string ConfigBuilder::settle_path(ConfigNode& node, const fs::path& base) {
  std::error_code failure;
  const fs::path here = fs::current_path(failure);
  if (!failure) node.text = (here / base / node.text).lexically_normal().string();
  return node.text;
}

ConfigNode& ConfigBuilder::table_node(std::string_view path) {
  ConfigNode* found = root_.find(path);
  EXPECTS(found != nullptr);  // check_against_table made all tables
  return *found;
}

void ConfigBuilder::build_run() {
  const ConfigReader run = reader_.table("run");
  check_name(run, "name", "run.name");
  spec_.name = run.text("name");
  spec_.steps = run.integer("steps");
  spec_.seed = run.integer("seed");
  spec_.state_hash_every = run.integer("state_hash_every");
  if (ConfigNode* table = root_.find("run"); table != nullptr && run.has("folder"))
    spec_.folder = settle_path(*table->find("folder"), "");
}

void ConfigBuilder::build_model() {
  const ConfigReader model = reader_.table("model");
  ModelSpec& spec = spec_.model;
  architecture_ = read_architecture(model, reader_.table("training").integer32("sequence_length"));
  spec = same_sizes(architecture_);
  spec.norm_epsilon = model.number("norm_epsilon");
  spec.rope_theta = model.number("rope_theta");
  spec.dropout = model.number("dropout");
  const std::size_t before = problems_.size();
  if (!model.has("head_width")) check_heads(model);
  if (problems_.size() == before) check_model(model);
  const ConfigNode* theta = model.node("rope_theta");
  // At its default it may stand there: a run's own config.toml writes every key.
  if (architecture_.family == "gpt2" && theta != nullptr &&
      spec.rope_theta != ModelSpec{}.rope_theta)
    warnings_.push_back(fmt::format(
        "{}: model.rope_theta has no effect: gpt2 has learned positions", to_string(theta->at)));
}

/// Of values that are all in range by themselves.
void ConfigBuilder::check_model(const ConfigReader& model) {
  const ConfigNode* table = root_.find("model");
  const bool judged = model.usable({"blocks", "width", "heads", "vocabulary"}) &&
                      architecture_.context > 0 &&
                      std::none_of(table->entries.begin(), table->entries.end(),
                                   [](const auto& entry) { return entry.value.bad; });
  if (!judged) return;
  if (const Status holds = validate(architecture_); !holds.ok())
    return report(place_of_refusal(model, holds.error().text), holds.error().text);
  const auto trained = trainable(architecture_);
  if (!trained && options_.any_model) {
    spec_.model = stand_in(architecture_);
    return;
  }
  if (!trained) return report(model.at("file"), trained.error().text);
  if (const Status holds = validate(spec_.model); !holds.ok())
    report(place_of_refusal(model, holds.error().text), holds.error().text);
}

void ConfigBuilder::check_heads(const ConfigReader& model) {
  const ModelSpec& spec = spec_.model;
  if (!model.usable({"width", "heads"})) return;
  if (spec.width % spec.heads != 0) {
    report(
        model.at("heads"),
        fmt::format("model.heads = {} does not divide model.width = {}{}; nearest legal value: {}",
                    spec.heads, spec.width, place(model, "width", "model.width"),
                    nearest_divisor(spec.width, spec.heads)));
    return;
  }
  if (architecture_.family == "llama" && spec.head_width() % 2 != 0)
    report(model.at("width"),
           fmt::format("model.width / model.heads = {} is odd, and rotary positions turn pairs{}; "
                       "nearest legal value: {}",
                       spec.head_width(), place(model, "heads", "model.heads"),
                       spec.heads * (spec.head_width() + 1)));
  if (!model.has("kv_heads")) return;
  if (spec.family == ModelFamily::gpt2 && spec.kv_heads != spec.heads)
    report(
        model.at("kv_heads"),
        fmt::format("model.kv_heads = {} differs from model.heads = {}{}, and gpt2 has no grouped "
                    "heads; nearest legal value: {}",
                    spec.kv_heads, spec.heads, place(model, "heads", "model.heads"), spec.heads));
  else if (spec.heads % spec.kv_heads != 0)
    report(
        model.at("kv_heads"),
        fmt::format("model.kv_heads = {} does not divide model.heads = {}{}; nearest legal value: "
                    "{}",
                    spec.kv_heads, spec.heads, place(model, "heads", "model.heads"),
                    nearest_divisor(spec.heads, spec.kv_heads)));
}

void ConfigBuilder::build_training() {
  const ConfigReader training = reader_.table("training");
  const ConfigReader model = reader_.table("model");
  StepShape& shape = spec_.shape;
  shape.batch_size = training.integer32("batch_size");
  shape.sequence_length = training.integer32("sequence_length");
  shape.compute = training.text("compute") == "bf16" ? DType::bf16 : DType::f32;
  if (model.has("context") && training.has("sequence_length") &&
      shape.sequence_length > spec_.model.context)
    report(training.at("sequence_length"),
           fmt::format("training.sequence_length = {} is longer than model.context = {}{}; nearest "
                       "legal value: {}",
                       shape.sequence_length, spec_.model.context,
                       place(model, "context", "model.context"), spec_.model.context));
  if (training.has("batch_size")) build_microbatches(training);
}

void ConfigBuilder::build_microbatches(const ConfigReader& training) {
  StepShape& shape = spec_.shape;
  const std::uint32_t batch = shape.batch_size;
  const bool by_count = training.has("microbatches");
  const bool by_size = training.has("microbatch_size");
  if (training.text("microbatches") == "auto") {
    spec_.plan.choose_microbatches = true;
    shape.microbatch_count = 1;  // until the plan has chosen
    shape.microbatch_size = batch;
    if (by_size)
      report(training.at("microbatches"),
             fmt::format("training.microbatches = \"auto\" with training.microbatch_size = {}{} "
                         "leaves nothing to choose; keep one",
                         training.integer32("microbatch_size"),
                         place(training, "microbatch_size", "training.microbatch_size")));
    return;
  }
  const std::uint32_t count = by_count ? training.integer32("microbatches") : 1;
  const std::uint32_t size =
      by_size ? training.integer32("microbatch_size") : ceil_div(batch, count);
  shape.microbatch_count = by_count ? count : ceil_div(batch, size);
  shape.microbatch_size = size;
  const std::string batch_place = place(training, "batch_size", "training.batch_size");
  if (by_count && count > batch)
    return report(training.at("microbatches"),
                  fmt::format("training.microbatches = {} is more than training.batch_size = {}{}; "
                              "nearest legal value: {}",
                              count, batch, batch_place, batch));
  if (by_size && size > batch)
    return report(
        training.at("microbatch_size"),
        fmt::format("training.microbatch_size = {} is more than training.batch_size = {}{}; "
                    "nearest legal value: {}",
                    size, batch, batch_place, batch));
  if (by_count && by_size && ceil_div(batch, size) != count)
    return report(
        training.at("microbatches"),
        fmt::format("training.microbatches = {} with training.microbatch_size = {}{} does "
                    "not make training.batch_size = {}{}; nearest legal value: {}",
                    count, size, place(training, "microbatch_size", "training.microbatch_size"),
                    batch, batch_place, ceil_div(batch, size)));
  if (by_count && ceil_div(batch, size) != count)
    report(
        training.at("microbatches"),
        fmt::format("training.microbatches = {} leaves one empty: {} sequences{} in microbatches "
                    "of {} are {}; nearest legal value: {}",
                    count, batch, batch_place, size, ceil_div(batch, size), ceil_div(batch, size)));
}

void ConfigBuilder::build_optimizer() {
  const ConfigReader table = reader_.table("optimizer");
  spec_.optimizer.beta1 = table.number("beta1");
  spec_.optimizer.beta2 = table.number("beta2");
  spec_.optimizer.epsilon = table.number("epsilon");
  spec_.optimizer.weight_decay = table.number("weight_decay");
  spec_.optimizer.clip_norm = table.number("clip_norm");
}

void ConfigBuilder::build_learning_rate() {
  const ConfigReader table = reader_.table("learning_rate");
  LearningRateSpec& spec = spec_.learning_rate;
  const std::string shape = table.text("shape");
  spec.shape = shape == "constant" ? LearningRateShape::constant
               : shape == "linear" ? LearningRateShape::linear
                                   : LearningRateShape::cosine;
  spec.learning_rate = table.number("learning_rate");
  spec.minimum = table.number("minimum");
  spec.warmup_steps = table.integer("warmup_steps");
  const ConfigReader run = reader_.table("run");
  const bool own = table.has("total_steps");
  spec.total_steps = own ? table.integer("total_steps") : spec_.steps;
  if (table.usable({"learning_rate", "minimum"}) && spec.minimum > spec.learning_rate)
    report(table.at("minimum"),
           fmt::format("learning_rate.minimum = {} is above learning_rate.learning_rate = {}{}; "
                       "nearest legal value: {}",
                       spec.minimum, spec.learning_rate,
                       place(table, "learning_rate", "learning_rate.learning_rate"),
                       spec.learning_rate));
  if (table.has("warmup_steps") && (own || run.has("steps")) &&
      spec.warmup_steps > spec.total_steps)
    report(table.at("warmup_steps"),
           fmt::format(
               "learning_rate.warmup_steps = {} is more than {} = {}{}; nearest legal value: "
               "{}",
               spec.warmup_steps, own ? "learning_rate.total_steps" : "run.steps", spec.total_steps,
               own ? place(table, "total_steps", "learning_rate.total_steps")
                   : place(run, "steps", "run.steps"),
               spec.total_steps));
}

void ConfigBuilder::build_checkpoints() {
  const ConfigReader checkpoint = reader_.table("checkpoint");
  spec_.checkpoint.every_steps = checkpoint.integer("every_steps");
  spec_.checkpoint.keep = checkpoint.integer32("keep");
  if (checkpoint.has("resume_from")) {
    ConfigNode& node = *table_node("checkpoint").find("resume_from");
    const std::string written = node.text;
    spec_.checkpoint.resume_from = settle_path(node, "");
    std::error_code failure;
    if (options_.look_at_files && !fs::is_directory(spec_.checkpoint.resume_from, failure))
      report(
          node.at,
          fmt::format("checkpoint.resume_from: there is no folder \"{}\"; `troupe checkpoint ls` "
                      "lists those of a run",
                      written));
  }
  const ConfigReader evaluation = reader_.table("evaluation");
  spec_.evaluation.every_steps = evaluation.integer("every_steps");
  spec_.evaluation.batches = evaluation.integer32("batches");
  const ConfigReader data = reader_.table("data");
  if (spec_.evaluation.every_steps > 0 && data.has("validation_fraction") &&
      spec_.data.validation_fraction == 0)
    report(evaluation.at("every_steps"),
           fmt::format("evaluation.every_steps = {} needs validation tokens, and "
                       "data.validation_fraction is 0{}; nearest legal value: 0",
                       spec_.evaluation.every_steps,
                       place(data, "validation_fraction", "data.validation_fraction")));
}

}  // namespace troupe
