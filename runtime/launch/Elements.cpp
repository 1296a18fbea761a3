#include "runtime/launch/Elements.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace ktune::runtime {

namespace {

using op::DType;

// A float of 16 bits or less.
struct SmallFloat {
  int exponentBits, mantissaBits;
  bool hasInfinity;  // f8e4m3 has none: its all-ones exponent is a number unless the mantissa is all ones, too.
};
constexpr SmallFloat kHalf{5, 10, true};
constexpr SmallFloat kE4M3{4, 3, false};
constexpr SmallFloat kE5M2{5, 2, true};

double decode(const SmallFloat& f, uint32_t bits) {
  const int bias = (1 << (f.exponentBits - 1)) - 1;
  const uint32_t mantissa = bits & ((1u << f.mantissaBits) - 1);
  const uint32_t exponent = (bits >> f.mantissaBits) & ((1u << f.exponentBits) - 1);
  const uint32_t top = (1u << f.exponentBits) - 1;
  const bool negative = (bits >> (f.exponentBits + f.mantissaBits)) & 1u;
  double value;
  if (exponent == top && f.hasInfinity)
    value = mantissa == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  else if (exponent == top && mantissa == (1u << f.mantissaBits) - 1)
    value = std::numeric_limits<double>::quiet_NaN();
  else if (exponent == 0)
    value = std::ldexp(mantissa, 1 - bias - f.mantissaBits);
  else
    value = std::ldexp(mantissa | (1u << f.mantissaBits), static_cast<int>(exponent) - bias - f.mantissaBits);
  return negative ? -value : value;
}

// VALUE is a value of the format (op::roundTo made it one).
uint32_t encode(const SmallFloat& f, double value) {
  const int bias = (1 << (f.exponentBits - 1)) - 1;
  const uint32_t top = (1u << f.exponentBits) - 1;
  const uint32_t sign = std::signbit(value) ? 1u << (f.exponentBits + f.mantissaBits) : 0;
  if (std::isnan(value)) return sign | (top << f.mantissaBits) | ((1u << f.mantissaBits) - 1);
  if (std::isinf(value)) return sign | (top << f.mantissaBits) | (f.hasInfinity ? 0 : (1u << f.mantissaBits) - 1);
  value = std::fabs(value);
  if (value == 0) return sign;
  int exponent = std::ilogb(value);
  if (exponent < 1 - bias)  // Subnormal.
    return sign | static_cast<uint32_t>(std::ldexp(value, bias - 1 + f.mantissaBits));
  const auto mantissa = static_cast<uint32_t>(std::ldexp(value, f.mantissaBits - exponent)) - (1u << f.mantissaBits);
  return sign | (static_cast<uint32_t>(exponent + bias) << f.mantissaBits) | mantissa;
}

template <typename T>
T saturate(double v) {
  if (std::isnan(v)) return 0;
  v = std::nearbyint(v);
  if (v <= static_cast<double>(std::numeric_limits<T>::min())) return std::numeric_limits<T>::min();
  if (v >= static_cast<double>(std::numeric_limits<T>::max())) return std::numeric_limits<T>::max();
  return static_cast<T>(v);
}

template <typename T, typename F>
void load(const void* base, int64_t stride, int64_t count, double* out, F convert) {
  const char* p = static_cast<const char*>(base);
  for (int64_t i = 0; i < count; ++i) {
    T v;
    std::memcpy(&v, p + i * stride * static_cast<int64_t>(sizeof(T)), sizeof(T));
    out[i] = convert(v);
  }
}

template <typename T, typename F>
void store(const double* values, int64_t count, void* base, int64_t stride, F convert) {
  char* p = static_cast<char*>(base);
  for (int64_t i = 0; i < count; ++i) {
    const T v = convert(values[i]);
    std::memcpy(p + i * stride * static_cast<int64_t>(sizeof(T)), &v, sizeof(T));
  }
}

}  // namespace

void loadElements(DType type, const void* base, int64_t stride, int64_t count, double* out) {
  const auto asIs = [](auto v) { return static_cast<double>(v); };
  switch (type) {
    case DType::kF64:
      return load<double>(base, stride, count, out, asIs);
    case DType::kF32:
      return load<float>(base, stride, count, out, asIs);
    case DType::kF16:
      return load<uint16_t>(base, stride, count, out, [](uint16_t b) { return decode(kHalf, b); });
    case DType::kBF16:
      return load<uint16_t>(base, stride, count, out, [](uint16_t b) {
        return static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(b) << 16));
      });
    case DType::kI8:
      return load<int8_t>(base, stride, count, out, asIs);
    case DType::kI32:
      return load<int32_t>(base, stride, count, out, asIs);
    case DType::kI64:
      return load<int64_t>(base, stride, count, out, asIs);
    case DType::kBool:
      return load<uint8_t>(base, stride, count, out, asIs);
    case DType::kF8E4M3:
      return load<uint8_t>(base, stride, count, out, [](uint8_t b) { return decode(kE4M3, b); });
    case DType::kF8E5M2:
      return load<uint8_t>(base, stride, count, out, [](uint8_t b) { return decode(kE5M2, b); });
  }
}

