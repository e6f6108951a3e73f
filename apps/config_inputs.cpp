#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <nlohmann/json.hpp>

#include "apps/config_builder.h"

namespace troupe {

namespace fs = std::filesystem;

void ConfigBuilder::build_data() {
  const ConfigReader data = reader_.table("data");
  DataSpec& spec = spec_.data;
  ConfigNode& table = table_node("data");
  std::error_code failure;
  if (data.has("files"))
    for (ConfigNode& file : table.find("files")->items) {
      const std::string written = file.text;
      spec.files.push_back(settle_path(file, folder_));
      if (!options_.look_at_files || fs::is_regular_file(spec.files.back(), failure)) continue;
      report(file.at,
             fmt::format(
                 "data.files: there is no file \"{}\"; paths are relative to this file, it was "
                 "looked for at {}",
                 written, shown(written)));
    }
  spec.format = data.text("format") == "jsonl" ? TextFormat::jsonl : TextFormat::text;
  spec.jsonl_field = data.text("jsonl_field");
  spec.tokenizer = data.text("tokenizer") == "gpt2" ? TokenizerKind::gpt2 : TokenizerKind::bytes;
  spec.validation_fraction = data.number("validation_fraction");
  if (data.has("tokenizer_folder")) {
    ConfigNode& folder = *table.find("tokenizer_folder");
    const std::string written = folder.text;
    spec.tokenizer_folder = settle_path(folder, folder_);
    for (const char* part : {"encoder.json", "vocab.bpe"})
      if (options_.look_at_files && spec.tokenizer == TokenizerKind::gpt2 &&
          !fs::is_regular_file(fs::path(spec.tokenizer_folder) / part, failure))
        report(
            folder.at,
            fmt::format("data.tokenizer_folder: there is no file {}/{}; it needs encoder.json and "
                        "vocab.bpe",
                        shown(written), part));
  } else if (spec.tokenizer == TokenizerKind::gpt2 && data.node("tokenizer_folder") == nullptr) {
    report(
        data.at("tokenizer"),
        "data.tokenizer = \"gpt2\" needs data.tokenizer_folder; add for example tokenizer_folder "
        "= \"gpt2\", or take \"bytes\"");
  }
  if (data.has("cache_folder"))
    spec.cache_folder = settle_path(*table.find("cache_folder"), "");
  else
    spec.cache_folder = (fs::path(spec_.folder) / "token-cache").string();
  const ConfigNode* field = data.node("jsonl_field");
  if (spec.format == TextFormat::text && field != nullptr &&
      spec.jsonl_field != DataSpec{}.jsonl_field)
    warnings_.push_back(fmt::format("{}: data.jsonl_field has no effect: data.format is \"text\"",
                                    to_string(field->at)));
}

void ConfigBuilder::check_vocabulary() {
  const ConfigReader model = reader_.table("model");
  const ConfigReader data = reader_.table("data");
  if (!model.has("vocabulary") || !data.has("tokenizer")) return;
  std::uint32_t tokens = 256;
  if (spec_.data.tokenizer == TokenizerKind::gpt2) {
    if (!options_.look_at_files || spec_.data.tokenizer_folder.empty()) return;
    std::ifstream file(fs::path(spec_.data.tokenizer_folder) / "encoder.json");
    if (!file) return;  // reported above
    const auto parsed = nlohmann::json::parse(file, nullptr, false);
    if (!parsed.is_object()) {
      report(data.at("tokenizer_folder"),
             "data.tokenizer_folder: encoder.json is not a JSON object of tokens and ids");
      return;
    }
    tokens = static_cast<std::uint32_t>(parsed.size());
  }
  if (spec_.model.vocabulary >= tokens) return;
  report(
      model.at("vocabulary"),
      fmt::format("model.vocabulary = {} is less than the {} tokens of the {} tokenizer{}; nearest "
                  "legal value: {}",
                  spec_.model.vocabulary, tokens, data.text("tokenizer"),
                  place(data, "tokenizer", "data.tokenizer"), tokens));
}

void ConfigBuilder::build_network() {
  const ConfigReader network = reader_.table("network");
  spec_.request_timeout = network.seconds("request_timeout");
  spec_.join_timeout = network.seconds("join_timeout");
  if (!network.has("listen")) return;
  const std::string address = network.text("listen");
  const auto colon = address.rfind(':');
  const std::string host = address.substr(0, colon);
  unsigned port = 0;
  bool port_holds = colon != std::string::npos && colon + 1 < address.size();
  if (port_holds) {
    const char* end = address.data() + address.size();
    const auto parsed = std::from_chars(address.data() + colon + 1, end, port);
    port_holds = parsed.ec == std::errc{} && parsed.ptr == end && port <= 65535;
  }
  if (!port_holds)
    return report(
        network.at("listen"),
        fmt::format("network.listen = \"{}\" is not host:port with a port from 0 to 65535; "
                    "nearest legal value: \"127.0.0.1:0\"",
                    address));
  // Only dotted numbers of 127.0.0.0/8 and the name itself: nothing is looked up.
  const bool loopback =
      host == "localhost" ||
      (host.rfind("127.", 0) == 0 && std::count(host.begin(), host.end(), '.') == 3 &&
       host.find_first_not_of("0123456789.") == std::string::npos && host.back() != '.' &&
       host.find("..") == std::string::npos);
  if (!loopback)
    return report(
        network.at("listen"),
        fmt::format("network.listen = \"{}\" is not a loopback address, and connections "
                    "carry no key yet: anyone who reaches the port could join; nearest legal "
                    "value: \"127.0.0.1:{}\"",
                    address, port));
  spec_.listen_host = host == "localhost" ? "127.0.0.1" : host;
  spec_.listen_port = static_cast<std::uint16_t>(port);
}

}  // namespace troupe
