/// Vocabulary parallelism: the output layer cut by words over all stages of a pipeline, so that the
/// last stage is no longer the slowest.
///
/// Yeung et al. 2025 ("Balancing Pipeline Parallelism with Vocabulary Parallelism",
/// arXiv:2411.05288), sections 4 and 5. Beside F and B of its blocks every stage runs of every
/// microbatch
///   S   its words' logits, their maxima and sums, after the last stage's output was broadcast
///   T   its words' gradients, after the maxima and sums of all S were reduced (a barrier).
/// How the gradient of the last stage's output comes about decides how many barriers stand before
/// its B, and as many more microbatches are in flight on every stage than under 1F1B:
///   two barriers  ("Vocab-1")  T makes the gradient of the output and of the weights, and the
///                              output's is summed over all T before the last B
///   one barrier   ("Vocab-2")  S already makes both halves of the output's gradient, which the
///                              barrier's maxima and sums only scale; T makes weight gradients and
///                              keeps nobody waiting
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/split_costs.h"

namespace troupe {

enum class VocabularyBarriers : std::uint8_t { one = 1, two = 2 };

enum class VocabularyOp : std::uint8_t { forward, backward, score, tail };  ///< F, B, S, T

struct VocabularyPass {
  VocabularyOp op = VocabularyOp::forward;
  std::uint32_t stage = 0, microbatch = 0;
  friend bool operator==(const VocabularyPass&, const VocabularyPass&) = default;
};
std::string to_string(const VocabularyPass& pass);  ///< "F0.3", "S2.1"

/// What a step costs. Vectors by stage; `transfer` has one fewer.
struct VocabularyProblem {
  std::vector<Seconds> forward, backward;  ///< of the stage's blocks, one microbatch
  Seconds score = 0, tail = 0;             ///< S and T, on each stage
  std::vector<Seconds> transfer;           ///< by boundary: of an output or a gradient
  Seconds broadcast = 0;                   ///< of the last stage's output to all
  Seconds barrier = 0;                     ///< of maxima and sums
  Seconds reduce = 0;                      ///< of the output's gradient; with one barrier within it
  std::uint32_t microbatches = 1;
  VocabularyBarriers barriers = VocabularyBarriers::two;
};

using VocabularyLanes = std::vector<std::vector<VocabularyPass>>;  ///< by stage, in order

/// Who runs what when.
struct VocabularyRun {
  struct Span {
    VocabularyPass pass;
    Seconds begin = 0, end = 0;
  };
  std::vector<std::vector<Span>> stages;  ///< by stage, in order
  std::vector<std::uint32_t> in_flight;   ///< by stage: most microbatches between F and B
  Seconds seconds = 0;                    ///< end of the last pass
};

/// The order of a step: what stages do where communication takes no time and a stage that is free
/// takes, of what could start, B, then F, S, T, each in microbatch order, with at most
/// p - s + barriers microbatches between F and B on stage s of p, as in the paper's building
/// blocks. Promise: at least one stage and microbatch, vectors of the same length.
VocabularyLanes vocabulary_order(const VocabularyProblem& problem);

/// The order of `vocabulary_order` played with communication, which takes time but no device.
VocabularyRun play_vocabulary_parallel(const VocabularyProblem& problem);

/// Seconds of S and T where `stages` share the words of an output layer evenly (padded to whole
/// words a stage).
struct VocabularySeconds {
  Seconds score = 0, tail = 0;
};
VocabularySeconds vocabulary_seconds(const BlockShape& shape,
                                     const BlockCut& cut,
                                     const AcceleratorRates& rates,
                                     std::uint32_t stages,
                                     VocabularyBarriers barriers);

}  // namespace troupe
