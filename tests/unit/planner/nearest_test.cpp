#include "planner/nearest.h"

#include "tests/support/catch.h"

using namespace troupe;
using Names = std::vector<std::string>;

namespace {

const Names devices{"p100_pcie_16",  "v100_pcie_16", "v100_sxm2_16", "v100_pcie_32", "v100_sxm2_32",
                    "v100s_pcie_32", "t4_16",        "rtx3090_24",   "a100_sxm_40",  "a100_sxm_80"};

}  // namespace

TEST_CASE("edits are counted, a swap of neighbours as one") {
  CHECK(edit_distance("", "abc") == 3);
  CHECK(edit_distance("width", "widht") == 1);
  CHECK(edit_distance("kitten", "sitting") == 3);
}

TEST_CASE("a word that begins or is part of names stands for these names") {
  CHECK(likely_names("v100", devices) ==
        Names{"v100_pcie_16", "v100_sxm2_16", "v100_pcie_32", "v100_sxm2_32"});
  CHECK(likely_names("v100", devices, 1) == Names{"v100_pcie_16"});
  CHECK(likely_names("RTX 3090", devices) == Names{"rtx3090_24"});
  CHECK(likely_names("3090", devices) == Names{"rtx3090_24"});
  CHECK(likely_names("V100-SXM2", devices) == Names{"v100_sxm2_16", "v100_sxm2_32"});
}

TEST_CASE("a misspelt name stands for the one it is near to, a longer one for its first part's") {
  CHECK(likely_names("v100_pice_16", devices) == Names{"v100_pcie_16"});
  CHECK(likely_names("a100-nvl-40gb", devices) == Names{"a100_sxm_40", "a100_sxm_80"});
  CHECK(likely_names("quantum", devices).empty());
  CHECK(likely_names("quantum", {}).empty());
  CHECK(near_names_text("t4_61", devices) == "nearest legal value: \"t4_16\"");
  CHECK(near_names_text("a100", devices) ==
        "nearest legal values: \"a100_sxm_40\", \"a100_sxm_80\"");
  CHECK(near_names_text("quantum", devices).find("nearest legal value: \"") == 0);
}
