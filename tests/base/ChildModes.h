// What the test program does when a test starts it again as "--child MODE ARGUMENTS...".
#pragma once

#include <string>
#include <vector>

namespace ktune::testing_children {

/// Runs MODE and returns the exit code.
int runChildMode(const std::string& mode, const std::vector<std::string>& arguments);

/// What the mode "flood" writes to its standard error: BYTES of numbered lines, then kLastWords.
std::string floodText(size_t bytes);
inline constexpr char kLastWords[] = "fatal: last words\n";

}  // namespace ktune::testing_children
