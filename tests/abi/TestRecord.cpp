#include "abi/TestRecord.h"

#include "base/File.h"
#include "ir/op/GraphJson.h"
#include "runtime/launch/Device.h"

namespace ktune::abi {

std::string addJson() {
  return R"({"symbols": [{"name": "M", "min": 1, "max": 16, "edges": [1, 16]}],
             "inputs": [{"name": "a", "dtype": "f32", "shape": ["M", 1024]},
                        {"name": "b", "dtype": "f32", "shape": ["M", 1024]}],
             "nodes": [{"op": "add", "inputs": ["a", "b"], "result": "y"}],
             "outputs": [{"value": "y"}]})";
}

op::Graph addGraph() {
  return *op::fromJson(*parseJson(addJson(), "test"), "test");
}

cache::Record addRecord(int bucketIndex, const std::string& symbol, const std::function<void(cache::Record&)>& change) {
  const op::Graph graph = addGraph();
  cache::Record record;
  record.bucketIndex = bucketIndex;
  record.bucket = op::bucketsOf(graph)[static_cast<size_t>(bucketIndex)];
  record.canonical = op::canonicalBytes(graph);
  record.hardware = (*runtime::openDevice("cpu"))->target().hardware;
  record.key = op::keyOf(graph, record.hardware);
  record.decision = cache::Decision::kTuned;
  record.genome.kernels.emplace_back();
  cache::Plan& plan = record.plan;
  plan.tensorCount = 3;
  plan.symbolCount = 1;
  cache::Artefact artefact;
  artefact.bytes = *readFile(KTUNE_TEST_KERNEL);
  artefact.digest = digestOf(artefact.bytes);
  plan.artefacts.push_back(std::move(artefact));
  cache::Launch launch;
  launch.symbol = symbol;
  for (int t = 0; t < 3; ++t) launch.parameters.emplace_back(cache::PointerParameter{t});
  if (symbol == "ktune_test_add_slot") {
    launch.parameters.emplace_back(cache::WorkspaceParameter{0});
    plan.workspaces.push_back({cache::WorkspaceKind::kScratch, 64, {4096, 0, 1}});
  }
  launch.grid[0] = {1, 0, 1};
  plan.launches.push_back(std::move(launch));
  for (int t = 0; t < 3; ++t) {
    plan.preconditions.push_back({cache::Precondition::Kind::kAlignment, t, 64, 0});
  }
  if (change) change(record);
  record.evidence.planDigest = plan.digest();
  return record;
}

}  // namespace ktune::abi
