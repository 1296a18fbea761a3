// Preloaded into a program that uses libktune: everything that another library of the process might bring under the
// same names. Whoever calls one of these from libktune has found a hole in its isolation.
#include <cstdio>
#include <cstdlib>

#include "base/Hash.h"
#include "base/Log.h"
#include "ir/op/Canonical.h"
#include "ir/op/Graph.h"
#include "runtime/launch/Device.h"

namespace {
[[noreturn]] void caught(const char* name) {
  std::fprintf(stderr, "hostile: libktune called a foreign %s\n", name);
  std::abort();
}
}  // namespace

#define KTUNE_HOSTILE __attribute__((visibility("default"), used))

// C++ symbols of another ktune, linked statically into some extension module.
namespace ktune {
KTUNE_HOSTILE Digest digestOf(std::string_view) {
  caught("digestOf");
}
KTUNE_HOSTILE std::string Digest::hex() const {
  caught("Digest::hex");
}
KTUNE_HOSTILE void log(LogLevel, std::string_view) {
  caught("log");
}
KTUNE_HOSTILE std::string_view statusCodeName(StatusCode) {
  caught("statusCodeName");
}
namespace op {
KTUNE_HOSTILE Status verify(const Graph&) {
  caught("verify");
}
KTUNE_HOSTILE std::string label(const Graph&) {
  caught("label");
}
KTUNE_HOSTILE std::string canonicalBytes(const Graph&) {
  caught("canonicalBytes");
}
KTUNE_HOSTILE Key keyOf(const Graph&, std::string_view) {
  caught("keyOf");
}
}  // namespace op
namespace runtime {
KTUNE_HOSTILE std::vector<DeviceInfo> listDevices() {
  caught("listDevices");
}
KTUNE_HOSTILE Result<std::unique_ptr<Device>> openDevice(const std::string&, const DeviceOptions&) {
  caught("openDevice");
}
}  // namespace runtime
}  // namespace ktune

// C symbols of libraries that engines carry along.
extern "C" {
KTUNE_HOSTILE void* LLVMContextCreate() {
  caught("LLVMContextCreate");
}
KTUNE_HOSTILE void* LLVMModuleCreateWithName(const char*) {
  caught("LLVMModuleCreateWithName");
}
KTUNE_HOSTILE void LLVMInitializeX86Target() {
  caught("LLVMInitializeX86Target");
}
KTUNE_HOSTILE unsigned long long XXH3_64bits(const void*, size_t) {
  caught("XXH3_64bits");
}
KTUNE_HOSTILE int cuInit(unsigned) {
  caught("cuInit");
}
KTUNE_HOSTILE extern const int ktune_hostile_marker = 1;
}
