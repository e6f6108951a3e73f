#include "kernels/stage.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "devices/compute_pool.h"
#include "kernels/layers/stage_layers.h"
#include "kernels/ops.h"

namespace troupe {
namespace {

using kernels::Area;
using kernels::BackwardCall;
using kernels::Call;
using kernels::Extent;
using kernels::HeadLayer;
using kernels::Parameter;
using kernels::ParameterAreas;
using kernels::ParameterBytes;
using kernels::Share;
using kernels::StageLayer;

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
  std::vector<Tensor> gradient_blocks_;  ///< all gradients, as one vector per layer
  std::vector<Parameter*> parameters_;   ///< in global order
  Bytes input_bytes_ = 0;                ///< of the input's copy in a slab
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
};

std::byte* offset(std::byte* data, Bytes bytes) {
  return data == nullptr ? nullptr : data + bytes;
}

// --- memory ---

Status StageBody::allocate(Arena& arena, const Block* workspace) {
  TROUPE_TRY(allocate_parameters(arena));
  for (StageLayer& layer : layers_)
    for (Parameter& parameter : layer.parameters) parameters_.push_back(&parameter);
  std::stable_sort(parameters_.begin(), parameters_.end(),
                   [](const Parameter* a, const Parameter* b) { return a->tensor < b->tensor; });
  norms_.reserve(parameters_.size());
  losses_.assign(spec_.shape.microbatch_count, 0.0);
  return allocate_slabs(arena, workspace);
}

Status StageBody::allocate_parameters(Arena& arena) {
  layers_.reserve(spec_.layers.size());
  for (std::uint32_t index = spec_.layers.first; index < spec_.layers.last; ++index) {
    const Share share = kernels::table_share_of(spec_.model, spec_.layers, index);
    const ParameterBytes bytes =
        kernels::parameter_bytes(spec_.model, index, spec_.shape.compute, share);
    std::array<std::byte*, 3> data{};
    const std::array<std::pair<Bytes, MemoryCategory>, 3> wanted = {
        {{bytes.weights, MemoryCategory::weights},
         {bytes.gradients, MemoryCategory::gradients},
         {bytes.optimizer, MemoryCategory::optimizer}}};
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (wanted[i].first == 0) continue;
      Result<Block> block = arena.allocate(wanted[i].first, wanted[i].second);
      if (!block) return block.error();
      data[i] = block->data();
      parameter_blocks_.push_back(std::move(*block));
    }
    ParameterAreas areas{Area(data[0], bytes.weights), Area(data[1], bytes.gradients),
                         Area(data[2], bytes.optimizer)};
    layers_.push_back(kernels::build_layer(spec_.model, index, spec_.shape.compute, largest(),
                                           share, layers_.empty() ? nullptr : &layers_.front(),
                                           areas));
    gradient_blocks_.push_back(make_tensor(data[1], DType::f32, {bytes.gradients / 4}));
  }
  return {};
}

Status StageBody::allocate_slabs(Arena& arena, const Block* workspace) {
  Bytes saved = 0;
  if (!has_embedding())
    saved = input_bytes_ = kernels::boundary_bytes(spec_.model, spec_.shape.compute, largest());
  Bytes deferred = 0;
  for (const StageLayer& layer : layers_) {
    saved_offset_.push_back(saved);
    deferred_offset_.push_back(deferred);
    saved += layer.saved_bytes;
    deferred += layer.deferred_bytes;
  }
  const auto fill = [&](std::vector<Slab>& slabs, std::uint32_t count, Bytes bytes) -> Status {
    slabs.resize(count);
    for (Slab& slab : slabs) {
      if (bytes == 0) continue;
      Result<Block> block = arena.allocate(bytes, MemoryCategory::activations);
      if (!block) return block.error();
      slab.block = std::move(*block);
    }
    return {};
  };
  TROUPE_TRY(fill(in_flight_, spec_.in_flight, saved));
  TROUPE_TRY(fill(deferred_, spec_.deferred, deferred));
  workspace_bytes_ = workspace_bytes(spec_);
  if (workspace == nullptr && workspace_bytes_ > 0) {
    Result<Block> block = arena.allocate(workspace_bytes_, MemoryCategory::workspace);
    if (!block) return block.error();
    own_workspace_ = std::move(*block);
    workspace = &own_workspace_;
  }
  if (workspace != nullptr) {
    EXPECTS(workspace->size() >= workspace_bytes_);
    workspace_ = workspace->data();
  }
  return {};
}

