/// Time against memory of one stage: what it may compute again and where its states may lie. These
/// are the fronts from which Zhu et al. 2025 ("Mist", EuroSys'25) pick one point a stage.
///
/// A block that computes again (planner/recompute.h) takes longer in each B and keeps less in
/// flight. A state that lies in host memory or on disk moves over the device's way to its host
/// (`DeviceSpec::host_link`), the host's memory and the disk, of which every device of a node has
/// an equal share:
///   weights      come for each F and each B; after U they go back
///   gradients    of each microbatch go to the host and are added there
///   optimizer    U runs on the host, on gradients that come and with new weights that go; or the
///                state passes through the device
///   activations  go after F and come back before B; two microbatches stay
/// Moves hide behind the arithmetic of the same action, so that an action lasts as long as the
/// slowest of arithmetic, either direction of the link, host memory and disk (the overlap that
/// Rajbhandari et al. 2021, "ZeRO-Infinity", arXiv:2104.07857, section 4, count with). A device
/// keeps two layers of what is moved by layers, as one is in use while the next one comes. What
/// lies on disk passes through buffers of two layers in host memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/plan.h"
#include "planner/tier_share.h"

namespace troupe {

/// What stages may choose, beside keeping everything on the device.
struct StageFreedom {
  bool recompute = true;
  bool tiers = true;  ///< host memory and disk, where nodes have some
};

struct StageChoices {
  StageRecompute recompute;
  StateTier weights = StateTier::device, gradients = StateTier::device,
            optimizer = StateTier::device, activations = StateTier::device;
  bool host_update = false;  ///< the optimizer runs on the host
  /// Everything on the device, nothing twice.
  bool plain() const { return *this == StageChoices{}; }
  /// Everything on the device.
  bool resident() const {
    StageChoices kept;
    kept.recompute = recompute;
    return *this == kept;
  }
  friend bool operator==(const StageChoices&, const StageChoices&) = default;
};
/// "2 blocks compute again, optimizer in host memory, updated by the host"; plain: "".
std::string to_text(const StageChoices& choices);

struct StagePoint {
  StageChoices choices;
  LayerSeconds seconds;  ///< of the actions, waiting for moves included
  LayerSeconds waits;    ///< of these, what moves do not hide
  MemoryPlan memory;     ///< of the device, buffers at its edges included
  Bytes host = 0;        ///< in host memory
  Bytes disk = 0;        ///< on disk
};

class StagePoints {
 public:
  /// The arguments must outlive the points.
  StagePoints(const ModelSpec& model,
              const ClusterSpec& cluster,
              const ModelProfile& profile,
              DType compute,
              StageFreedom freedom);

  /// The price of given choices, whether they fit or not. Promise: no more blocks computed again
  /// than there are, tiers that the device's node has.
  StagePoint point(DeviceId device,
                   LayerRange layers,
                   std::uint32_t in_flight,
                   Bytes edges,
                   const StageChoices& choices) const;
  /// Stages without an end of the model are alike where they have as many layers.
  bool blocks_alike() const { return profile_.blocks.empty(); }
  bool fits(DeviceId device, const StagePoint& point) const;

  /// Points that fit and of which none is as quick as another in every action. Layers that fit as
  /// they are leave nothing but the optimizer to the host, where that is quicker. Beside moved
  /// activations recomputation is full, tried in eighths of the blocks.
  std::vector<StagePoint> front(DeviceId device,
                                LayerRange layers,
                                std::uint32_t in_flight,
                                Bytes edges) const;
  /// The point of the front that is busy least in a step of so many microbatches; nothing where
  /// none fits.
  std::optional<StagePoint> quickest(DeviceId device,
                                     LayerRange layers,
                                     std::uint32_t in_flight,
                                     Bytes edges,
                                     std::uint32_t microbatches) const;

 private:
  /// Blocks that compute again under one policy, in layer order.
  struct Again {
    std::vector<Bytes> saved{0};      ///< less in flight: of the first 0, 1, ... blocks
    std::vector<Seconds> seconds{0};  ///< on the device, likewise
    std::vector<Bytes> workspace;     ///< by block
    void add(Bytes less, Seconds longer, Bytes needs);
    void repeat();  ///< a block like the first
    Bytes saved_of(std::uint32_t first, std::uint32_t count) const;
    Seconds seconds_of(std::uint32_t first, std::uint32_t count) const;
    Bytes workspace_of(std::uint32_t first, std::uint32_t count, bool alike) const;
  };
  /// What the points of a stage have in common.
  struct Stage {
    MemoryPlan memory;        ///< activations: of one microbatch
    LayerSeconds arithmetic;  ///< on the device
    Bytes moved_weights = 0;  ///< what arithmetic reads
    Bytes largest_weights = 0, largest_gradients = 0, largest_optimizer = 0;  ///< of a layer
    double update_bytes = 0;
    std::uint32_t blocks = 0;  ///< that may compute again
    Again full, selective;
  };
  Stage stage_of(DeviceId device, LayerRange layers) const;
  StagePoint priced(DeviceId device,
                    const Stage& stage,
                    std::uint32_t in_flight,
                    Bytes edges,
                    const StageChoices& choices) const;
  std::vector<StageChoices> placements(const TierShare& share, std::uint32_t in_flight) const;

  const ModelSpec& model_;
  const ClusterSpec& cluster_;
  const ModelProfile& profile_;
  DType compute_;
  StageFreedom freedom_;
  std::vector<TierShare> shares_;  ///< by device
};

}  // namespace troupe
