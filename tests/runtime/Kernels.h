// Hand-written C kernels, compiled by the host's compiler while the tests run.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "base/File.h"
#include "cache/format/Plan.h"
#include "ir/schedule/Problem.h"

namespace ktune::runtime::testing {

/// "g++ ..." or empty when this machine has no compiler.
inline std::string hostCompiler() {
  for (const char* name : {"gcc", "g++", "clang", "cc"}) {
    if (std::system((std::string("command -v ") + name + " >/dev/null 2>&1").c_str()) == 0) return name;
  }
  return {};
}

#define KTUNE_NEEDS_HOST_COMPILER() \
  if (::ktune::runtime::testing::hostCompiler().empty()) GTEST_SKIP() << "no C compiler on this machine"

/// A shared object made of SOURCE that links to nothing. FLAGS are added.
inline std::string compileC(const std::string& source, const std::string& flags = "") {
  const std::string folder = *makeTempDirectory("/tmp", "ktune-test-kernel");
  EXPECT_TRUE(writeFileAtomically(folder + "/k.c", source).isOk());
  const std::string command = hostCompiler() + " -x c -O2 -shared -nostdlib -fPIC -fno-builtin -Wl,-z,now " + flags +
                              " -o " + folder + "/k.so " + folder + "/k.c 2>" + folder + "/errors";
  const int code = std::system(command.c_str());
  EXPECT_EQ(code, 0) << *readFile(folder + "/errors");
  std::string bytes = code == 0 ? *readFile(folder + "/k.so") : std::string();
  (void)removeTree(folder);
  return bytes;
}

/// What every kernel source starts with.
inline constexpr const char* kPrologue =
    "typedef long long i64; typedef float f32;\n"
    "#define KERNEL __attribute__((visibility(\"default\"))) void k(void* const* args, i64 first, i64 last)\n";

/// A plan of one launch with one tile per unit of the symbol (one tile when there is none); its arguments are the
/// tensors and then the symbols.
inline cache::Plan planOf(const schedule::Problem& problem, const std::string& sharedObject) {
  cache::Plan plan;
  cache::Artefact artefact;
  artefact.bytes = sharedObject;
  artefact.digest = digestOf(sharedObject);
  plan.artefacts.push_back(artefact);
  plan.tensorCount = static_cast<int32_t>(problem.source.inputs.size() + problem.source.outputs.size());
  plan.symbolCount = static_cast<int32_t>(problem.source.symbols.size());
  cache::Launch launch;
  launch.symbol = "k";
  for (int32_t i = 0; i < plan.tensorCount; ++i) launch.parameters.emplace_back(cache::PointerParameter{i});
  for (int32_t i = 0; i < plan.symbolCount; ++i) launch.parameters.emplace_back(cache::SymbolParameter{i});
  if (plan.symbolCount > 0) launch.grid[0] = {1, 0, 1};
  plan.launches.push_back(launch);
  return plan;
}

inline cache::Plan planOfC(const schedule::Problem& problem, const std::string& body) {
  return planOf(problem, compileC(std::string(kPrologue) + body));
}

}  // namespace ktune::runtime::testing