Slab& StageBody::take(std::vector<Slab>& slabs, MicrobatchId m) {
  for (const Slab& slab : slabs) EXPECTS(slab.microbatch != m);
  for (Slab& slab : slabs) {
    if (slab.microbatch) continue;
    slab.microbatch = m;
    return slab;
  }
  EXPECTS(!"a slab is free: the schedule keeps its in-flight bound");
  return slabs.front();
}

Slab& StageBody::slab_of(std::vector<Slab>& slabs, MicrobatchId m) {
  const auto found = std::find_if(slabs.begin(), slabs.end(),
                                  [&](const Slab& slab) { return slab.microbatch == m; });
  EXPECTS(found != slabs.end());
  return *found;
}

Slab& StageBody::idle_slab() {
  EXPECTS(!in_flight_.empty());
  for (const Slab& slab : in_flight_) EXPECTS(!slab.microbatch);
  return in_flight_.front();
}

Area StageBody::saved_area(const Slab& slab, std::size_t i) const {
  return Area(offset(slab.block.data(), saved_offset_[i]), layers_[i].saved_bytes);
}

Area StageBody::deferred_area(const Slab& slab, std::size_t i) const {
  return Area(offset(slab.block.data(), deferred_offset_[i]), layers_[i].deferred_bytes);
}

Tensor StageBody::kept_input(const Slab& slab) const {
  return make_tensor(slab.block.data(), spec_.shape.compute,
                     {slab.extent.sequences, slab.extent.length, spec_.model.width});
}

Tensor StageBody::input_of(const Slab& slab, std::size_t i) const {
  if (i > 0) return layers_[i - 1].layer->output(slab.extent, saved_area(slab, i - 1));
  return has_embedding() ? Tensor{} : kept_input(slab);
}

// --- parameters ---

void StageBody::initialize() {
  if (counts_only_) return;
  ComputePool pool(1);
  Stream stream(Stream::Body::fast, &pool);
  for (const Parameter* parameter : parameters_) {
    kernels::fill(stream, parameter->gradient, 0);
    if (parameter->share == Share::half) continue;
    kernels::fill(stream, parameter->first_moment, 0);
    kernels::fill(stream, parameter->second_moment, 0);
    switch (parameter->spec.init) {
      case Init::zeros: kernels::fill(stream, parameter->weight, 0); break;
      case Init::ones: kernels::fill(stream, parameter->weight, 1); break;
      case Init::normal:
        kernels::fill_normal(stream, parameter->weight, spec_.seed, parameter->spec.name,
                             parameter->spec.init_std);
        break;
    }
  }
  weights_changed(stream);
}

void StageBody::weights_changed(Stream& stream) {
  for (const Parameter* parameter : parameters_)
    if (parameter->share != Share::half && parameter->has_copy())
      kernels::copy(stream, parameter->compute, parameter->weight);
}

// --- the step ---

void StageBody::begin_step(Stream& stream, std::uint64_t step, std::uint64_t trained_tokens) {
  for (const Slab& slab : in_flight_) EXPECTS(!slab.microbatch);
  step_ = step;
  trained_tokens_ = trained_tokens;
  halves_added_ = false;
  std::fill(losses_.begin(), losses_.end(), 0.0);
  for (const Tensor& gradients : gradient_blocks_) kernels::fill(stream, gradients, 0);
}

Extent StageBody::extent_of(const MicrobatchTokens& tokens, const Tensor& input) const {
  Extent extent{tokens.sequences, spec_.shape.sequence_length};
  if (tokens.sequences == 0) return extent;
  if (has_embedding() && !tokens.tokens.empty())
    extent.length = static_cast<std::uint32_t>(tokens.tokens.size() / tokens.sequences);
  else if (input.rank == 3)
    extent.length = static_cast<std::uint32_t>(input.shape[1]);
  EXPECTS(extent.sequences <= spec_.shape.microbatch_size);
  EXPECTS(extent.length > 0 && extent.length <= spec_.shape.sequence_length);
  return extent;
}

Call StageBody::call_of(const MicrobatchTokens& tokens, const Extent& extent, bool training) const {
  Call call;
  call.extent = extent;
  call.tokens = tokens.tokens;
  call.targets = tokens.targets;
  call.dropout = training ? spec_.model.dropout : 0;
  call.seed = spec_.seed;
  call.step = step_;
  call.first_sample = tokens.first_sample;
  call.loss_scale = trained_tokens_ == 0 ? 0 : 1.0 / static_cast<double>(trained_tokens_);
  call.workspace = Area(workspace_, workspace_bytes_);
  return call;
}

