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

/// Families of devices whose schedules have parameters of their own. The numbers are stored: append only.
enum class DeviceFamily : uint8_t { kHost = 0, kCuda = 1 };
inline constexpr int kDeviceFamilyCount = 2;
namespace Families {
inline constexpr uint32_t kHost = 1u << 0, kCuda = 1u << 1;
}

/// Indices of the parameters, in table order.
enum class Parameter : uint8_t {
#define KTUNE_PARAMETER(field, generators, families, otherwise, values, meaning) field,
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
  uint32_t families;
  int32_t otherwise;
  std::span<const int32_t> values;  ///< Ascending.
  std::string_view meaning;
  [[nodiscard]] bool activeFor(Generator g, DeviceFamily f) const {
    return ((generators >> static_cast<unsigned>(g)) & (families >> static_cast<unsigned>(f)) & 1u) != 0;
  }
  [[nodiscard]] bool activeFor(const struct KernelSchedule& schedule) const;
};
[[nodiscard]] std::span<const ParameterDef> parameterTable();

struct KernelSchedule {
  Generator generator = Generator::kMap;
  DeviceFamily family = DeviceFamily::kHost;
#define KTUNE_PARAMETER(field, generators, families, otherwise, values, meaning) int32_t field = otherwise;
#include "ir/schedule/Parameters.def"
#undef KTUNE_PARAMETER

  [[nodiscard]] int32_t get(Parameter p) const;
  void set(Parameter p, int32_t value);
  /// Equal generator, family and active parameters.
  bool operator==(const KernelSchedule& o) const;

  /// "#ktune.schedule<generator = row, vector = 16, ...>", "#ktune.schedule<generator = row, device = cuda, ...>":
  /// active parameters in table order.
  [[nodiscard]] std::string text() const;
  /// The reverse of text(); parameters left out take their default.
  /// Errors: kInvalidArgument for an unknown generator or device, an unknown, repeated or inactive parameter, a bad
  /// number. Values outside a parameter's list parse (check() refuses them).
  [[nodiscard]] static Result<KernelSchedule> parse(std::string_view text);

  /// u8 generator + 16 * family, u32 count of (u32 length name, i32 value) pairs: survives the table growing.
  void encode(ByteWriter& writer) const;
  [[nodiscard]] static KernelSchedule decode(ByteReader& reader);
};

inline bool ParameterDef::activeFor(const KernelSchedule& schedule) const {
  return activeFor(schedule.generator, schedule.family);
}

}  // namespace ktune::schedule
