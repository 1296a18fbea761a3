// How long one candidate's compile takes on one core: from the genome to the cubin, for random legal genomes. Needs no
// GPU. One JSON object a line; docs/performance.md says how to run it.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "base/Deadline.h"
#include "ir/emit/cuda/CudaEmitter.h"
#include "ir/op/Builder.h"
#include "ir/schedule/Vary.h"
#include "runtime/nvrtc/KernelCompiler.h"

namespace ktune {
namespace {

struct Times {
  std::vector<double> emit, compile;
  std::string slowest;
  double slowestSeconds = 0;
  int refused = 0;
};

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))];
}

int run(int count, const std::string& architecture) {
  const Result<const nvrtc::Nvrtc*> nvrtc = nvrtc::Nvrtc::load();
  if (!nvrtc) {
    std::fprintf(stderr, "ktune-bench-cuda-compile: %s\n", nvrtc.error().message().c_str());
    return 1;
  }
  const schedule::Target target = schedule::cudaTarget(architecture);
  const op::DType type = op::DType::kBF16;
  struct Case {
    const char* op;
    int64_t tokens;
  };
  for (const Case& c :
       {Case{"add", 64}, Case{"rms_norm", 64}, Case{"linear", 1}, Case{"linear", 64}, Case{"linear", 2048}}) {
    const op::Symbol m{"M", c.tokens, c.tokens, {c.tokens}};
    const std::string name = c.op;
    const Result<op::Graph> graph = name == "add"        ? op::makeAdd(m, 4096, type)
                                    : name == "rms_norm" ? op::makeRmsNorm(m, 1, 4096, 1e-6, type)
                                                         : op::makeLinear(m, 4096, 4096, type);
    const Result<schedule::Problem> problem = schedule::Problem::create(*graph, op::bucketsOf(*graph).at(0));
    emit::CudaEmitter emitter;
    schedule::Random random(1);
    std::map<int32_t, Times> byInstruction;
    for (int i = 0; i < count; ++i) {
      const schedule::PlanGenome genome = schedule::randomGenome(*problem, target, random);
      double before = monotonicSeconds();
      const Result<emit::CudaSource> source = emitter.emit(*problem, genome, target);
      if (!source) return 1;
      const double emitted = monotonicSeconds() - before;
      before = monotonicSeconds();
      const Result<std::string> cubin =
          nvrtc::compileKernels(**nvrtc, {"bench", source->text, target.architecture, emit::deviceLibrary()});
      const double compiled = monotonicSeconds() - before;
      const schedule::KernelSchedule& kernel = genome.kernels[0];
      Times& times = byInstruction[kernel.generator == schedule::Generator::kContraction ? kernel.instruction : -1];
      times.emit.push_back(emitted);
      times.compile.push_back(compiled);
      times.refused += cubin ? 0 : 1;
      if (compiled > times.slowestSeconds) {
        times.slowestSeconds = compiled;
        times.slowest = genome.text();
      }
    }
    for (const auto& [instruction, times] : byInstruction)
      std::printf(
          "{\"op\":\"%s_bf16\",\"tokens\":%lld,\"architecture\":\"%s\",\"instruction\":%d,\"candidates\":%zu,"
          "\"refused\":%d,\"emit_ms\":%.1f,\"nvrtc_median_ms\":%.0f,\"nvrtc_p90_ms\":%.0f,\"nvrtc_max_ms\":%.0f,"
          "\"compiler\":\"%s\",\"slowest\":\"%s\"}\n",
          c.op, static_cast<long long>(c.tokens), architecture.c_str(), instruction, times.compile.size(),
          times.refused, 1e3 * quantile(times.emit, 0.5), 1e3 * quantile(times.compile, 0.5),
          1e3 * quantile(times.compile, 0.9), 1e3 * times.slowestSeconds, (*nvrtc)->version().c_str(),
          times.slowest.c_str());
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace ktune

int main(int argc, char** argv) {
  const std::string first = argc > 1 ? argv[1] : "";
  if (first == "--help" || first == "-h") {
    std::printf(
        "usage: ktune-bench-cuda-compile [COUNT [ARCHITECTURE]]\n\nTimes the compile of COUNT (60) random candidates "
        "per "
        "operator for ARCHITECTURE (sm_90a).\nExample: ktune-bench-cuda-compile 100 sm_80\n");
    return 0;
  }
  const int count = first.empty() ? 60 : std::atoi(first.c_str());
  if (count < 1) {
    std::fprintf(stderr, "ktune-bench-cuda-compile: COUNT is \"%s\"; it must be a positive number\n", first.c_str());
    return 2;
  }
  return ktune::run(count, argc > 2 ? argv[2] : "sm_90a");
}
