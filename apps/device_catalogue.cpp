#include "apps/device_catalogue.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "apps/config_schema.h"

namespace troupe {

extern const char* const device_catalogue_text;  // generated from conf/devices.toml

namespace {

constexpr double matmul_efficiency = 0.6;
constexpr double memory_efficiency = 0.8;
constexpr double host_link_efficiency = 0.8;

/// The keys of one kind of row.
struct RowKind {
  const char* name;
  std::vector<std::string> texts;
  std::vector<std::string> numbers;
  std::vector<std::string> rates;  ///< numbers that have to be there and positive
};

const RowKind accelerator_kind{
    "device",
    {"name", "vendor", "arch", "sm", "mem_type", "link", "cuda_min", "cuda_last", "flash_attn_lib",
     "certainty", "source", "remark"},
    {"devices_per_card", "multiprocessors", "mem_gb", "mem_gbs", "fp32_tflops", "tf32_tflops",
     "fp16_tflops", "bf16_tflops", "bf16_measured_tflops", "fp8_tflops", "fp4_tflops", "int8_tops",
     "fp16_fast_acc_tflops", "link_gbs_total", "pcie_gen", "pcie_lanes", "pcie_gbs_dir", "tdp_w"},
    {"fp32_tflops", "mem_gb", "mem_gbs"}};
const RowKind cpu_kind{"cpu",
                       {"name", "vendor", "arch", "mem_type", "certainty", "source", "remark"},
                       {"cores", "base_ghz", "fp32_per_cycle", "bf16_per_cycle", "mem_gbs",
                        "mem_channels", "mem_mts", "pcie_gen", "pcie_lanes", "tdp_w"},
                       {"cores", "base_ghz", "fp32_per_cycle", "mem_gbs"}};
const RowKind disk_kind{
    "disk",
    {"name", "vendor", "interface", "medium", "certainty", "source", "remark"},
    {"read_gbs", "write_gbs", "read_kiops", "write_kiops", "latency_us", "capacity_gb"},
    {"read_gbs", "write_gbs", "latency_us"}};
const RowKind link_kind{"link",
                        {"name", "family", "certainty", "source", "remark"},
                        {"generation", "lanes", "links", "gbit", "gbs_dir", "latency_us"},
                        {"gbs_dir", "latency_us"}};

bool holds(const std::vector<std::string>& keys, const std::string& key) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

double number_of(const ConfigNode& row, std::string_view key) {
  const ConfigNode* node = row.find(key);
  return node == nullptr ? 0 : node->number;
}

std::string text_of(const ConfigNode& row, std::string_view key) {
  const ConfigNode* node = row.find(key);
  return node == nullptr ? std::string{} : node->text;
}

void check_entry(const ConfigNode::Entry& entry,
                 const std::string& id,
                 const RowKind& kind,
                 std::vector<ConfigProblem>& problems) {
  const bool text = holds(kind.texts, entry.key);
  const auto type = entry.value.kind;
  if (!text && !holds(kind.numbers, entry.key)) {
    std::vector<std::string> known = kind.texts;
    known.insert(known.end(), kind.numbers.begin(), kind.numbers.end());
    problems.push_back(
        {entry.key_at, fmt::format("unknown key \"{}\" of {} {}; did you mean \"{}\"?", entry.key,
                                   kind.name, id, nearest_of_all(entry.key, known))});
  } else if (text && type != ConfigNode::Kind::text) {
    problems.push_back(
        {entry.value.at, fmt::format("{}.{} is {}, must be text", id, entry.key, to_string(type))});
  } else if (!text && type != ConfigNode::Kind::integer && type != ConfigNode::Kind::number) {
    problems.push_back(
        {entry.value.at, fmt::format("{}.{} is {}, must be a number; write for example {} = 16", id,
                                     entry.key, to_string(type), entry.key)});
  } else if (!text && !(entry.value.number >= 0 && entry.value.number <= 1e6)) {
    problems.push_back({entry.value.at, fmt::format("{}.{} = {} is out of range (0 to 1e6)", id,
                                                    entry.key, entry.value.number)});
  }
}

/// Whether the row can be used.
bool check_row(const ConfigNode::Entry& row,
               const RowKind& kind,
               std::vector<ConfigProblem>& problems) {
  if (!row.value.is_table()) {
    problems.push_back(
        {row.key_at,
         fmt::format("\"{}\" stands outside of a {}; a catalogue holds only tables, one for each "
                     "device",
                     row.key, kind.name)});
    return false;
  }
  const std::size_t before = problems.size();
  for (const ConfigNode::Entry& entry : row.value.entries)
    check_entry(entry, row.key, kind, problems);
  const bool typed = problems.size() == before;
  for (const std::string& rate : kind.rates)
    if (row.value.find(rate) == nullptr || (typed && number_of(row.value, rate) <= 0))
      problems.push_back({row.value.at, fmt::format("{} {} needs {}; a positive number", kind.name,
                                                    row.key, rate)});
  return problems.size() == before;
}

template <class Row>
Row begun(const ConfigNode::Entry& entry) {
  Row row;
  row.id = entry.key;
  row.name = text_of(entry.value, "name");
  row.certainty = text_of(entry.value, "certainty");
  row.source = text_of(entry.value, "source");
  return row;
}

CatalogueDevice accelerator_of(const ConfigNode::Entry& entry) {
  const ConfigNode& row = entry.value;
  const double per_card = std::max(1.0, number_of(row, "devices_per_card"));
  auto device = begun<CatalogueDevice>(entry);
  device.fp32 = number_of(row, "fp32_tflops") * 1e12 / per_card;
  device.bf16 = number_of(row, "bf16_tflops") * 1e12 / per_card;
  device.bf16_measured = number_of(row, "bf16_measured_tflops") * 1e12 / per_card;
  device.fp16 = number_of(row, "fp16_tflops") * 1e12 / per_card;
  device.processors = number_of(row, "multiprocessors") / per_card;
  const double linked = number_of(row, "link_gbs_total") / 2;
  device.peer_rate = std::max(linked, number_of(row, "pcie_gbs_dir")) * 1e9;
  device.host_rate = number_of(row, "pcie_gbs_dir") * 1e9 / per_card;
  device.memory = static_cast<Bytes>(std::llround(number_of(row, "mem_gb") * 1e9 / per_card));
  device.memory_rate = number_of(row, "mem_gbs") * 1e9 / per_card;
  return device;
}

CatalogueCpu cpu_of(const ConfigNode::Entry& entry) {
  const ConfigNode& row = entry.value;
  auto cpu = begun<CatalogueCpu>(entry);
  const double cycles = number_of(row, "cores") * number_of(row, "base_ghz") * 1e9;
  cpu.cores = static_cast<std::uint32_t>(number_of(row, "cores"));
  cpu.fp32 = cycles * number_of(row, "fp32_per_cycle");
  cpu.bf16 = cycles * number_of(row, "bf16_per_cycle");
  cpu.memory_rate = number_of(row, "mem_gbs") * 1e9;
  return cpu;
}

CatalogueDisk disk_of(const ConfigNode::Entry& entry) {
  auto disk = begun<CatalogueDisk>(entry);
  disk.read = number_of(entry.value, "read_gbs") * 1e9;
  disk.write = number_of(entry.value, "write_gbs") * 1e9;
  disk.latency = number_of(entry.value, "latency_us") * 1e-6;
  return disk;
}

CatalogueLink link_of(const ConfigNode::Entry& entry) {
  auto link = begun<CatalogueLink>(entry);
  link.rate = number_of(entry.value, "gbs_dir") * 1e9;
  link.latency = number_of(entry.value, "latency_us") * 1e-6;
  return link;
}

/// The rows of [kind.id]; `make` gets those without a problem.
template <class Make>
auto rows_of(const ConfigNode& root,
             const RowKind& kind,
             const Make& make,
             std::vector<ConfigProblem>& problems) {
  std::vector<decltype(make(root.entries.front()))> out;
  for (const ConfigNode::Entry& entry : root.entries) {
    if (entry.key != kind.name) continue;
    if (!entry.value.is_table())
      problems.push_back(
          {entry.key_at, fmt::format("{} is {}, must be tables; write [{}.NAME]", kind.name,
                                     to_string(entry.value.kind), kind.name)});
    for (const ConfigNode::Entry& row : entry.value.entries)
      if (check_row(row, kind, problems)) out.push_back(make(row));
  }
  return out;
}

}  // namespace

DeviceCatalogue parse_catalogue(std::string_view text,
                                const std::string& name,
                                std::vector<ConfigProblem>& problems) {
  DeviceCatalogue out;
  const ConfigNode root = parse_config_tree(text, name, problems);
  for (const ConfigNode::Entry& row : root.entries) {
    if (row.key == cpu_kind.name || row.key == disk_kind.name || row.key == link_kind.name)
      continue;
    if (check_row(row, accelerator_kind, problems)) out.accelerators.push_back(accelerator_of(row));
  }
  out.cpus = rows_of(root, cpu_kind, cpu_of, problems);
  out.disks = rows_of(root, disk_kind, disk_of, problems);
  out.links = rows_of(root, link_kind, link_of, problems);
  return out;
}

const DeviceCatalogue& built_in_catalogue() {
  static const DeviceCatalogue catalogue = [] {
    std::vector<ConfigProblem> problems;
    auto parsed = parse_catalogue(device_catalogue_text, "conf/devices.toml", problems);
    EXPECTS(problems.empty());  // a test reads the same file
    return parsed;
  }();
  return catalogue;
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

LinkSpec achievable_host_link(const CatalogueDevice& device, Seconds launch, double time_scale) {
  return {launch * time_scale, device.host_rate * host_link_efficiency / time_scale};
}

BytesPerSecond achievable_memory_rate(const CatalogueCpu& cpu) {
  return cpu.memory_rate * memory_efficiency;
}

std::optional<AcceleratorRates> accelerator_rates(const CatalogueDevice& device) {
  AcceleratorRates out;
  out.peak = std::max(device.bf16, device.fp16);
  out.memory = device.memory_rate;
  out.processors = device.processors;
  if (device.bf16_measured > 0) out.achievable = device.bf16_measured / device.bf16;
  if (out.peak <= 0 || out.processors < 1 || device.peer_rate <= 0) return std::nullopt;
  return out;
}

}  // namespace troupe
