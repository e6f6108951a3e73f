/// The ideals of a directed acyclic graph: the sets that hold with every node all its predecessors.
/// The difference of two ideals, one inside the other, is what a contiguous stage can be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "planner/result.h"

namespace troupe {

class IdealLattice {
 public:
  using Node = std::uint32_t;
  using Ideal = std::uint32_t;
  /// Adding `node` to an ideal gives `ideal`.
  struct Step {
    Node node = 0;
    Ideal ideal = 0;
  };

  /// `predecessors[v]` are the nodes that every ideal with v holds; they may repeat. Refuses a
  /// cycle (invalid_input), and more than `limit` ideals (out_of_memory).
  static Result<IdealLattice> make(const std::vector<std::vector<Node>>& predecessors,
                                   std::size_t limit);

  /// Ideals are numbered by size: 0 is empty, size() - 1 holds every node.
  std::size_t size() const { return above_.size(); }
  Ideal full() const { return static_cast<Ideal>(size() - 1); }
  /// By node.
  const std::vector<Step>& above(Ideal ideal) const { return above_[ideal]; }
  /// One node of an ideal that is not empty, and the ideal without it.
  const Step& below(Ideal ideal) const { return below_[ideal]; }
  /// By number.
  std::vector<Node> nodes(Ideal ideal) const;

  /// Shows every ideal that holds `from` and more, once, by adding one node after the other:
  /// `visitor.add(node)` is false if no ideal with what has been added so far is of interest,
  /// `visitor.visit(ideal)` follows an add that was true, `visitor.remove(node)` undoes any add.
  template <class Visitor>
  void each_superset(Ideal from, Visitor& visitor) const {
    std::vector<Node> candidates;
    for (const Step& step : above_[from]) candidates.push_back(step.node);
    walk(from, 0, candidates, visitor);
  }

 private:
  Ideal with(Ideal ideal, Node node) const;
  /// Appends what can be added to `next` and could not be to `ideal`.
  void append_new(Ideal ideal, Ideal next, std::vector<Node>& candidates) const;

  /// Candidates before `first` have been decided: they are inside or stay outside. An ideal is
  /// reached on one path only, that which adds its first undecided candidate next.
  template <class Visitor>
  void walk(Ideal ideal, std::size_t first, std::vector<Node>& candidates, Visitor& visitor) const {
    const std::size_t count = candidates.size();
    for (std::size_t i = first; i < count; ++i) {
      const Node node = candidates[i];
      if (visitor.add(node)) {
        const Ideal next = with(ideal, node);
        visitor.visit(next);
        append_new(ideal, next, candidates);
        walk(next, i + 1, candidates, visitor);
        candidates.resize(count);
      }
      visitor.remove(node);
    }
  }

  std::vector<std::vector<Step>> above_;
  std::vector<Step> below_;
};

}  // namespace troupe
