#include "actors/data/batches.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "actors/data/sample_order.h"

namespace troupe {
namespace {

std::uint64_t tokens_in(const std::vector<Segment>& segments) {
  std::uint64_t total = 0;
  for (const Segment& segment : segments) total += segment.count;
  return total;
}

/// Counts of each id over segments.
std::vector<std::uint64_t> histogram(const std::vector<TokenFile>& files,
                                     const std::vector<Segment>& segments,
                                     std::uint32_t vocabulary) {
  std::vector<std::uint64_t> counts(vocabulary, 0);
  for (const Segment& segment : segments)
    for (std::uint64_t i = 0; i < segment.count; ++i)
      ++counts[static_cast<std::size_t>(files[segment.file][segment.first + i])];
  return counts;
}

std::uint64_t fingerprint_of(const std::vector<TokenFile>& files,
                             double validation_fraction,
                             std::uint32_t sequence_length) {
  std::vector<std::uint64_t> parts;
  parts.reserve(files.size() + 2);
  for (const TokenFile& file : files) parts.push_back(file.checksum());
  parts.push_back(std::bit_cast<std::uint64_t>(validation_fraction));
  parts.push_back(sequence_length);
  return XXH3_64bits(parts.data(), parts.size() * sizeof parts.front());
}

Error too_short(const DataSpec& data,
                std::string_view part,
                std::uint64_t tokens,
                std::uint32_t sequence) {
  return {ErrorCode::invalid_input,
          fmt::format("{}{}: no {} window of {} tokens fits into {} tokens; shorten the sequences "
                      "or give more text",
                      data.files.front(), data.files.size() > 1 ? " and others" : "", part,
                      sequence + 1, tokens)};
}

}  // namespace

std::uint64_t MicrobatchData::trained_tokens() const {
  return static_cast<std::uint64_t>(
      std::count_if(targets.begin(), targets.end(), [](std::int32_t id) { return id >= 0; }));
}

std::uint64_t TokenBatch::trained_tokens() const {
  std::uint64_t total = 0;
  for (const MicrobatchData& microbatch : microbatches) total += microbatch.trained_tokens();
  return total;
}

Windows::Windows(std::vector<Segment> segments, std::uint32_t sequence_length)
    : segments_(std::move(segments)), length_(sequence_length) {
  EXPECTS(sequence_length > 0);
  std::uint64_t total = 0;
  for (const Segment& segment : segments_) {
    total += segment.count == 0 ? 0 : (segment.count - 1) / length_;
    ends_.push_back(total);
  }
}

Windows::Place Windows::place(std::uint64_t index) const {
  EXPECTS(index < count());
  const auto found = std::upper_bound(ends_.begin(), ends_.end(), index);
  const auto segment = static_cast<std::size_t>(found - ends_.begin());
  const std::uint64_t before = segment == 0 ? 0 : ends_[segment - 1];
  return {segments_[segment].file, segments_[segment].first + (index - before) * length_};
}

Result<std::unique_ptr<Tokenizer>> make_tokenizer(const DataSpec& data) {
  if (data.tokenizer == TokenizerKind::bytes) return make_byte_tokenizer();
  return load_gpt2_tokenizer(data.tokenizer_folder);
}

Status check_ids(const TokenFile& tokens,
                 std::uint32_t vocabulary,
                 std::uint32_t sequence_length,
                 std::string_view file) {
  if (tokens.largest_id() < vocabulary) return {};
  for (std::uint64_t i = 0; i < tokens.size(); ++i) {
    const std::int32_t id = tokens[i];
    if (id >= 0 && static_cast<std::uint32_t>(id) < vocabulary) continue;
    return Error{ErrorCode::invalid_input,
                 fmt::format("{}: sample {}, position {}: token id {} is beyond the model's "
                             "vocabulary of {}",
                             file, i / sequence_length, i % sequence_length, id, vocabulary)};
  }
  return {};
}

std::uint64_t training_share(std::uint64_t count, double validation_fraction) {
  EXPECTS(validation_fraction >= 0 && validation_fraction <= 1);
  const auto held =
      static_cast<std::uint64_t>(std::floor(static_cast<double>(count) * validation_fraction));
  return count - std::min(held, count);
}

Result<Dataset> Dataset::open(const DataSpec& data,
                              const StepShape& shape,
                              std::uint32_t model_vocabulary,
                              std::uint64_t seed) {
  if (data.files.empty()) return Error{ErrorCode::invalid_input, "data.files names no file"};
  auto tokenizer = make_tokenizer(data);
  TROUPE_TRY(tokenizer);
  TROUPE_TRY(check_tokenizer_fits(**tokenizer, model_vocabulary));
  std::vector<TokenFile> files;
  std::vector<Segment> training, validation;
  std::vector<std::string> notes;
  for (std::size_t i = 0; i < data.files.size(); ++i) {
    auto cached = tokens_of_file(data.files[i], data, **tokenizer);
    TROUPE_TRY(cached);
    TROUPE_TRY(check_ids(cached->tokens, model_vocabulary, shape.sequence_length, data.files[i]));
    if (cached->built)
      notes.push_back(cached->note.empty() ? fmt::format("{}: {} tokens cached", data.files[i],
                                                         cached->tokens.size())
                                           : cached->note);
    const std::uint64_t count = cached->tokens.size();
    const std::uint64_t split = training_share(count, data.validation_fraction);
    training.push_back({i, 0, split});
    validation.push_back({i, split, count - split});
    files.push_back(std::move(cached->tokens));
  }
  Dataset dataset(std::move(files), Windows(std::move(training), shape.sequence_length),
                  Windows(std::move(validation), shape.sequence_length));
  if (dataset.training_.count() == 0)
    return too_short(data, "training", dataset.training_tokens(), shape.sequence_length);
  if (data.validation_fraction > 0 && dataset.validation_.count() == 0)
    return too_short(data, "validation", dataset.validation_tokens(), shape.sequence_length);
  dataset.tokenizer_ = std::move(*tokenizer);
  dataset.shape_ = shape;
  dataset.seed_ = seed;
  dataset.fingerprint_ =
      fingerprint_of(dataset.files_, data.validation_fraction, shape.sequence_length);
  dataset.vocabulary_ = model_vocabulary;
  dataset.notes_ = std::move(notes);
  return dataset;
}

std::uint64_t Dataset::training_tokens() const {
  return tokens_in(training_.segments());
}

std::uint64_t Dataset::validation_tokens() const {
  return tokens_in(validation_.segments());
}

TokenBatch Dataset::batch_of(const Windows& windows,
                             std::uint64_t step,
                             std::vector<std::uint64_t> samples) const {
  const std::size_t length = shape_.sequence_length;
  EXPECTS(shape_.microbatch_size > 0);
  TokenBatch batch;
  batch.step = step;
  batch.sequence_length = shape_.sequence_length;
  std::vector<std::int32_t> window(length + 1);
  for (std::size_t first = 0; first < samples.size(); first += shape_.microbatch_size) {
    MicrobatchData microbatch;
    microbatch.first_sample = first;
    const std::size_t end = std::min<std::size_t>(first + shape_.microbatch_size, samples.size());
    microbatch.sequences = static_cast<std::uint32_t>(end - first);
    for (std::size_t i = first; i < end; ++i) {
      const auto place = windows.place(samples[i]);
      files_[place.file].copy(place.first, window);
      microbatch.tokens.insert(microbatch.tokens.end(), window.begin(), window.end() - 1);
      microbatch.targets.insert(microbatch.targets.end(), window.begin() + 1, window.end());
    }
    batch.microbatches.push_back(std::move(microbatch));
  }
  batch.samples = std::move(samples);
  return batch;
}

TokenBatch Dataset::batch_for_step(std::uint64_t step) const {
  return batch_of(training_, step,
                  samples_of_step(seed_, step, shape_.batch_size, training_.count()));
}

std::vector<TokenBatch> Dataset::validation_batches(std::uint32_t batches) const {
  const std::uint64_t available = validation_.count();
  const std::uint64_t wanted = std::min(std::uint64_t{batches} * shape_.batch_size, available);
  std::vector<TokenBatch> out;
  for (std::uint64_t first = 0; first < wanted; first += shape_.batch_size) {
    std::vector<std::uint64_t> samples;
    for (std::uint64_t i = first; i < std::min(first + shape_.batch_size, wanted); ++i)
      samples.push_back(i * available / wanted);
    out.push_back(batch_of(validation_, out.size(), std::move(samples)));
  }
  return out;
}

double Dataset::unigram_entropy() const {
  const auto trained = histogram(files_, training_.segments(), vocabulary_);
  const auto held = histogram(files_, validation_.segments(), vocabulary_);
  const double total = static_cast<double>(training_tokens()) + vocabulary_;
  double nats = 0;
  for (std::size_t id = 0; id < held.size(); ++id)
    nats -=
        static_cast<double>(held[id]) * std::log((static_cast<double>(trained[id]) + 1) / total);
  return nats / static_cast<double>(std::max<std::uint64_t>(validation_tokens(), 1));
}

}  // namespace troupe
