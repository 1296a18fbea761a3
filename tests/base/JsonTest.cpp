#include <gtest/gtest.h>

#include "base/Json.h"

namespace ktune {
namespace {

TEST(Json, KeepsTheOrderOfFields) {
  const Result<Json> v = parseJson(R"( {"z": 1, "a": [true, null, -2.5, "t\u00e9\n"], "m": {}} )", "f.json");
  ASSERT_TRUE(v) << v.error().toString();
  EXPECT_EQ(v->dump(), "{\"z\":1,\"a\":[true,null,-2.5,\"t\u00e9\\n\"],\"m\":{}}");
}

TEST(Json, ScalarsAndNesting) {
  for (const char* text : {"1", "\"s\"", "null", "[]", "{}", "[[[{\"a\":[{}]}]]]", "18446744073709551615", "-0.0"}) {
    const Result<Json> v = parseJson(text, "f");
    ASSERT_TRUE(v) << text << ": " << v.error().toString();
    EXPECT_EQ(v->dump(), text);
  }
}

TEST(Json, ErrorsTellLineAndColumn) {
  struct Case {
    std::string text;
    const char* start;
    const char* part;
  };
  const Case kTable[] = {
      {"", "f.json:1:1: ", "unexpected end of input"},
      {"{\"a\": }", "f.json:1:7: ", "unexpected '}'"},
      {"{\n  \"a\": 1,\n  \"b\" 2\n}", "f.json:3:7: ", "expected ':'"},
      {"[1,\n2", "f.json:2:2: ", "unexpected end of input"},
      {"[1] x", "f.json:1:5: ", "expected end of input"},
      {"{\"a\": 1,}", "f.json:1:9: ", "expected string literal"},
      {"// no\n1", "f.json:1:1: ", "syntax error"},
      {"[\"\xff\"]", "f.json:1:3: ", "ill-formed UTF-8"},
      {"[1e999]", "f.json:1:6: ", "number overflow"},
      {"{\"a\": 1,\n \"a\": 2}", "f.json:2:4: ", "the field \"a\" is given twice"},
      {"[NaN]", "f.json:1:2: ", "invalid literal"},
      {std::string(100000, '['), "f.json:1:201: ", "nested deeper than 200 levels"},
  };
  for (const Case& c : kTable) {
    const Result<Json> v = parseJson(c.text, "f.json");
    ASSERT_FALSE(v) << c.text;
    EXPECT_EQ(v.error().code(), StatusCode::kInvalidArgument);
    const std::string& message = v.error().message();
    EXPECT_TRUE(message.starts_with(c.start)) << message;
    EXPECT_NE(message.find(c.part), std::string::npos) << message;
    EXPECT_EQ(message.find("json.exception"), std::string::npos) << message;
  }
}

TEST(Json, EveryTruncationIsAnError) {
  const std::string text = R"({"a": [1, 2.5, "x\u0041"], "b": {"c": true}})";
  for (size_t n = 0; n < text.size(); ++n) EXPECT_FALSE(parseJson(text.substr(0, n), "f")) << n;
  EXPECT_TRUE(parseJson(text, "f"));
}

class JsonObjectTest : public testing::Test {
 protected:
  const Json value_ = *parseJson(
      R"({"s": "text", "i": -3, "u": 9223372036854775807, "big": 9223372036854775808, "d": 2.5, "whole": 2.0,
          "b": true, "a": [1], "o": {}, "n": null})",
      "f");
  JsonObject object_ = *JsonObject::of(value_, "inputs[0]");
};

TEST_F(JsonObjectTest, TypedAccess) {
  EXPECT_EQ(object_.text("s").value(), "text");
  EXPECT_EQ(object_.integer("i").value(), -3);
  EXPECT_EQ(object_.integer("u").value(), INT64_MAX);
  EXPECT_EQ(object_.number("d").value(), 2.5);
  EXPECT_EQ(object_.number("i").value(), -3.0);
  EXPECT_EQ(object_.boolean("b").value(), true);
  EXPECT_EQ(object_.array("a").value()->size(), 1u);
  EXPECT_TRUE(object_.any("n").value()->is_null());
  EXPECT_TRUE(object_.has("s"));
  EXPECT_FALSE(object_.has("absent"));
}

TEST_F(JsonObjectTest, WrongTypesNameThePath) {
  const std::pair<Status, const char*> kTable[] = {
      {object_.text("i").status(), "inputs[0].i: expected a string"},
      {object_.text("n").status(), "inputs[0].n: expected a string"},
      {object_.integer("s").status(), "inputs[0].s: expected an integer of 64 bits"},
      {object_.integer("d").status(), "inputs[0].d: expected an integer of 64 bits"},
      {object_.integer("whole").status(), "inputs[0].whole: expected an integer of 64 bits"},
      {object_.integer("big").status(), "inputs[0].big: expected an integer of 64 bits"},
      {object_.number("s").status(), "inputs[0].s: expected a number"},
      {object_.boolean("i").status(), "inputs[0].i: expected true or false"},
      {object_.array("o").status(), "inputs[0].o: expected an array"},
      {object_.any("absent").status(), "inputs[0].absent: is missing"},
      {object_.text("absent").status(), "inputs[0].absent: is missing"},
      {object_.textOr("i", "").status(), "inputs[0].i: expected a string"},
      {object_.integerOr("s", 0).status(), "inputs[0].s: expected an integer of 64 bits"},
      {object_.numberOr("s", 0).status(), "inputs[0].s: expected a number"},
      {object_.booleanOr("s", false).status(), "inputs[0].s: expected true or false"},
      {JsonObject::of(value_["a"], "x.a").status(), "x.a: expected an object"},
      {JsonObject::of(value_["a"], "").status(), "the document: expected an object"},
  };
  for (const auto& [status, message] : kTable) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(), message);
  }
}

TEST_F(JsonObjectTest, AbsentFieldsTakeTheGivenValue) {
  EXPECT_EQ(object_.textOr("absent", "x").value(), "x");
  EXPECT_EQ(object_.integerOr("absent", 7).value(), 7);
  EXPECT_EQ(object_.numberOr("absent", 0.5).value(), 0.5);
  EXPECT_EQ(object_.booleanOr("absent", true).value(), true);
  EXPECT_EQ(object_.textOr("s", "x").value(), "text");
}

TEST(JsonObject, FinishRefusesMisspeltFields) {
  const Json value = *parseJson(R"({"name": "x", "dtpye": "f16"})", "f");
  JsonObject top = *JsonObject::of(value, "");
  EXPECT_TRUE(top.text("name"));
  EXPECT_EQ(top.textOr("dtype", "f32").value(), "f32");
  EXPECT_EQ(top.finish().toString(), "invalid-argument: dtpye: is an unknown field; known are: name, dtype");
  EXPECT_TRUE(top.any("dtpye"));
  EXPECT_TRUE(top.finish().isOk());
}

}  // namespace
}  // namespace ktune
