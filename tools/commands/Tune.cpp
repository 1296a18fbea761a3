// ktune tune: tunes one operator.
#include <CLI/CLI.hpp>
#include <iostream>
#include <iterator>

#include "base/File.h"
#include "tools/Commands.h"
#include "tools/Tuning.h"

namespace ktune::tools {

namespace {

struct TuneOneOptions : TuneOptions {
  std::string description;
  std::string op;
  std::string dtype = "f32";
  int64_t n = 0, k = 0, columns = 0, rowsPerToken = 0;
  double eps = 0;
  bool bias = false;
};

constexpr size_t kMaxDescriptionBytes = size_t{16} << 20;

// Flags become the manifest's short form, so that both accept and refuse the same things.
Json shortFormOf(const CLI::App& app, const TuneOneOptions& o) {
  Json json = {{"op", o.op}, {"dtype", o.dtype}};
  if (app.count("--n") > 0) json["n"] = o.n;
  if (app.count("--k") > 0) json["k"] = o.k;
  if (app.count("--columns") > 0) json["columns"] = o.columns;
  if (app.count("--rows-per-token") > 0) json["rows_per_token"] = o.rowsPerToken;
  if (app.count("--eps") > 0) json["eps"] = o.eps;
  if (o.bias) json["bias"] = true;
  return json;
}

Result<WorkItem> readItem(const CLI::App& app, const TuneOneOptions& o, const std::vector<int64_t>& edges) {
  if (!o.op.empty() && !o.description.empty()) return invalidArgument("give a description or --op, not both");
  if (!o.op.empty()) return itemFromJson(shortFormOf(app, o), "--op " + o.op, edges);
  if (o.description.empty())
    return invalidArgument(
        "say what to tune: a description (a JSON file, or - for standard input) or --op with its sizes");
  std::string text;
  std::string where = o.description;
  if (o.description == "-") {
    where = "standard input";
    text.assign(std::istreambuf_iterator<char>(std::cin), {});
  } else {
    Result<std::string> read = readFile(o.description, kMaxDescriptionBytes);
    if (!read) return read.error().withPrefix("cannot read the description");
    text = std::move(*read);
  }
  KTUNE_ASSIGN(const Json json, parseJson(text, where));
  return itemFromJson(json, where, edges);
}

ExitCode run(const Shell& shell, const CLI::App& app, const TuneOneOptions& options) {
  const Result<std::vector<int64_t>> edges = parseTokens(options.tokens);
  if (!edges) return shell.fail(ExitCode::kUsage, edges.error().withPrefix("--tokens"));
  Result<WorkItem> item = readItem(app, options, *edges);
  if (!item) return shell.fail(ExitCode::kUsage, item.error());
  Workload workload;
  workload.source = "one operator";
  workload.items.push_back(std::move(*item));
  return tuneWorkload(shell, options, workload);
}

}  // namespace

Command declareTune(CLI::App& root, Shell& shell) {
  CLI::App* app = root.add_subcommand("tune", "Tune one operator into the cache");
  auto o = std::make_shared<TuneOneOptions>();
  app->add_option("description", o->description, "JSON file with the operator's description; - reads standard input");
  app->add_option("--op", o->op,
                  "linear, or an operator on rows of one length (docs/operators.md), instead of a description")
      ->type_name("NAME");
  app->add_option("--n", o->n, "linear: output features")->type_name("N");
  app->add_option("--k", o->k, "linear: input features")->type_name("K");
  app->add_flag("--bias", o->bias, "linear: add a bias");
  app->add_option("--columns", o->columns, "Operators on rows: their length")->type_name("N");
  app->add_option("--rows-per-token", o->rowsPerToken, "rms_norm: rows per token, as in per-head norms")
      ->type_name("N");
  app->add_option("--eps", o->eps, "Operators that have one: epsilon (default: theirs)")->type_name("X");
  app->add_option("--dtype", o->dtype, "Element type")->type_name("TYPE")->capture_default_str();
  addTuneOptions(*app, shell, *o, "1m");
  app->footer(
      "Examples:\n  ktune tune --op linear --n 6144 --k 4096 --dtype f32 --tokens 1,16\n"
      "  ktune tune --op softmax --columns 4096 --tokens 16,256\n"
      "  ktune tune description.json --budget 30s");
  return {app, [&shell, app, o] { return run(shell, *app, *o); }};
}

}  // namespace ktune::tools
