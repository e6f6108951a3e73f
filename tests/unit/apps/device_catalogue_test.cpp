#include "apps/device_catalogue.h"

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
    CHECK(device->entries.size() == written);
  }
}
