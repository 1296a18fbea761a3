#include <iostream>
#include <ktune/ktune.hpp>

int main() {
  try {
    const ktune::Context context;
    for (const ktune::DeviceInfo& device : context.devices())
      std::cout << device.name << ": " << device.description << '\n';
    const ktune::Operator op(context, "{}");
    return 1;  // An empty description must be refused.
  } catch (const ktune::Error& error) {
    std::cout << "as expected: " << error.what() << '\n';
    return error.code() == KTUNE_INVALID_ARGUMENT ? 0 : 1;
  }
}
