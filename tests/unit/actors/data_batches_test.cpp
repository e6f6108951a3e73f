#include "actors/data/batches.h"

#include <cmath>
#include <set>

#include "actors/data/sample_order.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

using namespace troupe;

namespace {

/// Bytes 0, 1, 2, ... so that a token tells its place.
std::string counting(std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text.push_back(static_cast<char>(i % 251));
  return text;
}

struct Corpus {
  TemporaryFolder folder;
  DataSpec data;
  StepShape shape;
  Corpus() {
    data.cache_folder = (folder / "cache").string();
    data.validation_fraction = 0.2;
    shape.sequence_length = 4;
    shape.batch_size = 5;
    shape.microbatch_size = 2;
    shape.microbatch_count = 3;
  }
  void add(const std::string& name, const std::string& content) {
    set_content(folder / name, content);
    data.files.push_back((folder / name).string());
  }
  Dataset open(std::uint64_t seed = 1) {
    auto opened = Dataset::open(data, shape, 256, seed);
    if (!opened.ok()) FAIL(opened.error().text);
    return std::move(*opened);
  }
};

}  // namespace

TEST_CASE("the order of an epoch is a permutation that depends on seed and epoch") {
  for (const std::uint64_t count : {1, 2, 3, 4, 5, 7, 16, 17, 64, 100, 1000, 1023}) {
    for (std::uint64_t seed = 0; seed < 5; ++seed) {
      INFO("seed " << seed << " count " << count);
      std::set<std::uint64_t> seen;
      for (std::uint64_t i = 0; i < count; ++i) seen.insert(sample_at(seed, 3, i, count));
      CHECK(seen.size() == count);
      CHECK(*seen.rbegin() == count - 1);
    }
  }
  int moved = 0, other_epoch = 0, other_seed = 0;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    moved += sample_at(1, 0, i, 1000) != i;
    other_epoch += sample_at(1, 0, i, 1000) != sample_at(1, 1, i, 1000);
    other_seed += sample_at(1, 0, i, 1000) != sample_at(2, 0, i, 1000);
  }
  CHECK(moved > 980);
  CHECK(other_epoch > 980);
  CHECK(other_seed > 980);
}

TEST_CASE("neighbours in an epoch are not neighbours in the text") {
  // The mean distance of two random places of n is n / 3.
  double distance = 0;
  for (std::uint64_t i = 0; i + 1 < 5000; ++i)
    distance += std::abs(static_cast<double>(sample_at(9, 0, i, 5000)) -
                         static_cast<double>(sample_at(9, 0, i + 1, 5000)));
  CHECK(distance / 4999 == Approx(5000.0 / 3).epsilon(0.05));
}

TEST_CASE("L092 stopped in epoch 2 at sample 37 of 64, the rest is what it would have been") {
  std::vector<std::uint64_t> whole;
  for (std::uint64_t step = 1; step <= 128; ++step)
    for (const auto sample : samples_of_step(5, step, 1, 64)) whole.push_back(sample);
  const std::set<std::uint64_t> second(whole.begin() + 64, whole.end());
  CHECK(second.size() == 64);  // each sample once
  std::vector<std::uint64_t> resumed(whole.begin(), whole.begin() + 64 + 37);
  for (std::uint64_t step = 64 + 37 + 1; step <= 128; ++step)
    for (const auto sample : samples_of_step(5, step, 1, 64)) resumed.push_back(sample);
  CHECK(resumed == whole);
}

TEST_CASE("batches follow the same order whatever their size, over the end of an epoch") {
  std::vector<std::uint64_t> by_one, by_six;
  for (std::uint64_t step = 1; step <= 60; ++step)
    for (const auto sample : samples_of_step(2, step, 1, 10)) by_one.push_back(sample);
  for (std::uint64_t step = 1; step <= 10; ++step)
    for (const auto sample : samples_of_step(2, step, 6, 10)) by_six.push_back(sample);
  CHECK(by_one == by_six);
}

TEST_CASE("windows cover each segment, one target each, and never cross a file") {
  const Windows windows({{0, 0, 13}, {1, 0, 1}, {2, 10, 5}, {3, 0, 0}}, 4);
  CHECK(windows.count() == 3 + 0 + 1 + 0);
  CHECK(windows.place(2).file == 0);
  CHECK(windows.place(2).first == 8);
  CHECK(windows.place(3).file == 2);
  CHECK(windows.place(3).first == 10);
}

TEST_CASE("L034 targets are the tokens one place on, microbatch by microbatch") {
  Corpus corpus;
  corpus.add("a.txt", counting(101));
  corpus.add("b.txt", counting(47));
  const Dataset dataset = corpus.open();
  CHECK(dataset.training_tokens() == 81 + 38);
  CHECK(dataset.training_windows() == 20 + 9);
  for (std::uint64_t step = 1; step <= 1000; ++step) {
    const TokenBatch batch = dataset.batch_for_step(step);
    REQUIRE(batch.microbatches.size() == 3);
    CHECK(batch.trained_tokens() == 5 * 4);
    std::uint64_t sample = 0;
    for (const auto& microbatch : batch.microbatches) {
      REQUIRE(microbatch.first_sample == sample);
      REQUIRE(microbatch.tokens.size() == microbatch.sequences * 4);
      REQUIRE(microbatch.targets.size() == microbatch.tokens.size());
      for (std::size_t i = 0; i < microbatch.tokens.size(); ++i)
        REQUIRE(microbatch.targets[i] == microbatch.tokens[i] + 1);
      for (std::size_t row = 0; row < microbatch.sequences; ++row) {
        const auto window = batch.samples[sample + row];
        REQUIRE(microbatch.tokens[row * 4] ==
                static_cast<std::int32_t>(4 * (window < 20 ? window : window - 20)));
      }
      sample += microbatch.sequences;
    }
    CHECK(batch.microbatches.back().sequences == 1);
  }
}

