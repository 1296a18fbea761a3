#include <gtest/gtest.h>

#include <cstdlib>

#include "base/File.h"
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
  const std::string path = std::string(KTUNE_SOURCE_DIR) + "/docs/operators.md";
  Result<std::string> document = readFile(path);
  ASSERT_TRUE(document.has_value()) << document.error().message();
  const std::string begin = "<!-- operators: begin -->\n", end = "<!-- operators: end -->";
  size_t from = document->find(begin), to = document->find(end);
  ASSERT_TRUE(from != std::string::npos && to != std::string::npos);
  from += begin.size();
  if (document->substr(from, to - from) == table) return;
  if (std::getenv("KTUNE_UPDATE_GOLDEN")) {
    ASSERT_TRUE(writeFileAtomically(path, document->substr(0, from) + table + document->substr(to)).isOk());
    return;
  }
  FAIL() << "docs/operators.md does not show the operator table; run this test with KTUNE_UPDATE_GOLDEN=1";
}

}  // namespace
}  // namespace ktune::op
