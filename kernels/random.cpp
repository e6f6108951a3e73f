#include "kernels/random.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>

#include "devices/compute_pool.h"
#include "kernels/element.h"

namespace troupe::kernels {

PhiloxCounter philox4x32(PhiloxCounter c, PhiloxKey k) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c[0];
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ k[0], static_cast<std::uint32_t>(p1),
         static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ k[1], static_cast<std::uint32_t>(p0)};
    k[0] += 0x9E3779B9u;
    k[1] += 0xBB67AE85u;
  }
  return c;
}

PhiloxKey dropout_philox_key(const DropoutKey& key) {
  // Apart from fill_normal's numbers, and from those of any other step beyond 2^32.
  return {static_cast<std::uint32_t>(key.seed) ^ static_cast<std::uint32_t>(key.step >> 32),
          static_cast<std::uint32_t>(key.seed >> 32) ^ 0x64726f70u};
}

PhiloxCounter dropout_words(const DropoutKey& key, std::uint64_t sample, std::uint64_t block) {
  return philox4x32({static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(sample),
                     key.tensor, static_cast<std::uint32_t>(key.step)},
                    dropout_philox_key(key));
}

std::uint32_t dropout_threshold(double p) {
  return static_cast<std::uint32_t>(p * 0x1p32);
}

float dropout_scale(double p) {
  return static_cast<float>(1.0 / (1.0 - p));
}

namespace {

constexpr std::uint64_t shard_elements = 1 << 16;

/// Elements [4 block, 4 block + 4): two Box-Muller pairs.
std::array<float, 4> four_normals(std::uint64_t block,
                                  std::uint64_t name_hash,
                                  PhiloxKey key,
                                  double standard_deviation) {
  const PhiloxCounter words = philox4x32(
      {static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
       static_cast<std::uint32_t>(name_hash), static_cast<std::uint32_t>(name_hash >> 32)},
      key);
  std::array<float, 4> normals{};
  for (std::size_t pair = 0; pair < 4; pair += 2) {
    const double u = (static_cast<double>(words[pair]) + 1.0) * 0x1p-32;  // (0, 1]
    const double angle = static_cast<double>(words[pair + 1]) * 0x1p-32 * 2 * M_PI;
    const double radius = standard_deviation * std::sqrt(-2 * std::log(u));
    normals[pair] = static_cast<float>(radius * std::cos(angle));
    normals[pair + 1] = static_cast<float>(radius * std::sin(angle));
  }
  return normals;
}

}  // namespace

void fill_normal(Stream& stream,
                 Tensor out,
                 std::uint64_t seed,
                 std::string_view name,
                 double standard_deviation) {
  EXPECTS(out.dtype == DType::f32 && out.dense());
  const std::uint64_t n = out.elements();
  if (counted(stream, {0, 60 * static_cast<double>(n), out.bytes()})) return;
  const std::uint64_t name_hash = XXH3_64bits(name.data(), name.size());
  const PhiloxKey key{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
  const auto shard = [&](std::uint64_t index, std::uint32_t) {
    const std::uint64_t end = std::min(n, (index + 1) * shard_elements);
    for (std::uint64_t i = index * shard_elements; i < end; i += 4) {
      const auto normals = four_normals(i / 4, name_hash, key, standard_deviation);
      for (std::uint64_t j = 0; j < 4 && i + j < end; ++j) out.as<float>()[i + j] = normals[j];
    }
  };
  const std::uint64_t shards = (n + shard_elements - 1) / shard_elements;
  if (stream.body() == Stream::Body::fast) {
    stream.pool().run(shards, shard);
  } else {
    for (std::uint64_t i = 0; i < shards; ++i) shard(i, 0);
  }
}

}  // namespace troupe::kernels
