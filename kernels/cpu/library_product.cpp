// bf16 products by oneDNN, where the processor has dot products that are worth it.
#include "kernels/cpu/product.h"

#include <fmt/core.h>

#include <oneapi/dnnl/dnnl_debug.h>
#include <array>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>
#include <vector>

#include "kernels/cpu/softmax.h"
#include "kernels/element.h"

namespace troupe::kernels::cpu {
namespace {

using Dims = dnnl::memory::dims;
using Desc = dnnl::memory::desc;

dnnl::memory::data_type library_type(DType type) {
  return type == DType::bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

Desc matrix(std::uint64_t rows, std::uint64_t columns, std::uint64_t ld, bool transposed, DType t) {
  const auto stride = static_cast<dnnl::memory::dim>(ld);
  const Dims dims{static_cast<dnnl::memory::dim>(rows), static_cast<dnnl::memory::dim>(columns)};
  return {dims, library_type(t), transposed ? Dims{1, stride} : Dims{stride, 1}};
}

dnnl::matmul::primitive_desc describe(dnnl::engine& engine, const Product& p) {
  const Desc a = matrix(p.m, p.k, p.lda, p.a_transposed, p.in);
  const Desc b = matrix(p.k, p.n, p.ldb, p.b_transposed, p.in);
  const Desc c = matrix(p.m, p.n, p.ldc, false, p.out);
  const Desc bias = matrix(1, p.n, p.n, false, DType::f32);
  dnnl::primitive_attr attributes;
  if (p.accumulate) {
    dnnl::post_ops ops;
    ops.append_sum(1.0f);
    attributes.set_post_ops(ops);
  }
#if DNNL_VERSION_MAJOR >= 3
  if (p.bias) return {engine, a, b, bias, c, attributes};
  return {engine, a, b, c, attributes};
#else
  if (p.bias) return {dnnl::matmul::desc(a, b, bias, c), attributes, engine};
  return {dnnl::matmul::desc(a, b, c), attributes, engine};
#endif
}

struct ProductHash {
  std::size_t operator()(const Product& p) const {
    std::uint64_t h = 0x9E3779B97F4A7C15u;
    const auto mix = [&h](std::uint64_t v) { h = (h ^ v) * 0xFF51AFD7ED558CCDu, h ^= h >> 29; };
    mix(p.m), mix(p.n), mix(p.k), mix(p.lda), mix(p.ldb), mix(p.ldc);
    mix((p.a_transposed ? 1u : 0u) | (p.b_transposed ? 2u : 0u) | (p.accumulate ? 4u : 0u) |
        (p.bias ? 8u : 0u) | (p.in == DType::bf16 ? 16u : 0u) | (p.out == DType::bf16 ? 32u : 0u));
    return h;
  }
};

/// A prepared product and the operands that it runs on.
struct Prepared {
  dnnl::matmul primitive;
  dnnl::memory a, b, c, bias;
  std::array<dnnl_exec_arg_t, 4> arguments{};  ///< the first argument_count of them
  int argument_count = 3;
};

/// What one thread keeps.
struct Library {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::unordered_map<Product, Prepared, ProductHash> prepared;

  Prepared& find(const Product& p) {
    if (const auto it = prepared.find(p); it != prepared.end()) return it->second;
    const auto desc = describe(engine, p);
    Prepared made;
    made.primitive = dnnl::matmul(desc);
    made.a = dnnl::memory(desc.src_desc(), engine, nullptr);
    made.b = dnnl::memory(desc.weights_desc(), engine, nullptr);
    made.c = dnnl::memory(desc.dst_desc(), engine, nullptr);
    made.arguments[0] = {DNNL_ARG_SRC, made.a.get()};
    made.arguments[1] = {DNNL_ARG_WEIGHTS, made.b.get()};
    made.arguments[2] = {DNNL_ARG_DST, made.c.get()};
    if (p.bias) {
      made.bias = dnnl::memory(desc.bias_desc(), engine, nullptr);
      made.arguments[3] = {DNNL_ARG_BIAS, made.bias.get()};
      made.argument_count = 4;
    }
    return prepared.emplace(p, std::move(made)).first->second;
  }
};

Library& library() {
  thread_local Library mine;
  return mine;
}

[[noreturn]] void library_failed(const Product& p, const char* what) {
  const std::string text =
      fmt::format("matrix product m={} n={} k={}: the library says: {}", p.m, p.n, p.k, what);
  detail::expects_failed(text.c_str(), __FILE__, __LINE__);
}

}  // namespace

void multiply_by_library(
    const Product& p, const void* a, const void* b, void* c, const float* bias) {
  try {
    Library& mine = library();
    Product key = p;  // what is prepared serves any caller
    key.rows_done = nullptr;
    key.context = nullptr;
    Prepared& product = mine.find(key);
    product.a.set_data_handle(const_cast<void*>(a));
    product.b.set_data_handle(const_cast<void*>(b));
    product.c.set_data_handle(c);
    if (p.bias) product.bias.set_data_handle(const_cast<float*>(bias));
    // The C interface: the C++ one makes a vector of arguments on each call.
    const dnnl_status_t status =
        dnnl_primitive_execute(product.primitive.get(), mine.stream.get(), product.argument_count,
                               product.arguments.data());
    if (status != dnnl_success) library_failed(p, dnnl_status2str(status));
  } catch (const dnnl::error& e) {
    library_failed(p, e.what());
  }
}

bool has_bf16_products() {
  static const bool has = [] {
#if defined(__x86_64__)
    if (!__builtin_cpu_is("amd") &&
        dnnl::get_effective_cpu_isa() < dnnl::cpu_isa::avx512_core_amx) {
      return false;
    }
#endif
    Product p;
    p.m = p.n = p.k = p.lda = p.ldb = p.ldc = 16;
    p.in = DType::bf16;
    try {
      dnnl::engine engine(dnnl::engine::kind::cpu, 0);
      (void)describe(engine, p);
      return true;
    } catch (const dnnl::error&) {
      return false;
    }
  }();
  return has;
}

}  // namespace troupe::kernels::cpu
