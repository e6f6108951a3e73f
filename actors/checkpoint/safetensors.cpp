#include "actors/checkpoint/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "actors/data/mapped_file.h"
#include "actors/data/strict_json.h"

namespace troupe {

static_assert(std::endian::native == std::endian::little, "files are little endian");

Result<SafetensorsFile> SafetensorsFile::open(const std::filesystem::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (file < 0) {
    if (errno == ELOOP)
      return Error{ErrorCode::invalid_input, path.string() + ": links are not followed"};
    return file_error(path, "open", errno);
  }
  SafetensorsFile opened(file, path, 0);
  struct stat status {};
  if (::fstat(file, &status) != 0) return file_error(path, "inspect", errno);
  if (!S_ISREG(status.st_mode))
    return Error{ErrorCode::invalid_input, path.string() + ": not a regular file"};
  opened.bytes_ = static_cast<std::uint64_t>(status.st_size);
  std::byte first[8]{};
  const std::size_t available = std::min<std::uint64_t>(8, opened.bytes_);
  TROUPE_TRY(opened.read_at(0, std::span(first).first(available), "header"));
  const auto length =
      header_length(std::span(first).first(available), opened.bytes_, path.string());
  TROUPE_TRY(length);
  std::string header(*length, '\0');
  TROUPE_TRY(
      opened.read_at(8, std::as_writable_bytes(std::span(header.data(), header.size())), "header"));
  auto parsed = parse_header(header, opened.bytes_, path.string());
  TROUPE_TRY(parsed);
  opened.header_ = std::move(*parsed);
  return opened;
}

SafetensorsFile::SafetensorsFile(SafetensorsFile&& other) noexcept
    : file_(std::exchange(other.file_, -1)),
      path_(std::move(other.path_)),
      bytes_(other.bytes_),
      header_(std::move(other.header_)) {}

SafetensorsFile::~SafetensorsFile() {
  if (file_ >= 0) ::close(file_);
}

Status SafetensorsFile::read_at(std::uint64_t offset,
                                std::span<std::byte> out,
                                std::string_view tensor) const {
  while (!out.empty()) {
    const std::size_t wanted = std::min(out.size(), piece_bytes);
    const ssize_t count = ::pread(file_, out.data(), wanted, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return file_error(path_, fmt::format("read \"{}\"", printable(tensor)), errno);
    if (count == 0)
      return Error{ErrorCode::corrupt,
                   fmt::format("{}: tensor \"{}\": the file ends at offset {}, {} bytes too early",
                               path_.string(), printable(tensor), offset, out.size())};
    offset += static_cast<std::uint64_t>(count);
    out = out.subspan(static_cast<std::size_t>(count));
  }
  return {};
}

Status SafetensorsFile::read(const TensorEntry& tensor,
                             std::uint64_t first,
                             std::span<float> out) const {
  EXPECTS(first <= tensor.elements() && out.size() <= tensor.elements() - first);
  const std::uint64_t start = header_.data_start + tensor.begin + first * size_of(tensor.type);
  if (tensor.type == FileType::f32) return read_at(start, std::as_writable_bytes(out), tensor.name);
  if (tensor.type != FileType::bf16 && tensor.type != FileType::f16)
    return Error{ErrorCode::invalid_input,
                 fmt::format("{}: tensor \"{}\" is {}; weights must be F32, BF16 or F16",
                             path_.string(), printable(tensor.name), to_string(tensor.type))};
  std::vector<std::uint16_t> piece(std::min(out.size(), piece_bytes / 2));
  for (std::size_t done = 0; done < out.size();) {
    const auto part = std::span(piece).first(std::min(piece.size(), out.size() - done));
    TROUPE_TRY(read_at(start + 2 * done, std::as_writable_bytes(part), tensor.name));
    for (const std::uint16_t bits : part)
      out[done++] = tensor.type == FileType::bf16 ? from_bf16(bits) : from_f16(bits);
  }
  return {};
}

Result<SafetensorsWriter> SafetensorsWriter::create(
    const std::filesystem::path& path,
    const std::vector<TensorPlan>& tensors,
    const std::map<std::string, std::string>& metadata,
    const WriteHook* hook) {
  auto header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t elements = 0;
  for (const TensorPlan& tensor : tensors) {
    std::uint64_t count = 1;
    for (const std::uint64_t extent : tensor.shape) count *= extent;
    EXPECTS(!header.contains(tensor.name));
    header[tensor.name] = {{"dtype", "F32"},
                           {"shape", tensor.shape},
                           {"data_offsets", {4 * elements, 4 * (elements + count)}}};
    elements += count;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');  // data begins at a multiple of 8
  std::string head(8, '\0');
  const std::uint64_t length = text.size();
  std::memcpy(head.data(), &length, 8);
  head += text;
  auto file = DurableFile::create(path, hook);
  TROUPE_TRY(file);
  TROUPE_TRY(file->write(std::as_bytes(std::span(head.data(), head.size()))));
  return SafetensorsWriter(std::move(*file), elements);
}

Status SafetensorsWriter::append(std::span<const float> values) {
  EXPECTS(values.size() <= missing_);
  missing_ -= values.size();
  return file_.write(std::as_bytes(values));
}

Result<FileRecord> SafetensorsWriter::finish() {
  EXPECTS(missing_ == 0);
  return file_.finish();
}

float from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

float from_f16(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fU;
  const std::uint32_t fraction = bits & 0x3ffU;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000U | (fraction << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
  const float magnitude = static_cast<float>(fraction) * 0x1p-24F;
  return sign != 0 ? -magnitude : magnitude;
}

}  // namespace troupe
