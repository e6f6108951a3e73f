#include <cmath>

#include "kernels/attention.h"
#include "kernels/cpu/fast.h"
#include "kernels/element.h"

namespace troupe::kernels {
namespace {

template <class T>
void naive(const Rope& args) {
  const std::uint32_t half = args.head_width / 2;
  for (std::uint64_t row = 0; row < args.x.rows(); ++row) {
    const auto position = static_cast<double>(args.first + row % args.length);
    for (std::uint64_t head = 0; head < args.x.columns(); head += args.head_width) {
      T* x = row_of<T>(args.x, row) + head;
      for (std::uint32_t i = 0; i < half; ++i) {
        const double angle =
            position * std::pow(args.theta, -2.0 * i / static_cast<double>(args.head_width));
        const double c = std::cos(angle);
        const double s = args.inverse ? -std::sin(angle) : std::sin(angle);
        const auto a = static_cast<double>(to_float(x[i]));
        const auto b = static_cast<double>(to_float(x[i + half]));
        store(x[i], static_cast<float>(a * c - b * s));
        store(x[i + half], static_cast<float>(b * c + a * s));
      }
    }
  }
}

}  // namespace

void rope(Stream& stream, const Rope& args) {
  EXPECTS(is_float(args.x) && args.length > 0 && args.x.rows() % args.length == 0);
  EXPECTS(args.head_width > 0 && args.head_width % 2 == 0);
  EXPECTS(args.x.columns() % args.head_width == 0);
  const OpCost cost{0, 3 * static_cast<double>(args.x.elements()), 2 * args.x.bytes()};
  if (counted(stream, cost)) return;
  if (stream.body() == Stream::Body::fast) return cpu::rope(stream, args);
  with_float_type(args.x.dtype, [&](auto type) { naive<decltype(type)>(args); });
}

}  // namespace troupe::kernels
