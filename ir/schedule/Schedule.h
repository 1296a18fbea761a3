// One kernel's schedule: a generator and a flat record of small integers, generated from Parameters.def.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/Bytes.h"
#include "base/Status.h"

namespace ktune::schedule {

/// The four ways to build a kernel (DESIGN: contraction, attention, row, map). The numbers are stored: append only.
enum class Generator : uint8_t { kMap = 0, kRow = 1, kContraction = 2 };
inline constexpr int kGeneratorCount = 3;
[[nodiscard]] std::string_view generatorName(Generator generator);

namespace Generators {
inline constexpr uint32_t kMap = 1u << 0, kRow = 1u << 1, kContraction = 1u << 2;
}

/// Indices of the parameters, in table order.
enum class Parameter : uint8_t {
#define KTUNE_PARAMETER(field, generators, otherwise, values, meaning) field,
#include "ir/schedule/Parameters.def"
#undef KTUNE_PARAMETER
  kCount
};
inline constexpr size_t kParameterCount = static_cast<size_t>(Parameter::kCount);

/// One row of the table.
struct ParameterDef {
  Parameter id;
  std::string_view name;
  uint32_t generators;
  int32_t otherwise;
  std::span<const int32_t> values;  ///< Ascending.
  std::string_view meaning;
  [[nodiscard]] bool activeFor(Generator g) const { return (generators >> static_cast<unsigned>(g)) & 1u; }
};
[[nodiscard]] std::span<const ParameterDef> parameterTable();

struct KernelSchedule {
  Generator generator = Generator::kMap;
#define KTUNE_PARAMETER(field, generators, otherwise, values, meaning) int32_t field = otherwise;
#include "ir/schedule/Parameters.def"
#undef KTUNE_PARAMETER

  [[nodiscard]] int32_t get(Parameter p) const;
  void set(Parameter p, int32_t value);
  /// Equal generator and equal active parameters.
  bool operator==(const KernelSchedule& o) const;

  /// "#ktune.schedule<generator = row, vector = 16, ...>": active parameters in table order.
  [[nodiscard]] std::string text() const;
  /// The reverse of text(); parameters left out take their default.
  /// Errors: kInvalidArgument for an unknown generator, an unknown, repeated or inactive parameter, a bad number.
  /// Values outside a parameter's list parse (check() refuses them).
  [[nodiscard]] static Result<KernelSchedule> parse(std::string_view text);

  /// u8 generator, u32 count of (u32 length name, i32 value) pairs: survives the table growing.
  void encode(ByteWriter& writer) const;
  [[nodiscard]] static KernelSchedule decode(ByteReader& reader);
};

}  // namespace ktune::schedule
