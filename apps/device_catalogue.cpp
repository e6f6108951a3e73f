#include "apps/device_catalogue.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "apps/config_schema.h"

namespace troupe {

extern const char* const device_catalogue_text;  // generated from conf/devices.toml

namespace {

constexpr double matmul_efficiency = 0.6;
constexpr double memory_efficiency = 0.8;

constexpr std::array text_keys{"name",           "vendor",    "arch",     "sm",
                               "mem_type",       "link",      "cuda_min", "cuda_last",
                               "flash_attn_lib", "certainty", "source",   "remark"};
constexpr std::array number_keys{"devices_per_card",
                                 "mem_gb",
                                 "mem_gbs",
                                 "fp32_tflops",
                                 "tf32_tflops",
                                 "fp16_tflops",
                                 "bf16_tflops",
                                 "fp8_tflops",
                                 "fp4_tflops",
                                 "int8_tops",
                                 "fp16_fast_acc_tflops",
                                 "link_gbs_total",
                                 "pcie_gen",
                                 "pcie_lanes",
                                 "pcie_gbs_dir",
                                 "tdp_w"};

void check_row(const ConfigNode& row, const std::string& id, std::vector<ConfigProblem>& problems) {
  std::vector<std::string> known(text_keys.begin(), text_keys.end());
  known.insert(known.end(), number_keys.begin(), number_keys.end());
  for (const ConfigNode::Entry& entry : row.entries) {
    const auto is = [&](const char* key) { return entry.key == key; };
    const bool text = std::any_of(text_keys.begin(), text_keys.end(), is);
    const bool number = std::any_of(number_keys.begin(), number_keys.end(), is);
    const auto kind = entry.value.kind;
    if (!text && !number)
      problems.push_back(
          {entry.key_at, fmt::format("unknown key \"{}\" of device {}; did you mean \"{}\"?",
                                     entry.key, id, nearest_of_all(entry.key, known))});
    else if (text && kind != ConfigNode::Kind::text)
      problems.push_back({entry.value.at, fmt::format("{}.{} is {}, must be text", id, entry.key,
                                                      to_string(kind))});
    else if (number && kind != ConfigNode::Kind::integer && kind != ConfigNode::Kind::number)
      problems.push_back(
          {entry.value.at, fmt::format("{}.{} is {}, must be a number; write for example {} = 16",
                                       id, entry.key, to_string(kind), entry.key)});
    else if (number && !(entry.value.number >= 0 && entry.value.number <= 1e6))
      problems.push_back({entry.value.at, fmt::format("{}.{} = {} is out of range (0 to 1e6)", id,
                                                      entry.key, entry.value.number)});
  }
}

double number_of(const ConfigNode& row, std::string_view key) {
  const ConfigNode* node = row.find(key);
  return node == nullptr ? 0 : node->number;
}

std::string text_of(const ConfigNode& row, std::string_view key) {
  const ConfigNode* node = row.find(key);
  return node == nullptr ? std::string{} : node->text;
}

}  // namespace

std::vector<CatalogueDevice> parse_catalogue(std::string_view text,
                                             const std::string& name,
                                             std::vector<ConfigProblem>& problems) {
  std::vector<CatalogueDevice> out;
  const ConfigNode root = parse_config_tree(text, name, problems);
  for (const ConfigNode::Entry& entry : root.entries) {
    const ConfigNode& row = entry.value;
    if (!row.is_table()) {
      problems.push_back(
          {entry.key_at,
           fmt::format("\"{}\" stands outside of a device; a catalogue holds only [device] tables",
                       entry.key)});
      continue;
    }
    const std::size_t before = problems.size();
    check_row(row, entry.key, problems);
    for (const char* key : {"fp32_tflops", "mem_gb", "mem_gbs"})
      if (row.find(key) == nullptr || (problems.size() == before && number_of(row, key) <= 0))
        problems.push_back(
            {row.at, fmt::format("device {} needs {}; a positive number", entry.key, key)});
    if (problems.size() != before) continue;
    const double per_card = std::max(1.0, number_of(row, "devices_per_card"));
    CatalogueDevice device;
    device.id = entry.key;
    device.name = text_of(row, "name");
    device.fp32 = number_of(row, "fp32_tflops") * 1e12 / per_card;
    device.bf16 = number_of(row, "bf16_tflops") * 1e12 / per_card;
    device.memory = static_cast<Bytes>(std::llround(number_of(row, "mem_gb") * 1e9 / per_card));
    device.memory_rate = number_of(row, "mem_gbs") * 1e9 / per_card;
    device.certainty = text_of(row, "certainty");
    device.source = text_of(row, "source");
    out.push_back(std::move(device));
  }
  return out;
}

const std::vector<CatalogueDevice>& built_in_catalogue() {
  static const std::vector<CatalogueDevice> devices = [] {
    std::vector<ConfigProblem> problems;
    auto parsed = parse_catalogue(device_catalogue_text, "conf/devices.toml", problems);
    EXPECTS(problems.empty());  // a test reads the same file
    return parsed;
  }();
  return devices;
}

DeviceRates achievable_rates(const CatalogueDevice& device, Seconds launch, double time_scale) {
  DeviceRates rates;
  rates.matmul_f32 = device.fp32 * matmul_efficiency / time_scale;
  rates.matmul_bf16 = device.bf16 * matmul_efficiency / time_scale;
  rates.vector_f32 = device.fp32 * matmul_efficiency / time_scale;
  rates.memory = device.memory_rate * memory_efficiency / time_scale;
  rates.launch = launch * time_scale;
  return rates;
}

}  // namespace troupe
