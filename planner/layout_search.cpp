#include "planner/layout_search.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <set>

#include "planner/result.h"

namespace troupe {
namespace {

using Counts = std::vector<std::uint64_t>;

constexpr Seconds never = std::numeric_limits<Seconds>::infinity();

std::uint64_t whole(double value) {
  return static_cast<std::uint64_t>(value);
}

Counts divisors(std::uint64_t number, std::uint64_t most) {
  Counts out;
  for (std::uint64_t part = 1; part <= std::min(number, most); ++part)
    if (number % part == 0) out.push_back(part);
  return out;
}

/// Those of `legal` that `chosen` allows.
Counts allowed(const Counts& legal, const Counts& chosen) {
  if (chosen.empty()) return legal;
  Counts out;
  for (const std::uint64_t value : legal)
    if (std::find(chosen.begin(), chosen.end(), value) != chosen.end()) out.push_back(value);
  return out;
}

template <class T>
std::vector<T> or_all(const std::vector<T>& chosen, std::vector<T> all) {
  return chosen.empty() ? all : chosen;
}

/// A pipeline divides its layers, or leaves one more on some stages.
Counts pipelines(const ArchitectureRun& run, std::uint64_t devices, const Counts& chosen) {
  return allowed(divisors(devices, run.model.blocks), chosen);
}

Counts chunk_counts(const ArchitectureRun& run, const Layout& layout, const Counts& chosen) {
  if (layout.pipeline == 1 || layout.microbatches() % layout.pipeline != 0 ||
      run.model.blocks % layout.pipeline != 0)
    return allowed({1}, chosen);
  return allowed(divisors(run.model.blocks / layout.pipeline, 8), chosen);
}

/// Ranks of a stage that may divide the routed experts.
Counts expert_ranks(const ArchitectureRun& run, const Layout& layout, const Counts& chosen) {
  if (!run.model.has_experts()) return allowed({1}, chosen);
  Counts out;
  for (const std::uint64_t ranks : divisors(run.model.moe.experts, run.model.moe.experts))
    if ((layout.data * layout.tensor * layout.context) % ranks == 0) out.push_back(ranks);
  return allowed(out, chosen);
}

/// How states are shared out and what is computed again.
struct Policies {
  std::vector<ZeroStage> zero;
  std::vector<Recompute> recompute;
};

Policies policies_of(const LayoutChoices& choices) {
  Policies out;
  out.zero = or_all(choices.zero, {ZeroStage::none, ZeroStage::optimizer, ZeroStage::gradients,
                                   ZeroStage::parameters});
  // Flash attention keeps no scores: there is nothing to select.
  out.recompute = or_all(choices.recompute,
                         choices.flash_attention
                             ? std::vector{Recompute::none, Recompute::full}
                             : std::vector{Recompute::none, Recompute::selective, Recompute::full});
  return out;
}

/// Calls `use` with the layout under every policy that it can have.
template <class Use>
void for_each_policy(const Layout& cut, const Policies& policies, const Use& use) {
  Layout layout = cut;
  for (const ZeroStage zero : policies.zero) {
    if (zero != ZeroStage::none && layout.data * layout.context == 1) continue;
    if (zero > ZeroStage::optimizer && layout.pipeline > 1) continue;
    layout.zero = zero;
    for (const Recompute recompute : policies.recompute) {
      layout.recompute = recompute;
      use(layout);
    }
  }
}

/// Calls `use` with every way to divide devices into tensor, pipeline, context and data groups.
template <class Use>
void for_each_grid(const ArchitectureRun& run,
                   const DeviceGroup& group,
                   const LayoutChoices& choices,
                   const Use& use) {
  const auto per_node = whole(group.cluster.net.devices_per_node);
  const Counts contexts = choices.context.empty() ? Counts{1} : choices.context;
  for (const std::uint64_t tensor : allowed(divisors(group.devices, per_node), choices.tensor))
    for (const std::uint64_t pipeline : pipelines(run, group.devices / tensor, choices.pipeline))
      for (const std::uint64_t context : contexts) {
        // A tensor group lies within a node.
        if (group.devices > per_node && per_node % tensor != 0) continue;
        if (context == 0 || group.devices / tensor / pipeline % context != 0) continue;
        Layout layout;
        layout.tensor = tensor;
        layout.pipeline = pipeline;
        layout.context = context;
        layout.data = group.devices / tensor / pipeline / context;
        layout.sequence_parallel = tensor > 1;
        layout.flash_attention = choices.flash_attention;
        layout.causal = choices.flash_attention;
        use(layout);
      }
}

/// Calls `use` with every legal layout.
template <class Use>
void for_each_layout(const ArchitectureRun& run,
                     const DeviceGroup& group,
                     std::uint64_t batch,
                     const LayoutChoices& choices,
                     const Use& use) {
  const Policies policies = policies_of(choices);
  for_each_grid(run, group, choices, [&](Layout layout) {
    layout.batch = batch;
    if (batch % layout.data != 0) return;
    for (const std::uint64_t expert : expert_ranks(run, layout, choices.expert))
      for (const std::uint64_t microbatch :
           allowed(divisors(batch / layout.data, 64), choices.microbatch)) {
        layout.expert = expert;
        layout.microbatch = microbatch;
        for (const std::uint64_t chunks : chunk_counts(run, layout, choices.chunks)) {
          layout.chunks = chunks;
          if (layout_faults(run, layout).empty()) for_each_policy(layout, policies, use);
        }
      }
  });
}

bool faster(const PricedLayout& a, const PricedLayout& b) {
  const Seconds left = a.seconds.total();
  const Seconds right = b.seconds.total();
  return left != right ? left < right : a.bytes.total() < b.bytes.total();
}

/// The layout with another batch, or nothing where it cannot cut that.
std::optional<PricedLayout> with_batch(const ArchitectureRun& run,
                                       const DeviceGroup& group,
                                       std::uint64_t batch,
                                       const Framework& framework,
                                       Layout layout) {
  if (batch == 0 || batch % (layout.data * layout.microbatch) != 0) return std::nullopt;
  layout.batch = batch;
  if (layout.chunks > 1 && layout.microbatches() % layout.pipeline != 0) return std::nullopt;
  PricedLayout out{layout, {}, step_bytes(run, layout, framework)};
  if (out.bytes.total() > group.memory) return std::nullopt;
  out.seconds = step_seconds(run, layout, framework, group.cluster);
  return out;
}

/// Shares are multiples of it: 1, or for large batches the least divisor that leaves at most so
/// many shares.
std::uint64_t unit_of(std::uint64_t batch) {
  constexpr std::uint64_t most_shares = 2048;
  constexpr std::uint64_t too_coarse = 256;
  std::uint64_t unit = (batch + most_shares - 1) / most_shares;
  while (batch % unit != 0) ++unit;
  return batch / unit < too_coarse && batch <= 8 * most_shares ? 1 : unit;
}

/// By share in sequences: the group's soonest end and the layout of it.
struct Offers {
  std::vector<Seconds> seconds;
  std::vector<std::optional<PricedLayout>> layouts;
};

/// What tells layouts of one search apart, but for the batch.
using LayoutKey = std::array<std::uint64_t, 9>;
LayoutKey key_of(const Layout& layout) {
  return {layout.tensor,
          layout.pipeline,
          layout.data,
          layout.context,
          layout.expert,
          layout.microbatch,
          layout.chunks,
          static_cast<std::uint64_t>(layout.zero),
          static_cast<std::uint64_t>(layout.recompute)};
}

/// Batches at which a group's layouts are ranked: every share where these are few; else the whole
/// batch, half of it and so on, each also rounded down to a multiple of every number of replicas
/// that the group may hold.
std::set<std::uint64_t> ranking_batches(const DeviceGroup& group,
                                        std::uint64_t batch,
                                        std::uint64_t unit) {
  constexpr std::uint64_t few = 128;
  std::set<std::uint64_t> out;
  if (batch / unit <= few) {
    for (std::uint64_t share = unit; share <= batch; share += unit) out.insert(share);
    return out;
  }
  const Counts replicas = divisors(group.devices, group.devices);
  for (std::uint64_t share = batch; share >= unit; share /= 2)
    for (const std::uint64_t count : replicas)
      if (share >= count) out.insert(share / count * count);
  return out;
}

/// How many of so many equal parts are worth a try, rising, all of them last.
std::set<std::uint64_t> parts_of(std::uint64_t all, std::uint64_t batch, std::uint64_t few) {
  std::set<std::uint64_t> out{all};
  for (std::uint64_t part = 1; all <= few && part < all; ++part) out.insert(part);
  if (all <= few) return out;
  std::uint64_t power = 1;
  for (; 2 * power <= all; power *= 2) out.insert(all / power * power);
  out.insert(power);
  if (power / 2 * 3 <= all) out.insert(power / 2 * 3);
  for (std::uint64_t part = all; part > 0; --part)
    if (batch % part == 0) {
      out.insert(part);
      break;
    }
  return out;
}

/// The group and smaller ones of its whole nodes, or of its devices where there is one node, by
/// rising size.
std::vector<DeviceGroup> parts_of(const DeviceGroup& group,
                                  std::uint64_t batch,
                                  std::uint64_t few) {
  const std::uint64_t per_node = whole(group.cluster.net.devices_per_node);
  const bool nodes = per_node > 0 && group.devices > per_node && group.devices % per_node == 0;
  const std::uint64_t unit = nodes ? per_node : 1;
  std::vector<DeviceGroup> out;
  for (const std::uint64_t count : parts_of(group.devices / unit, batch, few)) {
    out.push_back(group);
    out.back().devices = count * unit;
  }
  return out;
}

Offers offers_of(const ArchitectureRun& run,
                 const DeviceGroup& group,
                 std::uint64_t batch,
                 std::uint64_t unit,
                 const Framework& framework,
                 const LayoutChoices& choices,
                 std::size_t keep) {
  Offers out{std::vector<Seconds>(batch + 1, never),
             std::vector<std::optional<PricedLayout>>(batch + 1)};
  out.seconds[0] = 0;
  std::set<LayoutKey> priced;
  constexpr std::uint64_t few = 8;
  for (const DeviceGroup& part : parts_of(group, batch, few))
    for (const std::uint64_t ranked : ranking_batches(part, batch, unit))
      for (const PricedLayout& candidate :
           search_layouts(run, part, ranked, framework, choices, keep).best) {
        if (!priced.insert(key_of(candidate.layout)).second) continue;
        const std::uint64_t grain =
            std::lcm(candidate.layout.data * candidate.layout.microbatch, unit);
        for (std::uint64_t share = grain; share <= batch; share += grain) {
          auto offer = with_batch(run, part, share, framework, candidate.layout);
          if (!offer || offer->seconds.total() >= out.seconds[share]) continue;
          out.seconds[share] = offer->seconds.total();
          out.layouts[share] = std::move(offer);
        }
      }
  return out;
}

/// Of the first few groups, by how many of them take part and the sequences they have between them:
/// the soonest end, and the share of the last group in it.
struct Ends {
  std::vector<std::vector<Seconds>> seconds;
  std::vector<Counts> shares;
  Ends(std::size_t groups, std::uint64_t batch)
      : seconds(groups + 1, std::vector<Seconds>(batch + 1, never)),
        shares(groups + 1, Counts(batch + 1, 0)) {}
};

std::vector<Ends> join(const std::vector<Offers>& offers, std::uint64_t batch, std::uint64_t unit) {
  std::vector<Ends> ends(1, Ends(offers.size(), batch));
  ends[0].seconds[0][0] = 0;
  for (const Offers& offer : offers) {
    const Ends& before = ends.back();
    Ends after(offers.size(), batch);
    after.seconds = before.seconds;  // without this group
    for (std::uint64_t share = unit; share <= batch; share += unit) {
      if (offer.seconds[share] == never) continue;
      for (std::size_t members = 1; members <= offers.size(); ++members)
        for (std::uint64_t sum = share; sum <= batch; sum += unit) {
          const Seconds end =
              std::max(before.seconds[members - 1][sum - share], offer.seconds[share]);
          if (end >= after.seconds[members][sum]) continue;
          after.seconds[members][sum] = end;
          after.shares[members][sum] = share;
        }
    }
    ends.push_back(std::move(after));
  }
  return ends;
}

}  // namespace

double model_flops(const ArchitectureRun& run, std::uint64_t batch) {
  Layout one;
  one.batch = batch;
  one.causal = one.flash_attention = false;
  return device_flops(run, one);
}

LayoutSearch search_layouts(const ArchitectureRun& run,
                            const DeviceGroup& group,
                            std::uint64_t batch,
                            const Framework& framework,
                            const LayoutChoices& choices,
                            std::size_t keep) {
  EXPECTS(group.devices > 0 && batch > 0);
  LayoutSearch out;
  for_each_layout(run, group, batch, choices, [&](const Layout& layout) {
    ++out.considered;
    PricedLayout priced{layout, {}, step_bytes(run, layout, framework)};
    if (!out.smallest || priced.bytes.total() < out.smallest->bytes.total()) out.smallest = priced;
    if (priced.bytes.total() > group.memory) return;
    ++out.fitting;
    priced.seconds = step_seconds(run, layout, framework, group.cluster);
    const auto place = std::upper_bound(out.best.begin(), out.best.end(), priced, faster);
    if (place == out.best.end() && out.best.size() == keep) return;
    out.best.insert(place, priced);
    if (out.best.size() > keep) out.best.pop_back();
  });
  if (out.smallest)
    out.smallest->seconds = step_seconds(run, out.smallest->layout, framework, group.cluster);
  return out;
}

UsedDevices search_used(const ArchitectureRun& run,
                        const DeviceGroup& group,
                        std::uint64_t batch,
                        const Framework& framework,
                        const LayoutChoices& choices,
                        std::size_t keep) {
  constexpr double same_time = 1e-9;
  constexpr std::uint64_t few = 32;
  UsedDevices out{group.devices, search_layouts(run, group, batch, framework, choices, keep), {}};
  std::optional<PricedLayout> of_all;
  if (!out.search.best.empty()) of_all = out.search.best.front();
  Seconds least = of_all ? of_all->seconds.total() : never;
  for (const DeviceGroup& part : parts_of(group, batch, few)) {
    if (part.devices == group.devices) continue;
    LayoutSearch search = search_layouts(run, part, batch, framework, choices, keep);
    if (search.best.empty()) continue;
    // Parts come by rising size: a larger one has to be quicker, the whole too.
    const bool beats_whole = out.devices == group.devices &&
                             search.best.front().seconds.total() <= least * (1 + same_time);
    if (!beats_whole && search.best.front().seconds.total() >= least * (1 - same_time)) continue;
    least = search.best.front().seconds.total();
    out = {part.devices, std::move(search), of_all};
  }
  return out;
}

std::optional<SharedStep> share_batch(const ArchitectureRun& run,
                                      const std::vector<DeviceGroup>& groups,
                                      std::uint64_t batch,
                                      BytesPerSecond between,
                                      const Framework& framework,
                                      const LayoutChoices& choices,
                                      std::size_t keep) {
  const std::uint64_t unit = unit_of(batch);
  std::vector<Offers> offers;
  offers.reserve(groups.size());
  for (const DeviceGroup& group : groups)
    offers.push_back(offers_of(run, group, batch, unit, framework, choices, keep));
  const std::vector<Ends> ends = join(offers, batch, unit);
  const auto parameters = static_cast<double>(parameter_count(run.model));
  SharedStep out;
  out.seconds = never;
  std::size_t members = 0;
  for (std::size_t taking_part = 1; taking_part <= groups.size(); ++taking_part) {
    const auto count = static_cast<double>(taking_part);
    const Seconds reduction =
        2 * (count - 1) / count * parameters * framework.reduced_bytes / between;
    const Seconds end = ends.back().seconds[taking_part][batch] + reduction;
    if (end >= out.seconds) continue;
    out.seconds = end;
    out.reduction = reduction;
    members = taking_part;
  }
  if (out.seconds == never) return std::nullopt;
  out.shares.resize(groups.size());
  std::uint64_t left = batch;
  for (std::size_t g = groups.size(); g-- > 0;) {
    const std::uint64_t share = ends[g + 1].shares[members][left];
    if (share == 0) continue;
    out.shares[g] = {share, offers[g].layouts[share]};
    left -= share;
    --members;
  }
  return out;
}

}  // namespace troupe
