#include "apps/device_catalogue.h"

#include <algorithm>
#include <fstream>
#include <iterator>

#include "tests/support/catch.h"
#include "tests/support/published_table.h"

using namespace troupe;

namespace {

ConfigNode catalogue_tree() {
  std::ifstream file(std::string(TROUPE_SOURCE_DIR) + "/conf/devices.toml");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::vector<ConfigProblem> problems;
  ConfigNode root = parse_config_tree(text, "conf/devices.toml", problems);
  CHECK(problems.empty());
  return root;
}

/// A field of the table is the same text or the same number; an empty field is a missing key.
bool agrees(const ConfigNode* node, const std::string& field) {
  if (field.empty() || node == nullptr) return field.empty() && node == nullptr;
  if (node->kind == ConfigNode::Kind::text) return node->text == field;
  return node->number == std::stod(field);
}

}  // namespace

TEST_CASE("the device catalogue holds every row of the published table, figure by figure") {
  const ConfigNode root = catalogue_tree();
  const published::Table table(TROUPE_SOURCE_DIR "/tests/data", "devices");
  CHECK(table.size() == 28);
  for (const published::Row& row : table.rows()) {
    CAPTURE(row.text("id"));
    const ConfigNode* device = root.find(row.text("id"));
    REQUIRE(device != nullptr);
    std::size_t written = 0;
    for (const std::string& column : table.columns()) {
      if (column == "id") continue;
      const std::string& field = row.text(column);
      CAPTURE(column, field);
      CHECK(agrees(device->find(column), field));
      if (!field.empty()) ++written;
    }
    // What the table does not have.
    for (const char* own : {"multiprocessors", "bf16_measured_tflops"})
      if (device->find(own) != nullptr) ++written;
    CHECK(device->entries.size() == written);
  }
}

TEST_CASE("every accelerator of the catalogue can be priced, none reaches more than its peak") {
  for (const CatalogueDevice& device : built_in_catalogue().accelerators) {
    CAPTURE(device.id);
    const auto rates = accelerator_rates(device);
    REQUIRE(rates.has_value());
    CHECK(rates->achievable > 0.4);
    CHECK(rates->achievable < 1);
    CHECK(rates->processors >= 40);
    CHECK(rates->processors <= 304);
  }
}

namespace {

DeviceCatalogue parsed(const std::string& text, std::string& problems_text) {
  std::vector<ConfigProblem> problems;
  DeviceCatalogue out = parse_catalogue(text, "d.toml", problems);
  problems_text.clear();
  for (const ConfigProblem& problem : problems) problems_text += to_string(problem) + "\n";
  return out;
}

/// The row of a kind, by its id.
template <class Row>
const Row& row_of(const std::vector<Row>& rows, std::string_view id) {
  const auto found =
      std::find_if(rows.begin(), rows.end(), [&](const Row& row) { return row.id == id; });
  REQUIRE(found != rows.end());
  return *found;
}

}  // namespace

TEST_CASE("the built-in catalogue has CPUs, disks and links with their sources") {
  const DeviceCatalogue& all = built_in_catalogue();
  CHECK(all.accelerators.size() == 28);
  CHECK(all.cpus.size() >= 10);
  CHECK(all.disks.size() >= 6);
  CHECK(all.links.size() >= 20);
  const auto sourced = [](const auto& rows) {
    for (const CatalogueRow& row : rows) {
      CAPTURE(row.id);
      CHECK_FALSE(row.name.empty());
      CHECK(row.source.size() > 5);
      CHECK((row.certainty == "found" || row.certainty == "partly" || row.certainty == "recalled"));
    }
  };
  sourced(all.accelerators);
  sourced(all.cpus);
  sourced(all.disks);
  sourced(all.links);
  // 64 cores x 2.45 GHz x 32; 8 channels x 3200 MT/s x 8 bytes.
  CHECK(row_of(all.cpus, "epyc_7763").fp32 == Approx(5.0176e12));
  CHECK(row_of(all.cpus, "epyc_7763").memory_rate == Approx(204.8e9));
  CHECK(row_of(all.cpus, "epyc_7763").bf16 == 0);
  CHECK(row_of(all.disks, "nvme5_pm1743").read == Approx(13e9));
  CHECK(row_of(all.links, "ib_hdr").rate == Approx(25e9));
  CHECK(row_of(all.links, "ib_hdr").latency == Approx(2.7e-6));
}

