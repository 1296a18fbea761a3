#include "ir/schedule/Target.h"

namespace ktune::schedule {

void Target::encode(ByteWriter& writer) const {
  writer.u8(static_cast<uint8_t>(kind));
  writer.text(hardware);
  writer.text(architecture);
  writer.i32(cores);
  writer.i32(vectorBytes);
  writer.i32(vectorRegisters);
  writer.u64(l1Bytes);
  writer.u64(l2Bytes);
  writer.u64(l3Bytes);
  writer.u64(memoryBytes);
}

Target Target::decode(ByteReader& reader) {
  Target target;
  uint8_t kind = reader.u8();
  if (kind > static_cast<uint8_t>(DeviceKind::kFake)) reader.fail("unknown device kind");
  target.kind = static_cast<DeviceKind>(kind);
  target.hardware = reader.text();
  target.architecture = reader.text();
  target.cores = reader.i32();
  target.vectorBytes = reader.i32();
  target.vectorRegisters = reader.i32();
  target.l1Bytes = reader.u64();
  target.l2Bytes = reader.u64();
  target.l3Bytes = reader.u64();
  target.memoryBytes = reader.u64();
  if (!reader.good()) return {};
  if (target.cores < 1 || target.vectorBytes < 1 || target.vectorRegisters < 1) {
    reader.fail("a target needs cores and vector registers");
    return {};
  }
  return target;
}

Target cudaTarget(const std::string& architecture) {
  Target target;
  target.kind = DeviceKind::kCuda;
  target.hardware = "cuda;" + architecture;
  target.architecture = architecture;
  target.cores = 132;
  target.vectorBytes = 16;
  target.vectorRegisters = 255;
  target.l1Bytes = 232448;
  target.l2Bytes = uint64_t{60} << 20;
  target.memoryBytes = uint64_t{80} << 30;
  return target;
}

Target fakeTarget() {
  Target target;
  target.kind = DeviceKind::kFake;
  target.hardware = "fake;2 cores;64-byte vectors";
  target.architecture = "fake";
  target.cores = 2;
  target.vectorBytes = 64;
  target.vectorRegisters = 32;
  target.l1Bytes = 48 << 10;
  target.l2Bytes = 2 << 20;
  target.l3Bytes = 32 << 20;
  target.memoryBytes = uint64_t{1} << 30;
  return target;
}

}  // namespace ktune::schedule
