/// Logits of a sequence that grows, without computing its prefix again: the keys and values of the
/// tokens that were seen are kept. Stage::logits over all tokens is the definition.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "kernels/stage.h"

namespace troupe {

class Decoder {
 public:
  /// For a stage of all layers, which must outlive it. Takes keys and values for the stage's
  /// sequence length (as activations) and scratch (as workspace) from the stage's device.
  static Result<std::unique_ptr<Decoder>> create(Device& device, Stage& stage);
  virtual ~Decoder() = default;

  virtual Stage& stage() = 0;
  /// Tokens seen since the start or the last `clear`.
  virtual std::uint32_t length() const = 0;
  virtual void clear() = 0;
  /// Sees `tokens`, at least one, after those before; in all no more than the stage's sequence
  /// length. `logits`: f32 (1, vocabulary), after the last of them. Allocates nothing.
  virtual void append(Stream& stream, std::span<const std::int32_t> tokens, Tensor logits) = 0;
};

}  // namespace troupe
