#include "planner/ideals.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

namespace troupe {
namespace {

using Words = std::vector<std::uint64_t>;

struct WordsHash {
  std::size_t operator()(const Words& words) const {
    std::uint64_t hash = 0;
    for (const auto word : words) {
      hash = (hash ^ word) * 0x9e3779b97f4a7c15U;
      hash ^= hash >> 32U;
    }
    return hash;
  }
};

bool holds(const Words& words, std::uint32_t node) {
  return ((words[node / 64] >> (node % 64)) & 1U) != 0;
}

}  // namespace

Result<IdealLattice> IdealLattice::make(const std::vector<std::vector<Node>>& predecessors,
                                        std::size_t limit) {
  const auto count = static_cast<Node>(predecessors.size());
  IdealLattice lattice;
  lattice.above_.emplace_back();
  lattice.below_.emplace_back();
  // All ideals of one size, in the order of their numbers, and those that are one larger.
  std::vector<Words> level = {Words((count + 63) / 64, 0)};
  Ideal first = 0;
  for (Node size = 0; size < count; ++size) {
    std::unordered_map<Words, Ideal, WordsHash> known;
    std::vector<Words> larger;
    for (std::size_t i = 0; i < level.size(); ++i) {
      const auto ideal = static_cast<Ideal>(first + i);
      for (Node node = 0; node < count; ++node) {
        if (holds(level[i], node)) continue;
        const auto& needed = predecessors[node];
        if (!std::all_of(needed.begin(), needed.end(),
                         [&](Node other) { return holds(level[i], other); })) {
          continue;
        }
        Words words = level[i];
        words[node / 64] |= std::uint64_t{1} << (node % 64);
        const auto [found, added] =
            known.try_emplace(words, static_cast<Ideal>(first + level.size() + larger.size()));
        if (added) {
          if (lattice.above_.size() >= limit) {
            return Error{ErrorCode::out_of_memory,
                         fmt::format("the graph has more than {} ideals", limit)};
          }
          larger.push_back(std::move(words));
          lattice.above_.emplace_back();
          lattice.below_.push_back({node, ideal});
        }
        lattice.above_[ideal].push_back({node, found->second});
      }
    }
    if (larger.empty()) return Error{ErrorCode::invalid_input, "the graph has a cycle"};
    first += static_cast<Ideal>(level.size());
    level = std::move(larger);
  }
  return lattice;
}

std::vector<IdealLattice::Node> IdealLattice::nodes(Ideal ideal) const {
  std::vector<Node> result;
  for (; ideal != 0; ideal = below_[ideal].ideal) result.push_back(below_[ideal].node);
  std::sort(result.begin(), result.end());
  return result;
}

IdealLattice::Ideal IdealLattice::with(Ideal ideal, Node node) const {
  const auto& steps = above_[ideal];
  const auto found =
      std::lower_bound(steps.begin(), steps.end(), node,
                       [](const Step& step, Node value) { return step.node < value; });
  EXPECTS(found != steps.end() && found->node == node);
  return found->ideal;
}

void IdealLattice::append_new(Ideal ideal, Ideal next, std::vector<Node>& candidates) const {
  const auto& old = above_[ideal];
  auto at = old.begin();
  for (const Step& step : above_[next]) {
    while (at != old.end() && at->node < step.node) ++at;
    if (at == old.end() || at->node != step.node) candidates.push_back(step.node);
  }
}

}  // namespace troupe
