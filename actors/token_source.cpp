#include "actors/token_source.h"

#include <utility>

namespace troupe {
namespace {

class FileTokens final : public TokenSource {
 public:
  FileTokens(Dataset dataset, std::uint32_t validation_batches)
      : dataset_(std::move(dataset)), count_(validation_batches) {}
  TokenBatch batch_for_step(std::uint64_t step) override { return dataset_.batch_for_step(step); }
  std::vector<TokenBatch> validation_batches() override {
    return dataset_.validation_batches(count_);
  }
  std::uint64_t fingerprint() const override { return dataset_.fingerprint(); }

 private:
  Dataset dataset_;
  std::uint32_t count_;
};

}  // namespace

Result<std::shared_ptr<TokenSource>> open_token_source(const RunSpec& spec) {
  auto dataset = Dataset::open(spec.data, spec.shape, spec.model.vocabulary, spec.seed);
  if (!dataset) return dataset.error();
  return std::shared_ptr<TokenSource>(
      std::make_shared<FileTokens>(std::move(*dataset), spec.evaluation.batches));
}

}  // namespace troupe
