// ktune-bench-cpu: tuned plans of a cache against the default schedule, OpenBLAS and the machine's copy rate, all in
// one run, in shuffled rounds over cold rotating buffers. One JSON line per operator and size on standard output.
//
//   ktune-bench-cpu --cache DIR [--rounds N] [--commit ID]
//
// The cache comes from `ktune warm-cache`. A plan for the default schedule is compiled by the ktune program given with
// --program, in a compile worker, as tuning does.
#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/Deadline.h"
#include "base/File.h"
#include "base/Json.h"
#include "cache/store/Store.h"
#include "ir/op/Canonical.h"
#include "ir/op/Operator.h"
#include "ir/schedule/Vary.h"
#include "runtime/launch/Device.h"
#include "runtime/worker/TimingBuffers.h"
#include "runtime/worker/Workers.h"

namespace ktune {
namespace {

struct Options {
  std::string cache, program, commit;
  int rounds = 21;
};

/// OpenBLAS, opened at run time: cblas_sgemm and what it calls itself.
struct Blas {
  using Sgemm = void (*)(int order, int transA, int transB, int m, int n, int k, float alpha, const float* a, int lda,
                         const float* b, int ldb, float beta, float* c, int ldc);
  Sgemm sgemm = nullptr;
  std::string core = "not found";
};

Blas openBlas(int threads) {
  Blas blas;
  void* library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
  if (!library) return blas;
  blas.sgemm = reinterpret_cast<Blas::Sgemm>(dlsym(library, "cblas_sgemm"));
  if (auto core = reinterpret_cast<char* (*)()>(dlsym(library, "openblas_get_corename"))) blas.core = core();
  if (auto set = reinterpret_cast<void (*)(int)>(dlsym(library, "openblas_set_num_threads"))) set(threads);
  return blas;
}

/// One thing to time: runs once on the tensors of a set.
struct Contender {
  std::string name;
  std::function<Status(std::span<void* const>)> run;
  std::vector<double> ns;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  size_t n = values.size();
  return n == 0 ? 0 : n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/// Rounds in shuffled order; every contender sees the same sets in turn, so drift hits all alike.
Status race(std::vector<Contender>& contenders, runtime::BufferRing& ring, int rounds) {
  schedule::Random random(42);
  size_t next = 0;
  for (Contender& c : contenders) KTUNE_TRY(c.run(ring.set(next++ % ring.count())));  // Page in code and pools.
  std::vector<size_t> order(contenders.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  double once = 0;
  {
    double begin = monotonicSeconds();
    KTUNE_TRY(contenders[0].run(ring.set(next++ % ring.count())));
    once = monotonicSeconds() - begin;
  }
  int calls = std::clamp(static_cast<int>(2e-3 / std::max(once, 1e-7)), 1, 20000);
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
    for (size_t i : order) {
      double begin = monotonicSeconds();
      for (int call = 0; call < calls; ++call) KTUNE_TRY(contenders[i].run(ring.set(next++ % ring.count())));
      contenders[i].ns.push_back((monotonicSeconds() - begin) * 1e9 / calls);
    }
  }
  return Status::ok();
}

bool isContraction(const op::Graph& graph) {
  if (graph.nodes.size() != 1) return false;
  Result<op::Graph> primitives = op::expand(graph);
  return primitives && primitives->nodes.size() == 1 &&
         op::findOperator(primitives->nodes[0].op)->kind == op::OperatorKind::kContraction;
}

Status benchRecord(const cache::Record& record, const Options& options, runtime::Device& device,
                   runtime::TimingBuffers& buffers, search::Compiler& compiler, const Blas& blas) {
  KTUNE_ASSIGN(op::Graph graph, op::fromCanonicalBytes(record.canonical));
  KTUNE_ASSIGN(std::vector<op::ValueType> types, op::inferTypes(graph));
  KTUNE_ASSIGN(schedule::Problem problem, schedule::Problem::create(graph, record.bucket));
  search::CompileRequest request{0, schedule::defaultGenome(problem, device.target())};
  KTUNE_ASSIGN(std::vector<search::CompileOutcome> compiled,
               compiler.compile(problem, std::span(&request, 1), Deadline::after(60)));
  if (compiled.size() != 1 || compiled[0].rejection) return internalError("the default schedule did not compile");
  KTUNE_ASSIGN(std::unique_ptr<runtime::LoadedPlan> byDefault, device.load(compiled[0].plan));
  KTUNE_ASSIGN(std::unique_ptr<runtime::LoadedPlan> tuned, device.load(record.plan));

  for (const std::vector<int64_t>& point : op::scoringPoints(record.bucket)) {
    std::vector<runtime::TensorView> views = runtime::tensorViews(graph, types, point);
    KTUNE_ASSIGN(runtime::BufferRing ring, buffers.ring(graph, views));
    std::vector<char> workspace(std::max(tuned->workspaceBytes(point), byDefault->workspaceBytes(point)) + 64);
    auto plan = [&](runtime::LoadedPlan& loaded) {
      return [&](std::span<void* const> tensors) {
        return loaded.run(
            tensors, point,
            reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(workspace.data()) + 63) & ~uintptr_t{63}));
      };
    };
    std::vector<Contender> contenders{{"ktune", plan(*tuned), {}}, {"default", plan(*byDefault), {}}};
    bool contraction = isContraction(graph);
    if (contraction && blas.sgemm) {
      int64_t n = graph.inputs[1].type.shape[0].factor, k = graph.inputs[1].type.shape[1].factor;
      KTUNE_ASSIGN(int64_t elements, op::elementCount(graph.inputs[0].type.shape, point));
      int m = static_cast<int>(elements / k);
      contenders.push_back({"openblas " + blas.core,
                            [=, &blas](std::span<void* const> t) {
                              constexpr int kRowMajor = 101, kNoTrans = 111, kTrans = 112;
                              blas.sgemm(kRowMajor, kNoTrans, kTrans, m, static_cast<int>(n), static_cast<int>(k), 1.0f,
                                         static_cast<const float*>(t[0]), static_cast<int>(k),
                                         static_cast<const float*>(t[1]), static_cast<int>(k), 0.0f,
                                         static_cast<float*>(t[2]), static_cast<int>(n));
                              return Status::ok();
                            },
                            {}});
    }
    KTUNE_ASSIGN(double copyRate, buffers.copyBytesPerSecond(uint64_t{128} << 20));
    KTUNE_TRY(race(contenders, ring, options.rounds));
    op::Work work = op::workOf(graph, point);
    double floorUs = work.bytes / copyRate * 1e6;
    double us = median(contenders[0].ns) * 1e-3, defaultUs = median(contenders[1].ns) * 1e-3;
    bool peer = contenders.size() > 2;
    double peerUs = peer ? median(contenders[2].ns) * 1e-3 : floorUs;
    std::string shape = record.bucket.describe(graph);
    Json line = {{"op", op::label(graph)},
                 {"shape", "M=" + std::to_string(point.empty() ? 0 : point[0])},
                 {"bucket", shape},
                 {"dtype", std::string(op::dtypeName(graph.inputs[0].type.dtype))},
                 {"ktune_us", us},
                 {"default_us", defaultUs},
                 {"decision", std::string(cache::decisionName(record.decision))},
                 {"peer", peer ? contenders[2].name : "copy rate"},
                 {"peer_us", peerUs},
                 {"speedup", peerUs / us},
                 {"speedup_over_default", defaultUs / us},
                 {"floor_us", floorUs},
                 {"gflops", work.operations / us * 1e-3},
                 {"copy_gbps", copyRate * 1e-9},
                 {"commit", options.commit}};
    std::printf("%s\n", line.dump().c_str());
    std::fflush(stdout);
  }
  return Status::ok();
}

Status run(const Options& options) {
  KTUNE_ASSIGN(std::unique_ptr<cache::Store> store, cache::openRocksStore({options.cache, true, false}));
  KTUNE_ASSIGN(std::unique_ptr<runtime::Device> device, runtime::openDevice("cpu"));
  const schedule::Target& target = device->target();
  runtime::WorkerOptions workers;
  workers.program = options.program;
  workers.device = "cpu";
  workers.tempDirectory = "/tmp";
  workers.compileJobs = 1;
  KTUNE_ASSIGN(std::unique_ptr<search::Compiler> compiler, runtime::makeCompilePool(workers, target));
  runtime::TimingBuffers buffers(*device, target.l3Bytes, target.memoryBytes / 2, 1);
  Blas blas = openBlas(target.cores);
  Status status;
  KTUNE_TRY(store->forEach([&](const cache::Record& record) {
    if (record.hardware != target.hardware || record.decision == cache::Decision::kUseFallback) return true;
    status = benchRecord(record, options, *device, buffers, *compiler, blas);
    return status.isOk();
  }));
  return status;
}

}  // namespace
}  // namespace ktune

int main(int argc, char** argv) {
  ktune::Options options;
  bool bad = false;
  for (int i = 1; i < argc; ++i) {
    auto value = [&](const char* name) { return !std::strcmp(argv[i], name) && i + 1 < argc ? argv[++i] : nullptr; };
    if (const char* v = value("--cache"))
      options.cache = v;
    else if (const char* v = value("--program"))
      options.program = v;
    else if (const char* v = value("--rounds"))
      options.rounds = std::atoi(v);
    else if (const char* v = value("--commit"))
      options.commit = v;
    else
      bad = true;
  }
  if (bad || options.cache.empty() || options.program.empty() || options.rounds < 3) {
    std::fprintf(stderr,
                 "usage: ktune-bench-cpu --cache DIR --program KTUNE [--rounds N] [--commit ID]\n"
                 "example: ktune-bench-cpu --cache /tmp/c --program build/release/tools/ktune --rounds 31\n");
    return 2;
  }
  ktune::Status status = ktune::run(options);
  if (!status.isOk()) std::fprintf(stderr, "ktune-bench-cpu: error: %s\n", status.message().c_str());
  return status.isOk() ? 0 : 1;
}
