// A stage's memory, parameters and what ends a step. The step itself: stage_step.cpp.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "devices/compute_pool.h"
#include "kernels/ops.h"
#include "kernels/stage_body.h"

namespace troupe {
namespace kernels {

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
    const Share share = table_share_of(spec_.model, spec_.layers, index);
    const ParameterBytes bytes = parameter_bytes(spec_.model, index, spec_.shape.compute, share);
    std::array<std::byte*, 3> data{};
    const std::array<std::pair<Bytes, MemoryCategory>, 3> wanted = {
        {{bytes.weights, MemoryCategory::weights},
         {bytes.gradients, MemoryCategory::gradients},
         {bytes.optimizer, MemoryCategory::optimizer}}};
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const bool left_out = spec_.weights_only && wanted[i].second != MemoryCategory::weights;
      if (wanted[i].first == 0 || left_out) continue;
      Result<Block> block = arena.allocate(wanted[i].first, wanted[i].second);
      if (!block) return block.error();
      data[i] = block->data();
      parameter_blocks_.push_back(std::move(*block));
    }
    ParameterAreas areas{Area(data[0], bytes.weights), Area(data[1], bytes.gradients),
                         Area(data[2], bytes.optimizer)};
    layers_.push_back(build_layer(spec_.model, index, spec_.shape.compute, largest(), share,
                                  recompute_of(spec_.recompute, spec_.model, spec_.layers, index),
                                  layers_.empty() ? nullptr : &layers_.front(), areas));
  }
  return {};
}

Status StageBody::allocate_slabs(Arena& arena, const Block* workspace) {
  Bytes saved = 0;
  if (!has_embedding())
    saved = input_bytes_ = boundary_bytes(spec_.model, spec_.shape.compute, largest());
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
    if (!spec_.weights_only) fill(stream, parameter->gradient, 0);
    if (parameter->share == Share::half) continue;
    if (!spec_.weights_only) {
      fill(stream, parameter->first_moment, 0);
      fill(stream, parameter->second_moment, 0);
    }
    switch (parameter->spec.init) {
      case Init::zeros: fill(stream, parameter->weight, 0); break;
      case Init::ones: fill(stream, parameter->weight, 1); break;
      case Init::normal:
        fill_normal(stream, parameter->weight, spec_.seed, parameter->spec.name,
                    parameter->spec.init_std);
        break;
    }
  }
  weights_changed(stream);
}

void StageBody::weights_changed(Stream& stream) {
  for (const Parameter* parameter : parameters_)
    if (parameter->share != Share::half && parameter->has_copy())
      copy(stream, parameter->compute, parameter->weight);
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
    add(stream, own, own, other_half);
  else
    add(stream, own, other_half, own);
  halves_added_ = true;
}

const std::vector<TensorNorm>& StageBody::norm(Stream& stream) {
  if (spec_.model.tied && has_embedding() && has_head() && !halves_added_) {
    const Tensor embedding = layers_.front().parameters.front().gradient;
    add(stream, embedding, embedding, layers_.back().parameters.back().gradient);
    halves_added_ = true;
  }
  EXPECTS(weights_contributed_);
  norms_.clear();
  for (const Parameter* parameter : parameters_)
    if (parameter->share == Share::none)
      norms_.push_back({parameter->tensor, sum_of_squares(stream, parameter->gradient)});
  return norms_;
}

void StageBody::update(Stream& stream, const UpdateSpec& update) {
  if (update.skip) return;
  const AdamWSpec& adam = spec_.optimizer;
  const ParameterUpdate change{update.learning_rate, adam.beta1,        adam.beta2,
                               adam.epsilon,         adam.weight_decay, update.gradient_scale,
                               update.adam_step};
  for (const Parameter* parameter : parameters_)
    if (parameter->share != Share::half) update_parameter(stream, *parameter, change);
}

std::vector<std::pair<std::uint32_t, std::uint64_t>> StageBody::state_hashes(Stream& stream) {
  std::vector<std::pair<std::uint32_t, std::uint64_t>> hashes;
  for (const Parameter* parameter : parameters_) {
    if (parameter->share != Share::none) continue;
    std::uint64_t hash = hash_bytes(stream, parameter->weight);
    if (!spec_.weights_only) {
      hash = hash_bytes(stream, parameter->first_moment, hash);
      hash = hash_bytes(stream, parameter->second_moment, hash);
    }
    hashes.emplace_back(parameter->tensor, hash);
  }
  return hashes;
}

std::vector<NamedState> StageBody::state() {
  std::vector<NamedState> list;
  for (const Parameter* parameter : parameters_) {
    if (parameter->share == Share::half) continue;
    NamedState state;
    state.name = parameter->spec.name;
    state.tensor = parameter->tensor;
    state.weight = parameter->weight;
    state.shared_copy = parameter->share == Share::copy;
    if (!spec_.weights_only) {
      state.first_moment = parameter->first_moment;
      state.second_moment = parameter->second_moment;
      state.gradient = parameter->gradient;
    }
    list.push_back(std::move(state));
  }
  return list;
}

}  // namespace kernels

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
  if (spec.split_backward && !spec.recompute.none())
    return Error{
        ErrorCode::invalid_input,
        "a split backward computes nothing again; a stage with recomputation needs a fused "
        "one (1f1b, gpipe or interleaved)"};
  const bool counts_only = device.arena().backing() == Arena::Backing::counting;
  auto stage = std::make_unique<kernels::StageBody>(spec, counts_only);
  TROUPE_TRY(stage->allocate(device.arena(), workspace));
  return std::unique_ptr<Stage>(std::move(stage));
}

}  // namespace troupe
