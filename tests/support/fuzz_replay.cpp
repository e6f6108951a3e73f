/// Stands in for libFuzzer in ordinary builds: runs every file of the given folders through the
/// fuzz target, then seeded mutations of them. Exits by the target's own failure.
///   fuzz_X [MUTATIONS] FOLDER...
#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using Input = std::vector<std::uint8_t>;

std::vector<Input> inputs_of(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<Input> inputs;
  for (const auto& path : paths) {
    std::ifstream in(path, std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return inputs;
}

/// Flips, inserts, removes or repeats a few bytes.
Input mutated(Input input, std::mt19937_64& random) {
  for (std::uint64_t edits = 1 + random() % 4; edits > 0; --edits) {
    const std::size_t at = input.empty() ? 0 : random() % input.size();
    const auto place = input.begin() + static_cast<std::ptrdiff_t>(at);
    const auto byte = static_cast<std::uint8_t>(random());
    switch (input.empty() ? 1 : random() % 4) {
      case 0: *place = byte; break;
      case 1: input.insert(place, byte); break;
      case 2:
        input.erase(place, place + static_cast<std::ptrdiff_t>(
                                       std::min<std::size_t>(input.size() - at, 1 + random() % 8)));
        break;
      default: {
        const Input copy(place, place + static_cast<std::ptrdiff_t>(
                                            std::min<std::size_t>(input.size() - at, 16)));
        input.insert(input.end(), copy.begin(), copy.end());
      }
    }
  }
  return input;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<Input> inputs{{}};
  std::uint64_t mutations = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (std::from_chars(word.data(), word.data() + word.size(), mutations).ec == std::errc()) {
      continue;
    }
    for (auto& input : inputs_of(word)) inputs.push_back(std::move(input));
  }
  for (const auto& input : inputs) LLVMFuzzerTestOneInput(input.data(), input.size());
  std::mt19937_64 random(1);
  for (std::uint64_t i = 0; i < mutations; ++i) {
    const Input input = mutated(inputs[random() % inputs.size()], random);
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::printf("%zu inputs and %llu mutations passed\n", inputs.size(),
              static_cast<unsigned long long>(mutations));
  return inputs.size() > 1 ? 0 : 1;
}
