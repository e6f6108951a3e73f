#include "apps/estimate_table.h"

#include <fmt/format.h>

namespace troupe {
namespace {

const char* text_of(Recompute recompute) {
  if (recompute == Recompute::none) return "none";
  return recompute == Recompute::full ? "full" : "selective";
}

TableCell count(std::uint64_t value) {
  return {fmt::format("{}", value), value};
}

TableCell seconds(Seconds value) {
  return {format_seconds(value), value};
}

TableCell bytes(double value) {
  return {format_bytes(static_cast<Bytes>(value)), static_cast<Bytes>(value)};
}

template <class Value>
struct Term {
  const char* title;
  const char* key;
  Value value;
};

}  // namespace

std::string layout_text(const Layout& layout) {
  std::string out =
      fmt::format("tensor {} x pipeline {} x data {}", layout.tensor, layout.pipeline, layout.data);
  if (layout.context > 1) out += fmt::format(" x context {}", layout.context);
  if (layout.expert > 1) out += fmt::format(", expert {}", layout.expert);
  if (layout.chunks > 1) out += fmt::format(", {} chunks", layout.chunks);
  if (layout.zero != ZeroStage::none)
    out += fmt::format(", ZeRO-{}", static_cast<unsigned>(layout.zero));
  out += fmt::format(", microbatch {}", layout.microbatch);
  if (layout.recompute != Recompute::none)
    out += fmt::format(", {} recomputation", text_of(layout.recompute));
  return out;
}

Table layout_table(const std::vector<PricedLayout>& layouts,
                   const ArchitectureRun& run,
                   const DeviceGroup& group,
                   double flops) {
  Table table({{"tensor", "tensor", true},
               {"pipeline", "pipeline", true},
               {"data", "data", true},
               {"context", "context", true},
               {"expert", "expert", true},
               {"chunks", "chunks", true},
               {"ZeRO", "zero", true},
               {"microbatch", "microbatch", true},
               {"recompute", "recompute", false},
               {"step", "step_s", true},
               {"tokens/s/device", "tokens_per_s_device", true},
               {"MFU", "mfu", true},
               {"memory", "memory_bytes", true},
               {"of device", "memory_share", true}});
  for (const PricedLayout& priced : layouts) {
    const Layout& layout = priced.layout;
    const Seconds step = priced.seconds.total();
    const auto devices = static_cast<double>(layout.devices());
    const double rate = static_cast<double>(layout.batch) * run.sequence / step / devices;
    table.add({count(layout.tensor),
               count(layout.pipeline),
               count(layout.data),
               count(layout.context),
               count(layout.expert),
               count(layout.chunks),
               count(static_cast<std::uint64_t>(layout.zero)),
               count(layout.microbatch),
               {text_of(layout.recompute), text_of(layout.recompute)},
               seconds(step),
               {fmt::format("{:.0f}", rate), rate},
               share_cell(flops / step / devices / group.cluster.device.peak),
               bytes(priced.bytes.total()),
               share_cell(priced.bytes.total() / group.memory)});
  }
  return table;
}

Table seconds_table(const StepSeconds& step) {
  Table table({{"term", "term", false}, {"seconds", "seconds", true}, {"share", "share", true}});
  for (const Term<Seconds>& term :
       {Term<Seconds>{"arithmetic, exchange of experts and of context", "compute", step.compute},
        {"tensor-parallel traffic", "tensor", step.tensor},
        {"pipeline fill and drain", "bubble", step.bubble},
        {"between stages", "transfer", step.transfer},
        {"gradients and parameters between replicas", "reduction", step.reduction},
        {"optimizer", "optimizer", step.optimizer}})
    table.add({{term.title, term.key}, seconds(term.value), share_cell(term.value / step.total())});
  return table;
}

Table bytes_table(const StepBytes& need, double memory) {
  Table table({{"part", "part", false}, {"bytes", "bytes", true}, {"of device", "share", true}});
  for (const Term<double>& term : {Term<double>{"weights", "weights", need.weights},
                                   {"gradients", "gradients", need.gradients},
                                   {"optimizer", "optimizer", need.optimizer},
                                   {"activations of blocks", "activations", need.activations},
                                   {"gathered or recomputed block", "working", need.working},
                                   {"embedding and output", "ends", need.ends},
                                   {"context and libraries", "context", need.context},
                                   {"total", "total", need.total()}})
    table.add({{term.title, term.key}, bytes(term.value), share_cell(term.value / memory)});
  return table;
}

}  // namespace troupe
