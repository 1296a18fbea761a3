#include "runtime/nvrtc/KernelCompiler.h"

#include <charconv>
#include <string_view>

namespace ktune::nvrtc {

namespace {

/// The number before WORDS in LINE ("0 bytes spill stores"); 0 when they do not occur.
int numberBefore(std::string_view line, std::string_view words) {
  const size_t at = line.find(words);
  if (at == std::string_view::npos || at == 0) return 0;
  size_t begin = at;
  while (begin > 0 && line[begin - 1] == ' ') --begin;
  const size_t end = begin;
  while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9') --begin;
  int number = 0;
  std::from_chars(line.data() + begin, line.data() + end, number);
  return number;
}

/// "C7510" and its like: the assembler's warnings about instructions that it had to serialise or drop.
bool warnsOfSlowCode(std::string_view line) {
  for (size_t at = line.find("C75"); at != std::string_view::npos; at = line.find("C75", at + 1)) {
    if (at + 5 <= line.size() && isdigit(static_cast<unsigned char>(line[at + 3])) != 0 &&
        isdigit(static_cast<unsigned char>(line[at + 4])) != 0)
      return true;
  }
  return false;
}

}  // namespace

Status judgeLog(const std::string& log) {
  for (size_t begin = 0; begin < log.size();) {
    const size_t end = std::min(log.find('\n', begin), log.size());
    const std::string line = log.substr(begin, end - begin);
    begin = end + 1;
    if (warnsOfSlowCode(line)) return unsupported("the assembler warns: " + line);
    const int spilled = std::max(numberBefore(line, "bytes spill stores"), numberBefore(line, "bytes spill loads"));
    if (spilled > kMostSpillBytes)
      return unsupported("spills " + std::to_string(spilled) + " bytes of registers; the limit is " +
                         std::to_string(kMostSpillBytes));
  }
  return Status::ok();
}

Result<std::string> compileKernels(const Nvrtc& nvrtc, const KernelProgram& program) {
  Program request;
  request.name = program.name + ".cu";
  request.source = program.source;
  request.headers = program.headers;
  request.options = {"--std=c++17", "--gpu-architecture=" + program.architecture, "--ptxas-options=-v",
                     "--device-as-default-execution-space"};
  KTUNE_ASSIGN(Compiled compiled, nvrtc.compile(request));
  KTUNE_TRY(judgeLog(compiled.log));
  return std::move(compiled.cubin);
}

}  // namespace ktune::nvrtc
