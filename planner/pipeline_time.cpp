#include "planner/pipeline_time.h"

#include <algorithm>
#include <vector>

namespace troupe {
namespace {

/// Ends by (stage, microbatch); negative: not known yet.
class Ends {
 public:
  Ends(std::size_t stages, std::uint32_t microbatches)
      : microbatches_(microbatches), values_(stages * microbatches, -1.0) {}
  Seconds& at(std::size_t stage, std::uint32_t microbatch) {
    return values_[stage * microbatches_ + microbatch];
  }

 private:
  std::size_t microbatches_;
  std::vector<Seconds> values_;
};

class Pipeline {
 public:
  Pipeline(const StepCosts& costs,
           std::uint32_t microbatches,
           std::uint32_t slots,
           std::uint32_t in_flight)
      : costs_(costs),
        stages_(costs.stages.size()),
        microbatches_(microbatches),
        slots_(slots),
        in_flight_(std::min(microbatches, in_flight)),
        forward_(stages_, microbatches),
        backward_(stages_, microbatches),
        sent_forward_(stages_, microbatches),
        sent_backward_(stages_, microbatches),
        lanes_(stages_) {}

  Seconds run(bool tied) {
    for (std::size_t left = 2 * stages_ * microbatches_; left > 0;) {
      const std::size_t before = left;
      for (std::size_t s = 0; s < stages_; ++s) left -= advance(s);
      for (std::size_t s = stages_; s-- > 0;) left -= advance(s);
      EXPECTS(left < before);
    }
    return norm_and_update(tied);
  }

 private:
  struct Lane {
    std::uint32_t forwards = 0, backwards = 0;
    Seconds free = 0;
  };

  /// Plays what can be played of a stage's lane; returns how many actions.
  std::size_t advance(std::size_t s) {
    Lane& lane = lanes_[s];
    const auto warm_up = static_cast<std::uint32_t>(std::min<std::size_t>(stages_ - s, in_flight_));
    std::size_t played = 0;
    while (lane.backwards < microbatches_) {
      const bool forward_next =
          lane.forwards < microbatches_ && lane.forwards < lane.backwards + warm_up;
      if (!(forward_next ? forward(s, lane) : backward(s, lane))) break;
      ++played;
    }
    return played;
  }

  bool forward(std::size_t s, Lane& lane) {
    const std::uint32_t m = lane.forwards;
    Seconds begin = lane.free;
    if (s > 0) {
      const Seconds input = arrival_forward(s - 1, m);
      if (input < 0) return false;
      begin = std::max(begin, input);
    }
    lane.free = forward_.at(s, m) = begin + costs_.stages[s].forward + costs_.overhead[s];
    ++lane.forwards;
    return true;
  }

  bool backward(std::size_t s, Lane& lane) {
    const std::uint32_t m = lane.backwards;
    Seconds begin = lane.free;
    if (s + 1 < stages_) {
      const Seconds input = arrival_backward(s + 1, m);
      if (input < 0) return false;
      begin = std::max(begin, input);
    }
    if (s > 0 && m >= slots_) {
      const Seconds room = arrival_backward(s, m - slots_);
      if (room < 0) return false;
      begin = std::max(begin, room);
    }
    const LayerSeconds& one = costs_.stages[s];
    lane.free = backward_.at(s, m) =
        begin + one.backward_input + one.backward_weight + costs_.overhead[s];
    ++lane.backwards;
    return true;
  }

  /// End of XF s.m: after F s.m, the transfer before it and a free buffer at stage s + 1.
  Seconds arrival_forward(std::size_t s, std::uint32_t m) {
    return arrival(sent_forward_, forward_, forward_, s, s + 1, m, costs_.transfer_forward[s]);
  }
  Seconds arrival_backward(std::size_t s, std::uint32_t m) {
    return arrival(sent_backward_, backward_, backward_, s, s - 1, m, costs_.transfer_backward[s]);
  }
  Seconds arrival(Ends& sent,
                  Ends& made,
                  Ends& used,
                  std::size_t from,
                  std::size_t to,
                  std::uint32_t m,
                  Seconds seconds) {
    if (sent.at(from, m) >= 0) return sent.at(from, m);
    Seconds begin = made.at(from, m);
    if (begin < 0) return -1;
    if (m > 0) begin = std::max(begin, sent.at(from, m - 1));
    if (m >= slots_) {
      const Seconds room = used.at(to, m - slots_);
      if (room < 0) return -1;
      begin = std::max(begin, room);
    }
    return sent.at(from, m) = begin + seconds;
  }

  Seconds norm_and_update(bool tied) {
    Seconds halves = 0;  // both halves of a tied table have been exchanged
    if (tied && stages_ > 1)
      for (const std::size_t s : {std::size_t{0}, stages_ - 1}) {
        // The half follows the activations or gradients that use the same link.
        Seconds begin = lanes_[s].free;
        if (stages_ == 2)
          begin = std::max(begin, s == 0 ? sent_forward_.at(0, microbatches_ - 1)
                                         : sent_backward_.at(1, microbatches_ - 1));
        halves = std::max(halves, begin + costs_.transfer_tied[s]);
      }
    Seconds norms = 0;
    std::vector<Seconds> own(stages_);
    for (std::size_t s = 0; s < stages_; ++s) {
      const bool end = s == 0 || s + 1 == stages_;
      own[s] =
          std::max(lanes_[s].free, end ? halves : 0.0) + costs_.stages[s].norm + costs_.overhead[s];
      norms = std::max(norms, own[s]);
    }
    Seconds last = norms;
    for (std::size_t s = 0; s < stages_; ++s)
      last = std::max(last, norms + costs_.stages[s].update + costs_.overhead[s]);
    return last;
  }

  const StepCosts& costs_;
  std::size_t stages_;
  std::uint32_t microbatches_;
  std::uint32_t slots_;
  std::uint32_t in_flight_;  ///< at most
  Ends forward_, backward_, sent_forward_, sent_backward_;
  std::vector<Lane> lanes_;
};

}  // namespace

Seconds one_f_one_b_seconds(const StepCosts& costs,
                            std::uint32_t microbatches,
                            std::uint32_t transfer_slots,
                            bool tied,
                            std::uint32_t in_flight) {
  return Pipeline(costs, microbatches, transfer_slots, in_flight).run(tied);
}

}  // namespace troupe