TEST_CASE("a batch depends on seed and step, not on what was asked before") {
  Corpus corpus;
  corpus.add("a.txt", counting(250));
  const Dataset one = corpus.open(7);
  const Dataset other = corpus.open(7);
  for (std::uint64_t step = 1; step < 9; ++step) (void)one.batch_for_step(step);
  CHECK(one.batch_for_step(9).samples == other.batch_for_step(9).samples);
  CHECK(one.batch_for_step(9).samples != corpus.open(8).batch_for_step(9).samples);
}

TEST_CASE(
    "data has another fingerprint where batches may differ, and the same under another path") {
  Corpus corpus;
  corpus.add("a.txt", counting(250));
  corpus.add("b.txt", counting(125));
  std::set<std::uint64_t> seen{corpus.open().fingerprint()};
  CHECK(seen.count(corpus.open(8).fingerprint()) == 1);  // the seed is recorded by itself
  Corpus copy;
  copy.add("c.txt", counting(250));
  copy.add("d.txt", counting(125));
  CHECK(seen.count(copy.open().fingerprint()) == 1);
  const auto is_new = [&](Corpus& changed) {
    return seen.insert(changed.open().fingerprint()).second;
  };
  std::swap(copy.data.files[0], copy.data.files[1]);
  CHECK(is_new(copy));
  copy.data.files.pop_back();
  CHECK(is_new(copy));
  corpus.shape.sequence_length = 5;
  CHECK(is_new(corpus));
  corpus.data.validation_fraction = 0.3;
  CHECK(is_new(corpus));
  std::string text = counting(250);
  text[249] = 'x';  // unused by any window, but nobody need know
  set_content(corpus.folder / "a.txt", text);
  CHECK(is_new(corpus));
}

TEST_CASE("validation batches are fixed, from the end of each file, and spread evenly") {
  Corpus corpus;
  corpus.add("a.txt", counting(205));
  const Dataset dataset = corpus.open();
  CHECK(dataset.validation_tokens() == 41);
  CHECK(dataset.validation_windows() == 10);
  const auto batches = dataset.validation_batches(1);
  REQUIRE(batches.size() == 1);
  CHECK(batches[0].samples == std::vector<std::uint64_t>{0, 2, 4, 6, 8});
  CHECK(batches[0].microbatches[0].tokens[0] == 164);
  const auto all = dataset.validation_batches(100);
  REQUIRE(all.size() == 2);
  CHECK(all[1].samples == std::vector<std::uint64_t>{5, 6, 7, 8, 9});
  CHECK(dataset.validation_batches(0).empty());
}

TEST_CASE("unigram entropy of a text whose frequencies are known") {
  Corpus corpus;
  // 40 a and 40 b train; 10 a and 10 b validate.
  std::string text;
  for (int i = 0; i < 50; ++i) text += "ab";
  corpus.add("a.txt", text);
  CHECK(corpus.open().unigram_entropy() == Approx(-std::log(41.0 / (80 + 256))));
}

TEST_CASE("L140 an id beyond the vocabulary is named by file, sample, position and id") {
  const TemporaryFolder folder;
  set_content(folder / "a.txt", counting(20) + "\xc8" + counting(20));
  DataSpec data;
  data.cache_folder = (folder / "cache").string();
  const auto tokenizer = make_byte_tokenizer();
  const auto cached = tokens_of_file(folder / "a.txt", data, *tokenizer);
  REQUIRE(cached.ok());
  CHECK(check_ids(cached->tokens, 201, 8, "a.txt").ok());
  const auto refused = check_ids(cached->tokens, 200, 8, "a.txt");
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().text ==
        "a.txt: sample 2, position 4: token id 200 is beyond the model's vocabulary of 200");
}

TEST_CASE("data that cannot serve is refused before a run") {
  Corpus corpus;
  CHECK(Dataset::open(corpus.data, corpus.shape, 256, 1).error().text ==
        "data.files names no file");
  corpus.add("a.txt", "abcde");
  const auto no_window = Dataset::open(corpus.data, corpus.shape, 256, 1);
  REQUIRE_FALSE(no_window.ok());
  CHECK(no_window.error().text.find("no training window of 5 tokens fits into 4 tokens") !=
        std::string::npos);
  corpus.add("b.txt", "abcdefghijk");
  CHECK(
      Dataset::open(corpus.data, corpus.shape, 256, 1).error().text.find("no validation window") !=
      std::string::npos);
  corpus.data.validation_fraction = 0;
  CHECK(Dataset::open(corpus.data, corpus.shape, 256, 1).ok());
  CHECK(Dataset::open(corpus.data, corpus.shape, 255, 1)
            .error()
            .text.find("the model's vocabulary is 255") != std::string::npos);
}

TEST_CASE("the demonstration text: its windows and its unigram entropy") {
  Corpus corpus;
  corpus.shape.sequence_length = 64;
  corpus.data.validation_fraction = 0.1;
  corpus.data.files = {TROUPE_SOURCE_DIR "/conf/data/moby-dick.txt"};
  const Dataset dataset = corpus.open();
  CHECK(dataset.training_tokens() + dataset.validation_tokens() == 1'215'260);
  CHECK(dataset.validation_tokens() == 121'526);
  CHECK(dataset.unigram_entropy() > 2.9);
  CHECK(dataset.unigram_entropy() < 3.3);
}
