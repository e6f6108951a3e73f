/// Any bytes as a llama2.c model, as they are and cut or filled up to the size that their header
/// needs: an error and nothing left behind, or a checkpoint whose tables have the file's bytes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "actors/checkpoint/convert.h"
#include "tests/support/temporary_folder.h"

namespace {

constexpr std::size_t header_bytes = 28;
constexpr std::uint64_t most_bytes = 1 << 16;  // of what is filled up

/// The size that the header asks for, or 0 where the file has it or has none.
std::uint64_t check(const troupe::TemporaryFolder& folder, std::string_view content) {
  const auto out = folder / "out";
  troupe::set_content(folder / "model.bin", content);
  const auto imported = troupe::import_llama2c(folder / "model.bin", out);
  if (!imported.ok()) {
    if (imported.error().text.empty() || std::filesystem::exists(out)) std::abort();
    const std::string_view text = imported.error().text;
    const auto at = text.rfind("its header needs ");
    return at == std::string_view::npos
               ? 0
               : std::strtoull(text.data() + at + std::strlen("its header needs "), nullptr, 10);
  }
  const auto checkpoint = troupe::Checkpoint::open(out);
  if (!checkpoint.ok() || !(checkpoint->run().model == imported->model)) std::abort();
  const std::uint64_t count = std::uint64_t{imported->model.vocabulary} * imported->model.width;
  std::vector<float> table(count);
  const auto compare = [&](const std::string& name, std::size_t first_byte) {
    if (!checkpoint->read_values(name, 0, table).ok()) std::abort();
    if (std::memcmp(table.data(), content.data() + first_byte, count * sizeof(float)) != 0)
      std::abort();
  };
  compare("model.embed_tokens.weight", header_bytes);
  if (!imported->model.tied) compare("lm_head.weight", content.size() - count * sizeof(float));
  std::filesystem::remove_all(out);
  return 0;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const troupe::TemporaryFolder folder(troupe::Where::memory);
  std::string content(reinterpret_cast<const char*>(data), size);
  const std::uint64_t needed = check(folder, content);
  if (needed == 0 || needed > most_bytes) return 0;
  content.resize(needed, '\x3f');
  if (check(folder, content) != 0) std::abort();
  return 0;
}
