#include "planner/orders_and_cuts.h"

#include <algorithm>
#include <map>
#include <set>

namespace troupe {

double binomial(std::uint32_t n, std::uint32_t k) {
  double ways = 1;
  for (std::uint32_t i = 1; i <= k; ++i) ways = ways * (n - k + i) / i;
  return ways;
}

std::vector<double> order_counts(const DeviceClasses& classes, std::uint32_t longest) {
  std::map<std::uint32_t, std::uint32_t> alike;
  for (const std::uint32_t one : classes) ++alike[one];
  // Class by class, j of a class are dealt into the k places.
  std::vector<double> orders(longest + 1);
  orders[0] = 1;
  for (const auto& [name, count] : alike)
    for (std::uint32_t k = longest; k > 0; --k)
      for (std::uint32_t j = 1; j <= std::min(count, k); ++j)
        orders[k] += orders[k - j] * binomial(k, j);
  return orders;
}

void each_order(const DeviceClasses& classes,
                std::uint32_t length,
                const std::function<void(const std::vector<std::uint32_t>&)>& visit) {
  std::vector<std::uint32_t> order;
  std::vector<bool> taken(classes.size());
  const std::function<void()> extend = [&] {
    if (order.size() == length) return visit(order);
    std::set<std::uint32_t> tried;
    for (std::uint32_t d = 0; d < classes.size(); ++d) {
      if (taken[d] || !tried.insert(classes[d]).second) continue;
      taken[d] = true;
      order.push_back(d);
      extend();
      order.pop_back();
      taken[d] = false;
    }
  };
  extend();
}

void each_cut(std::uint32_t layers,
              std::uint32_t stages,
              const std::function<void(const std::vector<std::uint32_t>&)>& visit) {
  std::vector<std::uint32_t> cuts{0};
  const std::function<void()> extend = [&] {
    const auto made = static_cast<std::uint32_t>(cuts.size()) - 1;
    if (made + 1 == stages) {
      cuts.push_back(layers);
      visit(cuts);
      cuts.pop_back();
      return;
    }
    const std::uint32_t left = stages - made - 1;
    for (std::uint32_t cut = cuts.back() + 1; cut + left <= layers; ++cut) {
      cuts.push_back(cut);
      extend();
      cuts.pop_back();
    }
  };
  extend();
}

}  // namespace troupe
