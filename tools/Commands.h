// The commands of the ktune program, one file each under commands/. Each function declares the command's options on a
// child of ROOT; SHELL outlives the program's run.
#pragma once

#include "tools/Shell.h"

namespace ktune::tools {

Command declareWarmCache(CLI::App& root, Shell& shell);
Command declareTune(CLI::App& root, Shell& shell);
Command declareList(CLI::App& root, Shell& shell);
Command declareShow(CLI::App& root, Shell& shell);
Command declareVerify(CLI::App& root, Shell& shell);
Command declareDevices(CLI::App& root, Shell& shell);
Command declareDoctor(CLI::App& root, Shell& shell);
Command declareWorker(CLI::App& root, Shell& shell);

}  // namespace ktune::tools