double StageBody::run_forward(
    Stream& stream, Slab& slab, const Call& call, const Tensor& input, std::size_t count) {
  if (!has_embedding())
    kernels::copy(stream, kernels::as_rows(kept_input(slab)), kernels::as_rows(input));
  double loss = 0;
  for (std::size_t i = 0; i < count; ++i)
    loss = layers_[i].layer->forward(stream, call, input_of(slab, i), saved_area(slab, i));
  return loss;
}

void StageBody::forward(Stream& stream,
                        MicrobatchId m,
                        const MicrobatchTokens& tokens,
                        Tensor input) {
  Slab& slab = take(in_flight_, m);
  slab.tokens = tokens;
  slab.extent = extent_of(tokens, input);
  const double sum =
      run_forward(stream, slab, call_of(tokens, slab.extent, true), input, layers_.size());
  losses_.at(m.index()) = trained_tokens_ == 0 ? 0 : sum / static_cast<double>(trained_tokens_);
}

Tensor StageBody::output(MicrobatchId m) const {
  const auto found = std::find_if(in_flight_.begin(), in_flight_.end(),
                                  [&](const Slab& slab) { return slab.microbatch == m; });
  EXPECTS(found != in_flight_.end());
  return layers_.back().layer->output(found->extent, saved_area(*found, layers_.size() - 1));
}

void StageBody::run_backward(
    Stream& stream, Slab& slab, Slab* deferred, Tensor output_gradient, Tensor input_gradient) {
  EXPECTS(has_embedding() || input_gradient.rank > 0);
  const Bytes boundary = kernels::boundary_bytes(spec_.model, spec_.shape.compute, largest());
  // One buffer carries the gradient back through the stage, layer by layer in place.
  const Tensor running =
      has_embedding() ? make_tensor(workspace_, spec_.shape.compute,
                                    {slab.extent.sequences, slab.extent.length, spec_.model.width})
                      : input_gradient;
  Call call = call_of(slab.tokens, slab.extent, true);
  BackwardCall backward;
  backward.output_gradient = has_head() ? Tensor{} : output_gradient;
  backward.input_gradient = running;
  for (std::size_t i = layers_.size(); i-- > 0;) {
    Area workspace(offset(workspace_, boundary), workspace_bytes_ - boundary);
    Area fused = workspace.area(layers_[i].deferred_bytes);
    backward.deferred = deferred != nullptr ? deferred_area(*deferred, i) : fused;
    backward.input = input_of(slab, i);
    backward.saved = saved_area(slab, i);
    call.workspace = Area(offset(workspace_, boundary + layers_[i].deferred_bytes),
                          workspace_bytes_ - boundary - layers_[i].deferred_bytes);
    layers_[i].layer->backward_input(stream, call, backward);
    if (deferred == nullptr) layers_[i].layer->backward_weight(stream, call, backward);
    backward.output_gradient = running;
  }
}

void StageBody::backward(Stream& stream,
                         MicrobatchId m,
                         Tensor output_gradient,
                         Tensor input_gradient) {
  Slab& slab = slab_of(in_flight_, m);
  run_backward(stream, slab, nullptr, output_gradient, input_gradient);
  slab.microbatch.reset();
}

void StageBody::backward_input(Stream& stream,
                               MicrobatchId m,
                               Tensor output_gradient,
                               Tensor input_gradient) {
  run_backward(stream, slab_of(in_flight_, m), &take(deferred_, m), output_gradient,
               input_gradient);
}

void StageBody::backward_weight(Stream& stream, MicrobatchId m) {
  Slab& slab = slab_of(in_flight_, m);
  Slab& kept = slab_of(deferred_, m);
  const Bytes boundary = kernels::boundary_bytes(spec_.model, spec_.shape.compute, largest());
  Call call = call_of(slab.tokens, slab.extent, true);
  BackwardCall backward;
  for (std::size_t i = layers_.size(); i-- > 0;) {
    backward.deferred = deferred_area(kept, i);
    backward.input = input_of(slab, i);
    backward.saved = saved_area(slab, i);
    call.workspace = Area(offset(workspace_, boundary + layers_[i].deferred_bytes),
                          workspace_bytes_ - boundary - layers_[i].deferred_bytes);
    layers_[i].layer->backward_weight(stream, call, backward);
  }
  slab.microbatch.reset();
  kept.microbatch.reset();
}

// --- the end of a step ---

Tensor StageBody::tied_gradient_half() {
  if (!spec_.model.tied || has_embedding() == has_head()) return {};
  return parameters_.front()->gradient;
}

