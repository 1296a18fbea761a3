#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "GoldenSection.h"
#include "ir/op/Operator.h"

namespace ktune::op {
namespace {

std::string_view kindName(OperatorKind kind) {
  constexpr std::string_view kNames[] = {"composite", "constant", "elementwise", "reduction", "contraction"};
  return kNames[static_cast<size_t>(kind)];
}

std::string attributesText(const OperatorDef& def) {
  std::string text;
  for (const AttributeDef& attribute : def.attributes)
    text += (text.empty() ? "`" : ", `") + std::string(attribute.name) + "`" +
            (attribute.required ? "" : " (optional)") + ": " + std::string(attribute.meaning);
  return text.empty() ? "none" : text;
}

// docs/operators.md is made from the table; KTUNE_UPDATE_GOLDEN=1 rewrites it.
TEST(OperatorDoc, ShowsTheTable) {
  std::string table =
      "| operator | kind | operands | what it computes | attributes |\n| --- | --- | --- | --- | --- |\n";
  for (const OperatorDef* def : operatorTable())
    table += "| `" + std::string(def->name) + "` | " + std::string(kindName(def->kind)) + " | " +
             std::to_string(def->operandCount) + " | " + std::string(def->summary) + " | " + attributesText(*def) +
             " |\n";
  test::expectGoldenSection("operators.md", "operators", table);
}

// Composites are known by what they are made of: no generator and no emitter names one.
TEST(OperatorDoc, NoCompositeIsNamedBelowTheTable) {
  const std::filesystem::path root = std::filesystem::path(KTUNE_SOURCE_DIR) / "ir";
  int files = 0;
  for (const char* folder : {"lower", "emit"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root / folder)) {
      if (!entry.is_regular_file()) continue;
      std::ifstream stream(entry.path());
      const std::string text((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
      ++files;
      for (const OperatorDef* def : operatorTable()) {
        if (def->kind != OperatorKind::kComposite) continue;
        EXPECT_EQ(text.find("\"" + std::string(def->name) + "\""), std::string::npos)
            << entry.path() << " " << def->name;
      }
    }
  }
  EXPECT_GT(files, 15);
}

}  // namespace
}  // namespace ktune::op
