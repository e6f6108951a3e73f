#include "planner/device_model.h"

#include "tests/support/catch.h"

using namespace troupe;

namespace {

LayerOp product(double m, double n, double k, double batch = 1) {
  return {m, n, k, batch, 2 * batch * (m * k + k * n + m * n), 1};
}

double achieved(const LayerOp& op, const AcceleratorRates& rates) {
  return op.flops() / op_seconds(op, rates) / rates.peak;
}

}  // namespace

TEST_CASE("what computes nothing takes its bytes over the bandwidth, and its launches") {
  AcceleratorRates rates = a100_rates(2e12);
  rates.launch = 5e-6;
  const LayerOp copy{0, 0, 0, 1, 1.6e9, 3};
  CHECK(op_seconds(copy, rates) == Approx(1.6e9 / (2e12 * 0.8) + 3 * 5e-6));
  CHECK(ops_seconds({copy, copy}, rates) == Approx(2 * op_seconds(copy, rates)));
  CHECK(ops_seconds({}, rates) == 0);
}

TEST_CASE("a large product reaches nearly the achievable share, a small one does not") {
  for (const AcceleratorRates& rates : {a100_rates(), h100_rates()}) {
    const double large = achieved(product(8192, 8192, 8192), rates);
    CHECK(large < rates.achievable);
    CHECK(large > 0.93 * rates.achievable);
    CHECK(achieved(product(256, 256, 256), rates) < 0.1);
  }
}

TEST_CASE("a product is never faster than its bytes") {
  const AcceleratorRates rates = a100_rates();
  const LayerOp thin = product(8, 8192, 8192);
  CHECK(op_seconds(thin, rates) >= thin.bytes / (rates.memory * rates.memory_achievable));
}

TEST_CASE("one tile more than there are processors starts another wave") {
  AcceleratorRates rates = a100_rates();
  rates.memory = 1e18;   // arithmetic alone
  rates.processors = 1;  // tiles of one processor run one after the other
  const LayerOp one = product(256, 128, 4096), two = product(256, 256, 4096);
  rates.launch = 0;
  CHECK(op_seconds(two, rates) == Approx(2 * op_seconds(one, rates)));
  // The same work on many processors: both fit into one wave.
  rates.processors = 108;
  CHECK(op_seconds(two, rates) == Approx(op_seconds(one, rates)));
}

TEST_CASE("dimensions that are no multiple of 8 cost half, in batches the tensor cores") {
  AcceleratorRates rates = a100_rates();
  rates.launch = 0;
  // Tiles cover both sizes alike.
  const Seconds whole = op_seconds(product(4096, 4096, 4096), rates);
  const double fill = rates.ramp_k / 4096;  // beside the arithmetic's 1
  CHECK(op_seconds(product(4095, 4096, 4096), rates) == Approx(whole * (2 + fill) / (1 + fill)));
  // Short products of a batch mostly fill pipes, which takes no longer without tensor cores.
  const auto filled = [&](double k) { return rates.ramp_k / k; };
  const Seconds aligned = op_seconds(product(2048, 2048, 112, 64), rates) / 112;
  const Seconds odd = op_seconds(product(2048, 2048, 108, 64), rates) / 108;
  CHECK(odd == Approx(aligned * (16 + filled(108)) / (1 + filled(112))));
}

TEST_CASE("no product gets slower on a faster device or faster with more work") {
  AcceleratorRates rates = h100_rates();
  AcceleratorRates faster = rates;
  faster.peak *= 2;
  faster.memory *= 2;
  for (const double size : {64, 200, 1000, 4096}) {
    const LayerOp op = product(size, size, size);
    CHECK(op_seconds(op, faster) <= op_seconds(op, rates));
    CHECK(op_seconds(product(2 * size, size, size), rates) >= op_seconds(op, rates));
    CHECK(op_seconds(product(size, size, 2 * size), rates) > op_seconds(op, rates));
  }
}
