#include "apps/config_schema.h"

#include <fmt/format.h>

#include <array>

namespace troupe {
namespace {

/// What other trainers call our keys.
struct Alias {
  std::string_view other;
  std::string_view table;
  std::string_view name;
};

constexpr std::array aliases{
    Alias{"lr", "learning_rate", "learning_rate"},
    Alias{"peak", "learning_rate", "learning_rate"},
    Alias{"max_lr", "learning_rate", "learning_rate"},
    Alias{"min_lr", "learning_rate", "minimum"},
    Alias{"warmup", "learning_rate", "warmup_steps"},
    Alias{"warmup_iters", "learning_rate", "warmup_steps"},
    Alias{"lr_scheduler", "learning_rate", "shape"},
    Alias{"gradient_clipping", "optimizer", "clip_norm"},
    Alias{"grad_clip", "optimizer", "clip_norm"},
    Alias{"max_grad_norm", "optimizer", "clip_norm"},
    Alias{"eps", "optimizer", "epsilon"},
    Alias{"decay", "optimizer", "weight_decay"},
    Alias{"layers", "model", "blocks"},
    Alias{"num_layers", "model", "blocks"},
    Alias{"n_layer", "model", "blocks"},
    Alias{"hidden_size", "model", "width"},
    Alias{"d_model", "model", "width"},
    Alias{"n_embd", "model", "width"},
    Alias{"n_head", "model", "heads"},
    Alias{"num_heads", "model", "heads"},
    Alias{"vocab_size", "model", "vocabulary"},
    Alias{"vocab", "model", "vocabulary"},
    Alias{"block_size", "model", "context"},
    Alias{"tie_word_embeddings", "model", "tied"},
    Alias{"intermediate_size", "model", "ffn_width"},
    Alias{"num_hidden_layers", "model", "blocks"},
    Alias{"num_attention_heads", "model", "heads"},
    Alias{"num_key_value_heads", "model", "kv_heads"},
    Alias{"head_dim", "model", "head_width"},
    Alias{"max_position_embeddings", "model", "context"},
    Alias{"num_local_experts", "model", "experts"},
    Alias{"n_routed_experts", "model", "experts"},
    Alias{"num_experts", "model", "experts"},
    Alias{"num_experts_per_tok", "model", "top_k"},
    Alias{"moe_intermediate_size", "model", "expert_ffn_width"},
    Alias{"first_k_dense_replace", "model", "first_dense_blocks"},
    Alias{"q_lora_rank", "model", "q_rank"},
    Alias{"kv_lora_rank", "model", "kv_rank"},
    Alias{"seq_len", "training", "sequence_length"},
    Alias{"dtype", "training", "compute"},
    Alias{"precision", "training", "compute"},
    Alias{"global_batch_size", "training", "batch_size"},
    Alias{"micro_batch_size", "training", "microbatch_size"},
    Alias{"gradient_accumulation_steps", "training", "microbatches"},
    Alias{"max_steps", "run", "steps"},
    Alias{"iterations", "run", "steps"},
    Alias{"timeout", "network", "request_timeout"},
    Alias{"port", "network", "listen"},
    Alias{"host", "network", "listen"},
    Alias{"save_every", "checkpoint", "every_steps"},
    Alias{"eval_interval", "evaluation", "every_steps"},
};

std::string quoted_list(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : ", ") + word;
  return out;
}

std::string presence_text(const ConfigKey& key) {
  switch (key.presence) {
    case ConfigPresence::has_default: return fmt::format("default {}", key.fallback);
    case ConfigPresence::required: return "required";
    case ConfigPresence::optional: return "optional";
  }
  return "";
}

std::string page_of(const ConfigKey& key) {
  std::string out = fmt::format("{}\n  {}\n  {}", path_of(key), type_text(key), presence_text(key));
  if (key.presence != ConfigPresence::has_default)
    out += fmt::format("; for example {} = {}", key.name, key.fallback);
  return out + fmt::format("\n  stands in {}\n\n  {}\n", header_of(key.table), key.help);
}

std::string page_of(const ConfigTable& table) {
  std::string out = fmt::format("{}  {}\n", header_of(table.name), table.help);
  for (const ConfigKey& key : config_keys())
    if (key.table == table.name)
      out += fmt::format("  {:<20} {:<44} {}\n", key.name, type_text(key), presence_text(key));
  return out;
}

/// Names of keys and tables that may stand directly in `table`.
std::vector<std::string> names_in(std::string_view table) {
  std::vector<std::string> known;
  for (const ConfigKey& key : config_keys())
    if (key.table == table) known.emplace_back(key.name);
  for (const ConfigTable& inner : config_tables()) {
    const auto dot = inner.name.rfind('.');
    const std::string_view parent = dot == std::string_view::npos ? "" : inner.name.substr(0, dot);
    if (parent == table) known.emplace_back(inner.name.substr(table.empty() ? 0 : dot + 1));
  }
  return known;
}

}  // namespace

const ConfigKey* find_key(std::string_view table, std::string_view name) {
  for (const ConfigKey& key : config_keys())
    if (key.table == table && key.name == name) return &key;
  return nullptr;
}

const ConfigTable* find_table(std::string_view name) {
  for (const ConfigTable& table : config_tables())
    if (table.name == name) return &table;
  return nullptr;
}

