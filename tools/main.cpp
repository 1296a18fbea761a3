// The ktune program: reads the environment and the command line, runs one command, returns its exit code.
#include <CLI/CLI.hpp>
#include <cstring>
#include <exception>

#include "tools/Commands.h"
#include "tools/Version.h"

using namespace ktune;
using namespace ktune::tools;

namespace {

constexpr Command (*kCommands[])(CLI::App&, Shell&) = {
    declareWarmCache, declareTune,    declareList,   declareShow,
    declareVerify,    declareDevices, declareDoctor, declareWorker,
};

// Parsing may fail before --json was reached, and the error must come as JSON all the same.
bool asksForJson(int argc, char** argv) {
  for (int i = 1; i < argc; ++i)
    if (std::strcmp(argv[i], "--json") == 0) return true;
  return false;
}

ExitCode usageError(const Shell& shell, const CLI::App& app, const std::vector<Command>& commands,
                    const std::string& why) {
  // Point at the help that shows what was meant: the command's, or the program's.
  std::string help = app.get_name(), known;
  bool chosen = false;
  for (const Command& command : commands) {
    if (command.app->parsed()) {
      help += " " + command.app->get_name();
      chosen = true;
    }
    if (!command.app->get_group().empty()) known += (known.empty() ? "" : ", ") + command.app->get_name();
  }
  const std::string commandsAre = chosen ? "" : "; commands are " + known;
  return shell.fail(ExitCode::kUsage, invalidArgument(why + commandsAre + " (see `" + help + " --help`)"));
}

ExitCode runProgram(int argc, char** argv) {
  Shell shell;
  CLI::App app{"ktune finds the fastest kernel for each operator on the device it runs on, with proof.", "ktune"};
  app.set_version_flag("--version", std::string("ktune ") + kVersion);
  app.footer(
      "Start with: ktune doctor\nThen:       ktune warm-cache --model config.json --tokens 1,16 --budget 2m\n"
      "Exit codes and errors: docs/errors.md");
  std::vector<Command> commands;
  for (auto* declare : kCommands) commands.push_back(declare(app, shell));

  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help, --version
    app.exit(asked);
    return ExitCode::kOk;
  } catch (const CLI::ParseError& error) {
    shell.common.json = asksForJson(argc, argv);
    return usageError(shell, app, commands, error.what());
  }

  Result<Settings> settings = readSettings();
  if (!settings) return shell.fail(ExitCode::kUsage, settings.error());
  shell.settings = std::move(*settings);
  if (Status status = shell.applyLogLevel(); !status.isOk()) return shell.fail(ExitCode::kUsage, status);

  for (const Command& command : commands)
    if (command.app->parsed()) return command.run();
  return usageError(shell, app, commands, "no command given");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return static_cast<int>(runProgram(argc, argv));
  } catch (const std::exception& error) {
    // Only std::bad_alloc and bugs get here: no function of ktune throws to report.
    std::fprintf(stderr, "ktune: error: internal: %s; please report it\n", error.what());
    return static_cast<int>(ExitCode::kInternal);
  }
}
