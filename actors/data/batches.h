/// The data of a run: token files, their split into training and validation, and the batch of each
/// step. A batch is a function of (files, tokenizer, seed, step, shape) alone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "actors/data/token_cache.h"
#include "actors/data/tokenizer.h"
#include "actors/run_spec.h"
#include "planner/plan.h"
#include "planner/result.h"

namespace troupe {

/// Token ids of one microbatch. tokens, targets: (sequences, T), row by row; targets are the tokens
/// one place on.
struct MicrobatchData {
  std::vector<std::int32_t> tokens, targets;
  std::uint32_t sequences = 0;
  std::uint64_t first_sample = 0;  ///< index of its first sequence in the step
  std::uint64_t trained_tokens() const;
};

/// One step's tokens, cut into microbatches; the last may hold fewer sequences.
struct TokenBatch {
  std::uint64_t step = 0;
  std::uint32_t sequence_length = 0;
  std::vector<MicrobatchData> microbatches;
  std::vector<std::uint64_t> samples;  ///< window of each sequence, in step order
  std::uint64_t trained_tokens() const;
};

/// A run of tokens of one file that windows are cut from.
struct Segment {
  std::size_t file = 0;
  std::uint64_t first = 0, count = 0;
};

/// Windows of T + 1 tokens that overlap by one token: every token but the first of a segment is a
/// target once. What is left at a segment's end is not used.
class Windows {
 public:
  Windows(std::vector<Segment> segments, std::uint32_t sequence_length);
  std::uint64_t count() const { return ends_.empty() ? 0 : ends_.back(); }
  struct Place {
    std::size_t file = 0;
    std::uint64_t first = 0;
  };
  /// Where window `index` begins. Requires index < count().
  Place place(std::uint64_t index) const;
  const std::vector<Segment>& segments() const { return segments_; }

 private:
  std::vector<Segment> segments_;
  std::vector<std::uint64_t> ends_;  ///< windows up to and with each segment
  std::uint32_t length_;
};

class Dataset {
 public:
  /// Opens or makes the token caches. Refuses a tokenizer larger than the model, ids beyond the
  /// vocabulary (file, window, position and id named), and files too short for one window.
  static Result<Dataset> open(const DataSpec& data,
                              const StepShape& shape,
                              std::uint32_t model_vocabulary,
                              std::uint64_t seed);

  /// Steps count from 1.
  TokenBatch batch_for_step(std::uint64_t step) const;
  /// The `batches` fixed validation batches: windows spread evenly over the validation text; fewer
  /// when there are not so many windows. `step` is the batch's number from 0.
  std::vector<TokenBatch> validation_batches(std::uint32_t batches) const;

  std::uint64_t training_windows() const { return training_.count(); }
  std::uint64_t validation_windows() const { return validation_.count(); }
  std::uint64_t training_tokens() const;
  std::uint64_t validation_tokens() const;
  /// Of everything that decides a batch besides the seed and the batch size: the files' content in
  /// order, the tokenizer, the split and the sequence length. Not of paths.
  std::uint64_t fingerprint() const { return fingerprint_; }
  /// Caches that were made or made again, and why.
  const std::vector<std::string>& notes() const { return notes_; }
  Tokenizer& tokenizer() { return *tokenizer_; }

  /// Nats per token of the validation text under the frequencies of the training text, each count
  /// raised by one so that no token is impossible.
  double unigram_entropy() const;

 private:
  Dataset(std::vector<TokenFile> files, Windows training, Windows validation)
      : files_(std::move(files)),
        training_(std::move(training)),
        validation_(std::move(validation)) {}
  TokenBatch batch_of(const Windows& windows,
                      std::uint64_t step,
                      std::vector<std::uint64_t> samples) const;

  std::vector<TokenFile> files_;
  Windows training_, validation_;
  std::unique_ptr<Tokenizer> tokenizer_;
  StepShape shape_;
  std::uint64_t seed_ = 0;
  std::uint64_t fingerprint_ = 0;
  std::uint32_t vocabulary_ = 0;
  std::vector<std::string> notes_;
};

/// The tokenizer that `data` names.
Result<std::unique_ptr<Tokenizer>> make_tokenizer(const DataSpec& data);

/// Refuses the first id that is negative or >= vocabulary: "file: sample S, position P: token id
/// ...", where samples are windows of `sequence_length`.
Status check_ids(const TokenFile& tokens,
                 std::uint32_t vocabulary,
                 std::uint32_t sequence_length,
                 std::string_view file);

/// Splits 0..count at the training part's end: the last `validation_fraction` is for validation.
std::uint64_t training_share(std::uint64_t count, double validation_fraction);

}  // namespace troupe