TEST_CASE("derived figures of the catalogue agree with those they derive from") {
  const ConfigNode root = catalogue_tree();
  const auto figure = [](const ConfigNode& row, const char* key) {
    const ConfigNode* node = row.find(key);
    return node == nullptr ? 0 : node->number;
  };
  std::size_t derived = 0;
  for (const ConfigNode::Entry& cpu : root.find("cpu")->entries) {
    CAPTURE(cpu.key);
    if (figure(cpu.value, "mem_mts") == 0) continue;
    CHECK(figure(cpu.value, "mem_gbs") ==
          Approx(figure(cpu.value, "mem_channels") * figure(cpu.value, "mem_mts") * 8 / 1000));
    ++derived;
  }
  for (const ConfigNode::Entry& link : root.find("link")->entries) {
    CAPTURE(link.key);
    if (figure(link.value, "gbit") == 0) continue;
    CHECK(figure(link.value, "gbs_dir") == Approx(figure(link.value, "gbit") / 8));
    ++derived;
  }
  CHECK(derived >= 15);
  // What accelerators say of their links is what the links say of themselves.
  const DeviceCatalogue& all = built_in_catalogue();
  for (const CatalogueDevice& device : all.accelerators) {
    const ConfigNode& row = *root.find(device.id);
    CAPTURE(device.id);
    const std::string pcie =
        "pcie" + std::to_string(static_cast<int>(figure(row, "pcie_gen"))) + "_x16";
    CHECK(row_of(all.links, pcie).rate == Approx(figure(row, "pcie_gbs_dir") * 1e9));
    const std::string link = row.find("link")->text;
    if (link.starts_with("nvlink") && link != "nvlink_bridge")
      CHECK(row_of(all.links, link).rate == Approx(figure(row, "link_gbs_total") * 1e9 / 2));
  }
}

TEST_CASE("rows without their rates, with foreign keys or of no kind are refused by name") {
  std::string problems;
  const std::string cpu = "[cpu.a]\ncores = 4\nbase_ghz = 2.5\nfp32_per_cycle = 32\n";
  CHECK(parsed(cpu + "mem_gbs = 20\n", problems).cpus.size() == 1);
  CHECK(problems.empty());
  CHECK(parsed(cpu, problems).cpus.empty());
  CHECK(problems == "d.toml:1:1: cpu a needs mem_gbs; a positive number\n");
  parsed("[link.x]\ngbs_dir = 0\nlatency_us = 1\n", problems);
  CHECK(problems == "d.toml:1:1: link x needs gbs_dir; a positive number\n");
  parsed("[disk.d]\nread_gbs = 1\nwrite_gbs = 1\nlatency_us = 9\nreed_kiops = 3\n", problems);
  CHECK(problems ==
        "d.toml:5:1: unknown key \"reed_kiops\" of disk d; did you mean \"read_kiops\"?\n");
  parsed("[link.x]\ngbs_dir = \"fast\"\nlatency_us = 1\n", problems);
  CHECK(problems ==
        "d.toml:2:11: x.gbs_dir is text, must be a number; write for example gbs_dir = 16\n");
  parsed("cpu = 3\n", problems);
  CHECK(problems == "d.toml:1:1: cpu is an integer, must be tables; write [cpu.NAME]\n");
  parsed("[a]\nfp32_tflops = 1\nmem_gb = 1\n", problems);
  CHECK(problems == "d.toml:1:1: device a needs mem_gbs; a positive number\n");
  parsed("mem_gb = 1\n", problems);
  CHECK(problems.find("d.toml:1:1: \"mem_gb\" stands outside of a device") == 0);
}
