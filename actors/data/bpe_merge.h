/// Byte-pair merging of one word, in O(n log n).
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace troupe {

/// What joining two neighbouring symbols gives, and how early it happens.
struct Merge {
  std::uint32_t rank = 0;
  std::int32_t joined = 0;
};

/// Merges by (left id, right id).
class MergeTable {
 public:
  void reserve(std::size_t count) { merges_.reserve(count); }
  /// False when the pair is known already.
  bool add(std::int32_t left, std::int32_t right, Merge merge) {
    return merges_.emplace(key(left, right), merge).second;
  }
  const Merge* find(std::int32_t left, std::int32_t right) const {
    const auto found = merges_.find(key(left, right));
    return found == merges_.end() ? nullptr : &found->second;
  }
  std::size_t size() const { return merges_.size(); }

 private:
  static std::uint64_t key(std::int32_t left, std::int32_t right) {
    return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) |
           static_cast<std::uint32_t>(right);
  }
  struct Mix {
    std::size_t operator()(std::uint64_t x) const {
      x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15ULL;
      return static_cast<std::size_t>(x ^ (x >> 29));
    }
  };
  std::unordered_map<std::uint64_t, Merge, Mix> merges_;
};

/// Merges in place: again and again all pairs of the lowest rank that is there, from left to right,
/// until no pair is left that has a merge.
void merge_symbols(std::vector<std::int32_t>& symbols, const MergeTable& merges);

}  // namespace troupe