void storeElements(DType type, const double* values, int64_t count, void* base, int64_t stride) {
  switch (type) {
    case DType::kF64:
      return store<double>(values, count, base, stride, [](double v) { return v; });
    case DType::kF32:
      return store<float>(values, count, base, stride, [](double v) { return static_cast<float>(v); });
    case DType::kF16:
      return store<uint16_t>(values, count, base, stride, [](double v) {
        return static_cast<uint16_t>(encode(kHalf, op::roundTo(DType::kF16, v)));
      });
    case DType::kBF16:
      return store<uint16_t>(values, count, base, stride, [](double v) {
        const auto f = static_cast<float>(op::roundTo(DType::kBF16, v));
        return static_cast<uint16_t>(std::bit_cast<uint32_t>(f) >> 16);
      });
    case DType::kI8:
      return store<int8_t>(values, count, base, stride, [](double v) { return saturate<int8_t>(v); });
    case DType::kI32:
      return store<int32_t>(values, count, base, stride, [](double v) { return saturate<int32_t>(v); });
    case DType::kI64:
      return store<int64_t>(values, count, base, stride, [](double v) { return saturate<int64_t>(v); });
    case DType::kBool:
      return store<uint8_t>(values, count, base, stride, [](double v) { return static_cast<uint8_t>(v != 0); });
    case DType::kF8E4M3:
      return store<uint8_t>(values, count, base, stride, [](double v) {
        return static_cast<uint8_t>(encode(kE4M3, op::roundTo(DType::kF8E4M3, v)));
      });
    case DType::kF8E5M2:
      return store<uint8_t>(values, count, base, stride, [](double v) {
        return static_cast<uint8_t>(encode(kE5M2, op::roundTo(DType::kF8E5M2, v)));
      });
  }
}

TensorView TensorView::dense(DType dtype, void* data, std::vector<int64_t> extents) {
  TensorView view{dtype, data, std::move(extents), {}};
  view.strides.resize(view.extents.size());
  int64_t stride = 1;
  for (size_t d = view.extents.size(); d-- > 0;) {
    view.strides[d] = stride;
    stride *= view.extents[d];
  }
  return view;
}

int64_t TensorView::columns() const {
  return extents.empty() ? 1 : extents.back();
}

int64_t TensorView::rows() const {
  int64_t n = 1;
  for (size_t d = 0; d + 1 < extents.size(); ++d) n *= extents[d];
  return n;
}

int64_t TensorView::rowOffset(int64_t row) const {
  int64_t offset = 0;
  for (size_t d = extents.size(); d-- > 1;) {
    const int64_t extent = extents[d - 1];
    offset += row % extent * strides[d - 1];
    row /= extent;
  }
  return offset;
}

int64_t TensorView::spanBytes() const {
  int64_t last = 0;
  for (size_t d = 0; d < extents.size(); ++d) last += (extents[d] - 1) * strides[d];
  return (last + 1) * op::dtypeBytes(dtype);
}

std::vector<int64_t> extentsOf(const op::Shape& shape, const std::vector<int64_t>& symbolValues) {
  std::vector<int64_t> extents;
  extents.reserve(shape.size());
  for (const op::Dim& dim : shape) extents.push_back(dim.extent(symbolValues));
  return extents;
}

std::vector<TensorView> tensorViews(const op::Graph& graph, const std::vector<op::ValueType>& types,
                                    const std::vector<int64_t>& symbolValues) {
  std::vector<TensorView> views;
  views.reserve(graph.inputs.size() + graph.outputs.size());
  for (const op::Input& input : graph.inputs)
    views.push_back(
        {input.type.dtype, nullptr, extentsOf(input.type.shape, symbolValues), op::stridesOf(input, symbolValues)});
  for (const op::Output& output : graph.outputs) {
    const op::ValueType& type = types[static_cast<size_t>(output.value)];
    TensorView view = TensorView::dense(type.dtype, nullptr, extentsOf(type.shape, symbolValues));
    if (output.aliasInput >= 0) view.strides = views[static_cast<size_t>(output.aliasInput)].strides;
    views.push_back(std::move(view));
  }
  return views;
}

}  // namespace ktune::runtime
