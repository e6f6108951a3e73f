/// The body behind Stage: its members, shared by the sources that implement it. Not for users of
/// Stage; they include kernels/stage.h.
#pragma once

#include <optional>

#include "kernels/layers/stage_layers.h"
#include "kernels/stage.h"

namespace troupe::kernels {

/// Memory of one microbatch between two actions.
struct Slab {
  Block block;
  std::optional<MicrobatchId> microbatch;
  // Of an activation slab only:
  MicrobatchTokens tokens;
  Extent extent;
};

class StageBody final : public Stage {
 public:
  StageBody(const StageSpec& spec, bool counts_only) : spec_(spec), counts_only_(counts_only) {}
  Status allocate(Arena& arena, const Block* workspace);

  const StageSpec& spec() const override { return spec_; }
  std::vector<StageLayer>& layers() { return layers_; }
  void initialize() override;
  void weights_changed(Stream& stream) override;
  void begin_step(Stream& stream, std::uint64_t step, std::uint64_t trained_tokens) override;
  void forward(Stream& stream,
               MicrobatchId m,
               const MicrobatchTokens& tokens,
               Tensor input) override;
  Tensor output(MicrobatchId m) const override;
  double loss(MicrobatchId m) const override { return losses_.at(m.index()); }
  void backward(Stream& stream,
                MicrobatchId m,
                Tensor output_gradient,
                Tensor input_gradient) override;
  void backward_input(Stream& stream,
                      MicrobatchId m,
                      Tensor output_gradient,
                      Tensor input_gradient) override;
  void backward_weight(Stream& stream, MicrobatchId m) override;
  Tensor tied_gradient_half() override;
  void add_tied_gradient(Stream& stream, Tensor other_half) override;
  const std::vector<TensorNorm>& norm(Stream& stream) override;
  void update(Stream& stream, const UpdateSpec& update) override;
  std::vector<std::pair<std::uint32_t, std::uint64_t>> state_hashes(Stream& stream) override;
  std::vector<NamedState> state() override;
  double evaluate(Stream& stream,
                  const MicrobatchTokens& tokens,
                  Tensor input,
                  Tensor output) override;
  using Stage::logits;
  void logits(Stream& stream, const MicrobatchTokens& tokens, Tensor input, Tensor out) override;

 private:
  bool has_embedding() const { return spec_.layers.holds(0); }
  bool has_head() const { return spec_.layers.holds(layer_count(spec_.model) - 1); }
  Extent largest() const { return {spec_.shape.microbatch_size, spec_.shape.sequence_length}; }
  HeadLayer& head() { return static_cast<HeadLayer&>(*layers_.back().layer); }
  Status allocate_parameters(Arena& arena);
  Status allocate_slabs(Arena& arena, const Block* workspace);

  Extent extent_of(const MicrobatchTokens& tokens, const Tensor& input) const;
  Call call_of(const MicrobatchTokens& tokens, const Extent& extent, bool training) const;
  Slab& take(std::vector<Slab>& slabs, MicrobatchId m);
  Slab& slab_of(std::vector<Slab>& slabs, MicrobatchId m);

  /// Where layer `i` (of this stage) keeps its activations; also the input's copy.
  Area saved_area(const Slab& slab, std::size_t i) const;
  Area deferred_area(const Slab& slab, std::size_t i) const;
  Tensor input_of(const Slab& slab, std::size_t i) const;
  Tensor kept_input(const Slab& slab) const;
  /// Runs layers [0, count), returns the sum of token losses.
  double run_forward(
      Stream& stream, Slab& slab, const Call& call, const Tensor& input, std::size_t count);
  /// The backward chain; `weights` runs W of each layer right after its I.
  void run_backward(
      Stream& stream, Slab& slab, Slab* deferred, Tensor output_gradient, Tensor input_gradient);
  Slab& idle_slab();

  StageSpec spec_;
  bool counts_only_;
  std::vector<StageLayer> layers_;
  std::vector<Block> parameter_blocks_;
  std::vector<Parameter*> parameters_;  ///< in global order
  Bytes input_bytes_ = 0;               ///< of the input's copy in a slab
  std::vector<Bytes> saved_offset_, deferred_offset_;
  std::vector<Slab> in_flight_, deferred_;
  Block own_workspace_;
  std::byte* workspace_ = nullptr;
  Bytes workspace_bytes_ = 0;
  std::vector<double> losses_;
  std::vector<TensorNorm> norms_;
  std::uint64_t step_ = 0;
  std::uint64_t trained_tokens_ = 0;
  bool halves_added_ = false;
  bool weights_contributed_ = false;  ///< some B or W of this step has run
};

/// `data` + `bytes`; null stays null (meta device).
inline std::byte* offset(std::byte* data, Bytes bytes) {
  return data == nullptr ? nullptr : data + bytes;
}

}  // namespace troupe::kernels
