// ktune warm-cache: tunes every operator of a model or a manifest.
#include <CLI/CLI.hpp>

#include "tools/Commands.h"
#include "tools/Tuning.h"

namespace ktune::tools {

namespace {

struct WarmCacheOptions : TuneOptions {
  std::string model;
  std::string manifest;
};

ExitCode run(const Shell& shell, const WarmCacheOptions& options) {
  const Result<std::vector<int64_t>> edges = parseTokens(options.tokens);
  if (!edges) return shell.fail(ExitCode::kUsage, edges.error().withPrefix("--tokens"));
  const bool isModel = !options.model.empty();
  if (isModel == !options.manifest.empty())
    return shell.fail(ExitCode::kUsage, invalidArgument(isModel ? "give --model or --manifest, not both"
                                                                : "say what to tune: --model config.json of a Hugging "
                                                                  "Face model, or --manifest FILE"));
  // A device that is not there is reported when tuning would begin: what is wrong with the input comes first.
  const Result<std::vector<runtime::DeviceInfo>> devices = chooseDevices(shell.common.device);
  const schedule::DeviceKind kind = devices ? devices->front().target.kind : schedule::DeviceKind::kCpu;
  const Result<Workload> workload =
      isModel ? workloadFromModel(options.model, *edges, kind) : workloadFromManifest(options.manifest, *edges);
  if (!workload) return shell.fail(ExitCode::kUsage, workload.error());
  return tuneWorkload(shell, options, *workload);
}

}  // namespace

Command declareWarmCache(CLI::App& root, Shell& shell) {
  CLI::App* app = root.add_subcommand("warm-cache", "Tune every operator of a model or a manifest into the cache");
  auto options = std::make_shared<WarmCacheOptions>();
  app->add_option("--model", options->model, "config.json of a Llama, Qwen2 or Qwen3 model (Hugging Face)")
      ->type_name("FILE");
  app->add_option("--manifest", options->manifest, "Operators listed in JSON (docs/manifest.md)")->type_name("FILE");
  addTuneOptions(*app, shell, *options, "5m");
  app->footer(
      "Example:\n  ktune warm-cache --model examples/models/qwen3-8b.json --tokens 1,16 --budget 2m\n\n"
      "What the cache has already costs nothing: run it again after an interruption to go on.");
  return {app, [&shell, options] { return run(shell, *options); }};
}

}  // namespace ktune::tools
