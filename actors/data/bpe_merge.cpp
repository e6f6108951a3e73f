#include "actors/data/bpe_merge.h"

#include <algorithm>
#include <queue>
#include <tuple>

#include "planner/result.h"

namespace troupe {
namespace {

/// A pair that may be merged, if both symbols are still what they were.
struct Candidate {
  std::uint32_t rank;
  std::uint32_t at;
  std::int32_t left, right, joined;
  friend bool operator>(const Candidate& a, const Candidate& b) {
    return std::tie(a.rank, a.at) > std::tie(b.rank, b.at);
  }
};

/// Symbols as a list: a merged one keeps the place of its left part, the right part becomes `gone`.
class Word {
 public:
  Word(std::vector<std::int32_t>& symbols, const MergeTable& merges)
      : symbols_(symbols), merges_(merges), next_(symbols.size()), before_(symbols.size()) {
    for (std::uint32_t i = 0; i < size(); ++i) {
      next_[i] = i + 1;
      before_[i] = i == 0 ? size() : i - 1;
    }
    for (std::uint32_t i = 0; i + 1 < size(); ++i) offer(i);
  }

  void run() {
    std::vector<Candidate> batch;
    while (!heap_.empty()) {
      const std::uint32_t rank = heap_.top().rank;
      batch.clear();
      for (; !heap_.empty() && heap_.top().rank == rank; heap_.pop()) batch.push_back(heap_.top());
      for (const Candidate& candidate : batch) apply(candidate);
    }
    symbols_.erase(std::remove(symbols_.begin(), symbols_.end(), gone), symbols_.end());
  }

 private:
  static constexpr std::int32_t gone = -1;
  std::uint32_t size() const { return static_cast<std::uint32_t>(symbols_.size()); }

  void offer(std::uint32_t at) {
    if (at >= size() || next_[at] >= size()) return;
    const std::int32_t left = symbols_[at];
    const std::int32_t right = symbols_[next_[at]];
    if (const Merge* merge = merges_.find(left, right))
      heap_.push({merge->rank, at, left, right, merge->joined});
  }

  void apply(const Candidate& candidate) {
    const std::uint32_t at = candidate.at;
    if (symbols_[at] != candidate.left || next_[at] >= size()) return;
    const std::uint32_t right = next_[at];
    if (symbols_[right] != candidate.right) return;
    symbols_[at] = candidate.joined;
    symbols_[right] = gone;
    next_[at] = next_[right];
    if (next_[at] < size()) before_[next_[at]] = at;
    offer(before_[at]);
    offer(at);
  }

  std::vector<std::int32_t>& symbols_;
  const MergeTable& merges_;
  std::vector<std::uint32_t> next_, before_;
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> heap_;
};

}  // namespace

void merge_symbols(std::vector<std::int32_t>& symbols, const MergeTable& merges) {
  EXPECTS(symbols.size() < 0xffffffffULL);
  if (symbols.size() > 1) Word(symbols, merges).run();
}

}  // namespace troupe