std::vector<std::string_view> choices_of(const ConfigKey& key) {
  std::vector<std::string_view> out;
  std::string_view rest = key.choices;
  while (!rest.empty()) {
    const auto bar = rest.find('|');
    out.push_back(rest.substr(0, bar));
    rest = bar == std::string_view::npos ? std::string_view{} : rest.substr(bar + 1);
  }
  return out;
}

std::string path_of(const ConfigKey& key) {
  return fmt::format("{}.{}", key.table, key.name);
}

std::string header_of(std::string_view table) {
  const ConfigTable* known = find_table(table);
  return known != nullptr && known->repeated ? fmt::format("[[{}]]", table)
                                             : fmt::format("[{}]", table);
}

std::string type_text(const ConfigKey& key) {
  switch (key.type) {
    case ConfigType::integer:
      return fmt::format("a whole number from {:.0f} to {:.0f}", key.low, key.high);
    case ConfigType::integer_or_word:
      return fmt::format("a whole number from {:.0f} to {:.0f}, or \"{}\"", key.low, key.high,
                         key.choices);
    case ConfigType::number: return fmt::format("a number from {} to {}", key.low, key.high);
    case ConfigType::boolean: return "true or false";
    case ConfigType::text: return "text";
    case ConfigType::size: return "a size with its unit, like \"24 GiB\"";
    case ConfigType::time: return "a time with its unit, like \"250 ms\"";
    case ConfigType::rate: return "a rate with its unit, like \"12 GB/s\"";
    case ConfigType::texts: return "a list of texts";
    case ConfigType::integers: return "a list of whole numbers";
    case ConfigType::choice: break;
  }
  std::string out = "one of";
  for (const std::string_view choice : choices_of(key))
    out += fmt::format("{} \"{}\"", out == "one of" ? "" : ",", choice);
  return out;
}

std::string suggestion_for(std::string_view table, std::string_view name) {
  const std::vector<std::string> here = names_in(table);
  if (const auto near = nearest(name, here)) {
    const std::string path = table.empty() ? *near : fmt::format("{}.{}", table, *near);
    if (find_table(path) != nullptr) return fmt::format("did you mean {}?", header_of(path));
    return fmt::format("did you mean \"{}\"?", *near);
  }
  std::vector<std::string> homes;
  for (const ConfigKey& key : config_keys())
    if (key.name == name) homes.push_back(header_of(key.table));
  if (!homes.empty()) return fmt::format("this key belongs to {}", quoted_list(homes));
  for (const ConfigTable& inner : config_tables()) {
    const auto dot = inner.name.rfind('.');
    if (dot != std::string_view::npos && inner.name.substr(dot + 1) == name)
      return fmt::format("this table is written {}", header_of(inner.name));
  }
  std::vector<std::string> others;
  others.reserve(aliases.size());
  for (const Alias& alias : aliases) others.emplace_back(alias.other);
  if (const auto near = nearest(name, others))
    for (const Alias& alias : aliases)
      if (alias.other == *near)
        return fmt::format("did you mean \"{}\" in {}?", alias.name, header_of(alias.table));
  std::vector<std::string> everywhere;
  for (const ConfigKey& key : config_keys()) everywhere.emplace_back(key.name);
  if (const auto near = nearest(name, everywhere))
    for (const ConfigKey& key : config_keys())
      if (key.name == *near)
        return fmt::format("did you mean \"{}\" in {}?", key.name, header_of(key.table));
  return fmt::format("known here: {}", quoted_list(here));
}

std::optional<std::string> explain(std::string_view path) {
  for (const ConfigTable& table : config_tables())
    if (table.name == path) return page_of(table);
  for (const ConfigKey& key : config_keys())
    if (path_of(key) == path) return page_of(key);
  std::string pages;
  for (const ConfigKey& key : config_keys())
    if (key.name == path) pages += (pages.empty() ? "" : "\n") + page_of(key);
  if (!pages.empty()) return pages;
  return std::nullopt;
}

std::string explain_all() {
  std::string out;
  for (const ConfigTable& table : config_tables()) out += page_of(table) + "\n";
  return out + "troupe explain KEY says what a key means, for example: troupe explain run.steps\n";
}

std::string keys_markdown() {
  std::string out =
      "# Configuration keys\n\nMade by `troupe explain --markdown` from the table that the parser "
      "uses; a test holds the two\ntogether. Sizes, times and rates are texts with a unit.\n";
  const auto cell = [](std::string text) {
    for (std::size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2)
      text.insert(at, "\\");
    return text;
  };
  for (const ConfigTable& table : config_tables()) {
    out += fmt::format(
        "\n## `{}`\n\n{}\n\n| key | value | default | meaning |\n| --- | --- | --- | "
        "--- |\n",
        header_of(table.name), table.help);
    for (const ConfigKey& key : config_keys()) {
      if (key.table != table.name) continue;
      const std::string fallback = key.presence == ConfigPresence::has_default
                                       ? fmt::format("`{}`", key.fallback)
                                       : presence_text(key);
      out += fmt::format("| `{}` | {} | {} | {} |\n", key.name, cell(type_text(key)),
                         cell(fallback), cell(std::string(key.help)));
    }
  }
  return out;
}

}  // namespace troupe