void StageBody::add_tied_gradient(Stream& stream, Tensor other_half) {
  const Tensor own = tied_gradient_half();
  EXPECTS(own.rank > 0 && !halves_added_);
  if (has_embedding())
    kernels::add(stream, own, own, other_half);
  else
    kernels::add(stream, own, other_half, own);
  halves_added_ = true;
}

const std::vector<TensorNorm>& StageBody::norm(Stream& stream) {
  if (spec_.model.tied && has_embedding() && has_head() && !halves_added_) {
    const Tensor embedding = layers_.front().parameters.front().gradient;
    kernels::add(stream, embedding, embedding, layers_.back().parameters.back().gradient);
    halves_added_ = true;
  }
  norms_.clear();
  for (const Parameter* parameter : parameters_)
    if (parameter->share == Share::none)
      norms_.push_back({parameter->tensor, kernels::sum_of_squares(stream, parameter->gradient)});
  return norms_;
}

void StageBody::update(Stream& stream, const UpdateSpec& update) {
  if (update.skip) return;
  const AdamWSpec& adam = spec_.optimizer;
  const kernels::ParameterUpdate change{
      update.learning_rate,  adam.beta1,      adam.beta2, adam.epsilon, adam.weight_decay,
      update.gradient_scale, update.adam_step};
  for (const Parameter* parameter : parameters_)
    if (parameter->share != Share::half) kernels::update_parameter(stream, *parameter, change);
}

std::vector<std::pair<std::uint32_t, std::uint64_t>> StageBody::state_hashes(Stream& stream) {
  std::vector<std::pair<std::uint32_t, std::uint64_t>> hashes;
  for (const Parameter* parameter : parameters_) {
    if (parameter->share != Share::none) continue;
    std::uint64_t hash = kernels::hash_bytes(stream, parameter->weight);
    hash = kernels::hash_bytes(stream, parameter->first_moment, hash);
    hash = kernels::hash_bytes(stream, parameter->second_moment, hash);
    hashes.emplace_back(parameter->tensor, hash);
  }
  return hashes;
}

std::vector<NamedState> StageBody::state() {
  std::vector<NamedState> list;
  for (const Parameter* parameter : parameters_) {
    if (parameter->share == Share::half) continue;
    list.push_back({parameter->spec.name, parameter->tensor, parameter->weight,
                    parameter->first_moment, parameter->second_moment, parameter->gradient,
                    parameter->share == Share::copy});
  }
  return list;
}

// --- without gradients ---

double StageBody::evaluate(Stream& stream,
                           const MicrobatchTokens& tokens,
                           Tensor input,
                           Tensor output) {
  Slab& slab = idle_slab();
  slab.extent = extent_of(tokens, input);
  const Call call = call_of(tokens, slab.extent, false);
  const std::size_t last = layers_.size() - 1;
  run_forward(stream, slab, call, input, has_head() ? last : last + 1);
  if (has_head()) return head().loss(stream, call, input_of(slab, last));
  kernels::copy(stream, kernels::as_rows(output),
                kernels::as_rows(layers_[last].layer->output(slab.extent, saved_area(slab, last))));
  return 0;
}

void StageBody::logits(Stream& stream, const MicrobatchTokens& tokens, Tensor input, Tensor out) {
  EXPECTS(has_head());
  Slab& slab = idle_slab();
  slab.extent = extent_of(tokens, input);
  const Call call = call_of(tokens, slab.extent, false);
  const std::size_t last = layers_.size() - 1;
  run_forward(stream, slab, call, input, last);
  head().logits(stream, call, input_of(slab, last), out);
}

}  // namespace

void Stage::logits(
    Stream& stream, std::uint32_t sequences, std::uint32_t length, Tensor input, Tensor out) {
  EXPECTS(input.rank == 3 && input.shape[0] == sequences && input.shape[1] == length);
  MicrobatchTokens tokens;
  tokens.sequences = sequences;
  logits(stream, tokens, input, out);
}

Result<std::unique_ptr<Stage>> Stage::create(Device& device,
                                             const StageSpec& spec,
                                             const Block* workspace) {
  if (spec.layers.size() == 0 || spec.layers.last > layer_count(spec.model) ||
      spec.layers.first >= spec.layers.last)
    return Error{ErrorCode::invalid_input,
                 fmt::format("a stage of layers [{}, {}) is not within the model's [0, {})",
                             spec.layers.first, spec.layers.last, layer_count(spec.model))};
  const bool counts_only = device.arena().backing() == Arena::Backing::counting;
  auto stage = std::make_unique<StageBody>(spec, counts_only);
  TROUPE_TRY(stage->allocate(device.arena(), workspace));
  return std::unique_ptr<Stage>(std::move(stage));
}

}  // namespace troupe
