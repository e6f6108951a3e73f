#include "planner/collectives.h"

#include <limits>

#include "tests/support/catch.h"

using namespace troupe;

namespace {

/// Round numbers: 100 GB/s within a node, 80 GB/s between two and 40 GB/s in rings over many.
Interconnect round_net() {
  Interconnect net;
  net.devices_per_node = 8;
  net.intra = 100e9;
  net.intra_start = 10e-6;
  net.intra_hop = 1e-6;
  net.node = 100e9;
  net.node_achievable = 0.8;
  net.ring_achievable = 0.4;
  net.inter_start = 5e-6;
  net.transfer_start = 20e-6;
  net.ring_hop_within = 2e-6;
  net.ring_hop_between = 7e-6;
  return net;
}

}  // namespace

TEST_CASE("a group of one moves nothing") {
  const Interconnect net = round_net();
  for (const bool within : {true, false}) {
    const Group alone{1, within, 1};
    CHECK(all_reduce_seconds(1e9, alone, net) == 0);
    CHECK(reduce_scatter_seconds(1e9, alone, net) == 0);
    CHECK(all_gather_seconds(1e9, alone, net) == 0);
    CHECK(all_to_all_seconds(1e9, alone, net) == 0);
    CHECK(ring_latency_seconds(alone, net) == 0);
  }
}

TEST_CASE("collectives by hand") {
  const Interconnect net = round_net();
  // 4 members: 2 (4 - 1)/4 of 2 GB at 100 GB/s, a start and 6 hops.
  CHECK(all_reduce_seconds(2e9, {4, true, 1}, net) == Approx(0.03 + 10e-6 + 6 * 1e-6));
  CHECK(reduce_scatter_seconds(2e9, {4, true, 1}, net) == Approx(0.015 + 10e-6 + 3 * 1e-6));
  // A pair of nodes: half of 2 GB at 80 GB/s, one message.
  CHECK(all_gather_seconds(2e9, {2, false, 1}, net) == Approx(1e9 / 80e9 + 5e-6));
  // Many: 7/8 of 2 GB at 40 GB/s, 3 messages; four such groups share the ports.
  CHECK(all_gather_seconds(2e9, {8, false, 1}, net) == Approx(1.75e9 / 40e9 + 3 * 5e-6));
  CHECK(all_gather_seconds(2e9, {8, false, 4}, net) == Approx(1.75e9 / 10e9 + 3 * 5e-6));
  CHECK(all_to_all_seconds(2e9, {4, true, 1}, net) == Approx(1.5e9 / 100e9 + 10e-6));
}

TEST_CASE("a ring's latency counts hops within and between nodes") {
  const Interconnect net = round_net();
  CHECK(ring_latency_seconds({4, true, 1}, net) == Approx(3 * 2e-6));
  // 16 members fill two nodes: one hop between them, 14 within.
  CHECK(ring_latency_seconds({16, false, 1}, net) == Approx(7e-6 + 14 * 2e-6));
  // One of eight groups that share nodes: each hop is between nodes.
  CHECK(ring_latency_seconds({16, false, 8}, net) == Approx(15 * 7e-6));
}

TEST_CASE("with infinite bandwidth only latency is left, with none only bytes count") {
  Interconnect net = round_net();
  net.intra = net.node = std::numeric_limits<double>::infinity();
  CHECK(all_reduce_seconds(1e12, {4, true, 1}, net) == Approx(16e-6));
  CHECK(all_reduce_seconds(1e12, {4, false, 1}, net) == Approx(2 * 2 * 5e-6));
  net = round_net();
  net.intra_start = net.intra_hop = net.inter_start = 0;
  for (const Group& group : {Group{4, true, 1}, Group{64, false, 2}}) {
    const Seconds halves =
        reduce_scatter_seconds(3e8, group, net) + all_gather_seconds(3e8, group, net);
    CHECK(all_reduce_seconds(3e8, group, net) == Approx(halves));
    CHECK(all_reduce_seconds(6e8, group, net) == Approx(2 * halves));
  }
}

TEST_CASE("no collective gets faster with more bytes, members or neighbours") {
  const Interconnect net = round_net();
  for (const bool within : {true, false}) {
    Seconds last = 0;
    for (const double members : {2, 4, 8, 16, 64}) {
      const Seconds now = all_reduce_seconds(1e6, {members, within, 1}, net);
      CHECK(now > last);
      CHECK(all_reduce_seconds(2e6, {members, within, 1}, net) > now);
      last = now;
    }
  }
  CHECK(all_gather_seconds(1e8, {4, false, 2}, net) > all_gather_seconds(1e8, {4, false, 1}, net));
}

TEST_CASE("a transfer between stages uses the port of each rank") {
  const Interconnect net = round_net();
  CHECK(stage_transfer_seconds(1e9, 4, true, net) == Approx(20e-6 + 1e9 / 100e9));
  // A quarter over a port of 10 GB/s, three quarters gathered at 100 GB/s.
  CHECK(stage_transfer_seconds(1e9, 4, false, net) == Approx(20e-6 + 0.025 + 0.0075));
  CHECK(stage_transfer_seconds(1e9, 1, false, net) == Approx(20e-6 + 0.1));
}
