#include "ir/schedule/Schedule.h"

#include "ir/schedule/Scanner.h"

namespace ktune::schedule {

namespace {

using namespace Generators;
using namespace Families;

#define KTUNE_UNPACK(...) __VA_ARGS__
#define KTUNE_PARAMETER(field, generators, families, otherwise, values, meaning) \
  constexpr int32_t kValuesOf_##field[] = {KTUNE_UNPACK values};
#include "ir/schedule/Parameters.def"
#undef KTUNE_PARAMETER

constexpr ParameterDef kTable[] = {
#define KTUNE_PARAMETER(field, generators, families, otherwise, values, meaning) \
  {Parameter::field, #field, (generators), (families), (otherwise), kValuesOf_##field, meaning},
#include "ir/schedule/Parameters.def"
#undef KTUNE_PARAMETER
};
static_assert(std::size(kTable) == kParameterCount);

constexpr bool tableIsSound() {
  for (const ParameterDef& def : kTable) {
    bool hasDefault = false;
    for (size_t i = 0; i < def.values.size(); ++i) {
      if (i > 0 && def.values[i] <= def.values[i - 1]) return false;
      hasDefault = hasDefault || def.values[i] == def.otherwise;
    }
    if (!hasDefault || def.generators == 0 || def.generators >= 1u << kGeneratorCount) return false;
    if (def.families == 0 || def.families >= 1u << kDeviceFamilyCount) return false;
  }
  return true;
}
static_assert(tableIsSound(),
              "Parameters.def: values must ascend and hold the default, generators and families must exist");

constexpr std::string_view kGeneratorNames[kGeneratorCount] = {"map", "row", "contraction"};

const ParameterDef* findParameter(std::string_view name) {
  for (const ParameterDef& def : kTable) {
    if (def.name == name) return &def;
  }
  return nullptr;
}

}  // namespace

std::string_view generatorName(Generator generator) {
  auto i = static_cast<size_t>(generator);
  return i < std::size(kGeneratorNames) ? kGeneratorNames[i] : "unknown";
}

std::span<const ParameterDef> parameterTable() {
  return kTable;
}

int32_t KernelSchedule::get(Parameter p) const {
  switch (p) {
#define KTUNE_PARAMETER(field, generators, families, otherwise, values, meaning) \
  case Parameter::field:                                                         \
    return field;
#include "ir/schedule/Parameters.def"
#undef KTUNE_PARAMETER
    case Parameter::kCount:
      break;
  }
  return 0;
}

void KernelSchedule::set(Parameter p, int32_t value) {
  switch (p) {
#define KTUNE_PARAMETER(field, generators, families, otherwise, values, meaning) \
  case Parameter::field:                                                         \
    field = value;                                                               \
    break;
#include "ir/schedule/Parameters.def"
#undef KTUNE_PARAMETER
    case Parameter::kCount:
      break;
  }
}

bool KernelSchedule::operator==(const KernelSchedule& o) const {
  if (generator != o.generator || family != o.family) return false;
  for (const ParameterDef& def : kTable) {
    if (def.activeFor(*this) && get(def.id) != o.get(def.id)) return false;
  }
  return true;
}

std::string KernelSchedule::text() const {
  std::string out = "#ktune.schedule<generator = ";
  out += generatorName(generator);
  if (family == DeviceFamily::kCuda) out += ", device = cuda";
  for (const ParameterDef& def : kTable) {
    if (!def.activeFor(*this)) continue;
    out += ", ";
    out += def.name;
    out += " = ";
    out += std::to_string(get(def.id));
  }
  return out + ">";
}

Result<KernelSchedule> KernelSchedule::parse(std::string_view text) {
  Scanner scan(text);
  KTUNE_TRY(scan.expect("#ktune.schedule"));
  KTUNE_TRY(scan.expect("<"));
  KTUNE_ASSIGN(std::string_view first, scan.identifier());
  if (first != "generator") return scan.error("expected 'generator' first");
  KTUNE_TRY(scan.expect("="));
  KTUNE_ASSIGN(std::string_view name, scan.identifier());
  KernelSchedule schedule;
  bool known = false;
  for (int g = 0; g < kGeneratorCount; ++g) {
    if (kGeneratorNames[g] != name) continue;
    schedule.generator = static_cast<Generator>(g);
    known = true;
  }
  if (!known) return scan.error("unknown generator '" + std::string(name) + "': map, row or contraction");
  std::array<bool, kParameterCount> seen{};
  while (scan.accept(",")) {
    KTUNE_ASSIGN(std::string_view field, scan.identifier());
    if (field == "device" && seen == std::array<bool, kParameterCount>{} && schedule.family == DeviceFamily::kHost) {
      KTUNE_TRY(scan.expect("="));
      KTUNE_ASSIGN(std::string_view device, scan.identifier());
      if (device != "cuda")
        return scan.error("unknown device '" + std::string(device) + "': cuda, or none for the host");
      schedule.family = DeviceFamily::kCuda;
      continue;
    }
    const ParameterDef* def = findParameter(field);
    if (!def) return scan.error("unknown parameter '" + std::string(field) + "'");
    if (!def->activeFor(schedule)) {
      return scan.error("parameter '" + std::string(field) + "' has no meaning for generator " + std::string(name) +
                        (schedule.family == DeviceFamily::kCuda ? " on cuda" : ""));
    }
    bool& repeated = seen[static_cast<size_t>(def->id)];
    if (repeated) return scan.error("parameter '" + std::string(field) + "' occurs twice");
    repeated = true;
    KTUNE_TRY(scan.expect("="));
    KTUNE_ASSIGN(int32_t value, scan.integer());
    schedule.set(def->id, value);
  }
  KTUNE_TRY(scan.expect(">"));
  KTUNE_TRY(scan.atEnd());
  return schedule;
}

void KernelSchedule::encode(ByteWriter& writer) const {
  writer.u8(static_cast<uint8_t>(static_cast<uint8_t>(generator) | static_cast<uint8_t>(family) << 4));
  uint32_t count = 0;
  for (const ParameterDef& def : kTable) count += def.activeFor(*this) ? 1 : 0;
  writer.u32(count);
  for (const ParameterDef& def : kTable) {
    if (!def.activeFor(*this)) continue;
    writer.text(def.name);
    writer.i32(get(def.id));
  }
}

KernelSchedule KernelSchedule::decode(ByteReader& reader) {
  KernelSchedule schedule;
  const uint8_t kind = reader.u8();
  if ((kind & 15) >= kGeneratorCount || kind >> 4 >= kDeviceFamilyCount) {
    reader.fail("unknown generator or device");
    return schedule;
  }
  schedule.generator = static_cast<Generator>(kind & 15);
  schedule.family = static_cast<DeviceFamily>(kind >> 4);
  std::array<bool, kParameterCount> seen{};
  uint32_t count = reader.count(8);
  for (uint32_t i = 0; i < count && reader.good(); ++i) {
    std::string name = reader.text();
    int32_t value = reader.i32();
    // A newer build's parameter is skipped: the genome is a seed for the search, what runs is the stored plan.
    const ParameterDef* def = findParameter(name);
    if (!def || !def->activeFor(schedule)) continue;
    if (seen[static_cast<size_t>(def->id)]) reader.fail("schedule parameter occurs twice");
    seen[static_cast<size_t>(def->id)] = true;
    schedule.set(def->id, value);
  }
  return schedule;
}

}  // namespace ktune::schedule
