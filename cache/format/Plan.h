// A plan: everything needed to run a tuned operator, as plain data. docs/plan.md gives its bytes.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/Bytes.h"
#include "base/Hash.h"
#include "base/Status.h"

namespace ktune::cache {

/// ceil(factor * value(symbol) / divisor), or ceil(factor / divisor) when symbol < 0.
struct Extent {
  int64_t factor = 1;
  int32_t symbol = -1;
  int64_t divisor = 1;
  bool operator==(const Extent&) const = default;
  [[nodiscard]] int64_t evaluate(const std::vector<int64_t>& symbolValues) const {
    int64_t n = symbol < 0 ? factor : factor * symbolValues[static_cast<size_t>(symbol)];
    return (n + divisor - 1) / divisor;
  }
};

enum class ArtefactKind : uint8_t { kElfSharedObject = 0, kCubin = 1, kFake = 2 };

struct Artefact {
  ArtefactKind kind = ArtefactKind::kElfSharedObject;
  std::string bytes;
  Digest digest;  ///< digestOf(bytes); compared again where the artefact is loaded.
  bool operator==(const Artefact&) const = default;
};

/// A tensor of the operator: inputs in graph order, then outputs.
struct PointerParameter {
  int32_t tensor = 0;
  bool operator==(const PointerParameter&) const = default;
};
/// A constant passed by value, little-endian.
struct ScalarParameter {
  std::string bytes;
  bool operator==(const ScalarParameter&) const = default;
};
/// The run-time value of a symbol, as i64.
struct SymbolParameter {
  int32_t symbol = 0;
  bool operator==(const SymbolParameter&) const = default;
};
/// The start of a workspace slot.
struct WorkspaceParameter {
  int32_t slot = 0;
  bool operator==(const WorkspaceParameter&) const = default;
};
/// A CUDA tensor map over a tensor (cuTensorMapEncodeTiled), innermost dim first.
struct TensorMapParameter {
  int32_t tensor = 0;
  std::vector<Extent> extents;
  std::vector<Extent> stridesBytes;  ///< Of dims 1 and up.
  std::vector<uint32_t> box;
  uint8_t swizzle = 0, elementType = 0, l2Promotion = 0;
  bool operator==(const TensorMapParameter&) const = default;
};
using LaunchParameter =
    std::variant<PointerParameter, ScalarParameter, SymbolParameter, WorkspaceParameter, TensorMapParameter>;

struct LaunchAttribute {
  std::string name;
  int64_t value = 0;
  bool operator==(const LaunchAttribute&) const = default;
};

/// One kernel launch. On the cpu device the grid's product is the number of tiles; block, cluster and shared bytes
/// are 1, 1, 0.
struct Launch {
  int32_t artefact = 0;
  std::string symbol;
  std::vector<LaunchParameter> parameters;
  std::array<Extent, 3> grid;
  std::array<int32_t, 3> block{1, 1, 1};
  std::array<int32_t, 3> cluster{1, 1, 1};
  int32_t dynamicSharedBytes = 0;
  std::vector<LaunchAttribute> attributes;
  bool operator==(const Launch&) const = default;
};

enum class WorkspaceKind : uint8_t {
  kScratch = 0,  ///< Any contents before, any after.
  kZeroed = 1,   ///< Zero before the call, and the plan leaves it zero.
};
struct Workspace {
  WorkspaceKind kind = WorkspaceKind::kScratch;
  int64_t alignmentBytes = 64;
  Extent bytes;
  bool operator==(const Workspace&) const = default;
};

/// What must hold for the plan to be right; dispatch checks it.
struct Precondition {
  enum class Kind : uint8_t { kAlignment = 0, kSymbolRange = 1 } kind = Kind::kAlignment;
  int32_t index = 0;  ///< Tensor (alignment) or symbol (range).
  int64_t low = 1;    ///< Alignment in bytes, or smallest value.
  int64_t high = 0;   ///< Largest value (range).
  bool operator==(const Precondition&) const = default;
  [[nodiscard]] std::string describe() const;
};

struct Plan {
  std::vector<Artefact> artefacts;
  std::vector<Launch> launches;
  std::vector<Workspace> workspaces;
  std::vector<Precondition> preconditions;
  int32_t tensorCount = 0;
  int32_t symbolCount = 0;
  bool safeWithDependentLaunch = false;
  bool operator==(const Plan&) const = default;

  void encode(ByteWriter& writer) const;
  /// Checks every index and size against the plan itself: a decoded plan is safe to walk.
  [[nodiscard]] static Plan decode(ByteReader& reader);
  [[nodiscard]] std::string bytes() const;
  /// Errors: kCorrupt.
  [[nodiscard]] static Result<Plan> fromBytes(std::string_view bytes);
  /// ok, or kCorrupt naming the index that is out of range.
  [[nodiscard]] Status validate() const;
  /// Over the launches and the artefacts' digests: equal digests run equal code.
  [[nodiscard]] Digest digest() const;
};

}  // namespace ktune::cache
