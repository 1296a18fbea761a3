// Descriptions as JSON (docs/manifest.md).
#pragma once

#include "base/Json.h"
#include "ir/op/Graph.h"

namespace ktune::op {

/// The JSON form. toJson(fromJson(x)) is stable; defaults are written out.
/// REQUIRES: the description is verified.
[[nodiscard]] Json toJson(const Graph& graph);
/// Reads and verifies one description. WHERE prefixes errors ("manifest.json: operators[3]").
/// The result is normalised (see normalised()).
/// Errors: kInvalidArgument with the path of the offending field; unknown fields are refused. As verify().
[[nodiscard]] Result<Graph> fromJson(const Json& json, const std::string& where);

}  // namespace ktune::op
