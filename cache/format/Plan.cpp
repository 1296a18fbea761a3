#include "cache/format/Plan.h"

#include <algorithm>

namespace ktune::cache {

namespace {

constexpr std::string_view kPlanMagic = "KTUNEPLN";
constexpr uint32_t kPlanVersion = 1;

// Limits that keep Extent::evaluate() inside 64 bits for symbol values below 2^22, and a decoded plan walkable.
constexpr int64_t kMostSymbolicFactor = int64_t{1} << 40;
constexpr int64_t kMostStaticFactor = int64_t{1} << 61;
constexpr size_t kMostTensorMapDims = 5;   // cuTensorMapEncodeTiled's.
constexpr size_t kMostScalarBytes = 4096;  // A kernel's parameters together, on every architecture we know.
constexpr int32_t kMostTensors = 1 << 16, kMostSymbols = 1 << 10;  // Callers size arrays by them.
constexpr int64_t kMostAlignment = int64_t{1} << 30;

// The variant's alternatives in the byte form: append only.
enum class ParameterTag : uint8_t { kPointer = 0, kScalar = 1, kSymbol = 2, kWorkspace = 3, kTensorMap = 4 };

void encodeExtent(ByteWriter& w, const Extent& e) {
  w.i64(e.factor);
  w.i32(e.symbol);
  w.i64(e.divisor);
}

Extent decodeExtent(ByteReader& r) {
  Extent e;
  e.factor = r.i64();
  e.symbol = r.i32();
  e.divisor = r.i64();
  return e;
}
constexpr size_t kExtentBytes = 20;

void encodeExtents(ByteWriter& w, const std::vector<Extent>& extents) {
  w.u32(static_cast<uint32_t>(extents.size()));
  for (const Extent& e : extents) encodeExtent(w, e);
}

std::vector<Extent> decodeExtents(ByteReader& r) {
  std::vector<Extent> extents;
  uint32_t count = r.count(kExtentBytes);
  for (uint32_t i = 0; i < count && r.good(); ++i) extents.push_back(decodeExtent(r));
  return extents;
}

struct ParameterEncoder {
  ByteWriter& w;
  void tag(ParameterTag t) { w.u8(static_cast<uint8_t>(t)); }
  void operator()(const PointerParameter& p) {
    tag(ParameterTag::kPointer);
    w.i32(p.tensor);
  }
  void operator()(const ScalarParameter& p) {
    tag(ParameterTag::kScalar);
    w.text(p.bytes);
  }
  void operator()(const SymbolParameter& p) {
    tag(ParameterTag::kSymbol);
    w.i32(p.symbol);
  }
  void operator()(const WorkspaceParameter& p) {
    tag(ParameterTag::kWorkspace);
    w.i32(p.slot);
  }
  void operator()(const TensorMapParameter& p) {
    tag(ParameterTag::kTensorMap);
    w.i32(p.tensor);
    encodeExtents(w, p.extents);
    encodeExtents(w, p.stridesBytes);
    w.u32(static_cast<uint32_t>(p.box.size()));
    for (uint32_t b : p.box) w.u32(b);
    w.u8(p.swizzle);
    w.u8(p.elementType);
    w.u8(p.l2Promotion);
  }
};

LaunchParameter decodeParameter(ByteReader& r) {
  switch (static_cast<ParameterTag>(r.u8())) {
    case ParameterTag::kPointer:
      return PointerParameter{r.i32()};
    case ParameterTag::kScalar:
      return ScalarParameter{r.text()};
    case ParameterTag::kSymbol:
      return SymbolParameter{r.i32()};
    case ParameterTag::kWorkspace:
      return WorkspaceParameter{r.i32()};
    case ParameterTag::kTensorMap: {
      TensorMapParameter p;
      p.tensor = r.i32();
      p.extents = decodeExtents(r);
      p.stridesBytes = decodeExtents(r);
      uint32_t count = r.count(4);
      for (uint32_t i = 0; i < count && r.good(); ++i) p.box.push_back(r.u32());
      p.swizzle = r.u8();
      p.elementType = r.u8();
      p.l2Promotion = r.u8();
      return p;
    }
  }
  r.fail("unknown kind of launch parameter");
  return PointerParameter{};
}

void encodeLaunch(ByteWriter& w, const Launch& launch) {
  w.i32(launch.artefact);
  w.text(launch.symbol);
  w.u32(static_cast<uint32_t>(launch.parameters.size()));
  for (const LaunchParameter& p : launch.parameters) std::visit(ParameterEncoder{w}, p);
  for (const Extent& e : launch.grid) encodeExtent(w, e);
  for (int32_t n : launch.block) w.i32(n);
  for (int32_t n : launch.cluster) w.i32(n);
  w.i32(launch.dynamicSharedBytes);
  w.u32(static_cast<uint32_t>(launch.attributes.size()));
  for (const LaunchAttribute& a : launch.attributes) {
    w.text(a.name);
    w.i64(a.value);
  }
}

Launch decodeLaunch(ByteReader& r) {
  Launch launch;
  launch.artefact = r.i32();
  launch.symbol = r.text();
  uint32_t parameters = r.count(5);
  for (uint32_t i = 0; i < parameters && r.good(); ++i) launch.parameters.push_back(decodeParameter(r));
  for (Extent& e : launch.grid) e = decodeExtent(r);
  for (int32_t& n : launch.block) n = r.i32();
  for (int32_t& n : launch.cluster) n = r.i32();
  launch.dynamicSharedBytes = r.i32();
  uint32_t attributes = r.count(12);
  for (uint32_t i = 0; i < attributes && r.good(); ++i) {
    LaunchAttribute a;
    a.name = r.text();
    a.value = r.i64();
    launch.attributes.push_back(std::move(a));
  }
  return launch;
}

/// Everything but the artefacts' contents.
void encodeRest(ByteWriter& w, const Plan& plan) {
  w.u32(static_cast<uint32_t>(plan.launches.size()));
  for (const Launch& launch : plan.launches) encodeLaunch(w, launch);
  w.u32(static_cast<uint32_t>(plan.workspaces.size()));
  for (const Workspace& workspace : plan.workspaces) {
    w.u8(static_cast<uint8_t>(workspace.kind));
    w.i64(workspace.alignmentBytes);
    encodeExtent(w, workspace.bytes);
  }
  w.u32(static_cast<uint32_t>(plan.preconditions.size()));
  for (const Precondition& p : plan.preconditions) {
    w.u8(static_cast<uint8_t>(p.kind));
    w.i32(p.index);
    w.i64(p.low);
    w.i64(p.high);
  }
  w.i32(plan.tensorCount);
  w.i32(plan.symbolCount);
  w.boolean(plan.safeWithDependentLaunch);
}

bool isPowerOfTwo(int64_t n) {
  return n > 0 && (n & (n - 1)) == 0;
}

/// Collects the first thing wrong with a plan.
class Validator {
 public:
  explicit Validator(const Plan& plan) : plan_(plan) {}

  Status run() {
    require(plan_.tensorCount >= 0 && plan_.tensorCount <= kMostTensors, "tensorCount is out of range");
    require(plan_.symbolCount >= 0 && plan_.symbolCount <= kMostSymbols, "symbolCount is out of range");
    for (size_t i = 0; i < plan_.artefacts.size(); ++i) {
      where_ = "artefacts[" + std::to_string(i) + "]";
      require(plan_.artefacts[i].kind <= ArtefactKind::kFake, "unknown kind");
    }
    for (size_t i = 0; i < plan_.launches.size(); ++i) launch(i);
    for (size_t i = 0; i < plan_.workspaces.size(); ++i) {
      const Workspace& w = plan_.workspaces[i];
      where_ = "workspaces[" + std::to_string(i) + "]";
      require(w.kind <= WorkspaceKind::kZeroed, "unknown kind");
      require(isPowerOfTwo(w.alignmentBytes) && w.alignmentBytes <= kMostAlignment, "alignment is no power of two");
      extent(w.bytes, "bytes");
    }
    for (size_t i = 0; i < plan_.preconditions.size(); ++i) {
      const Precondition& p = plan_.preconditions[i];
      where_ = "preconditions[" + std::to_string(i) + "]";
      switch (p.kind) {
        case Precondition::Kind::kAlignment:
          index(p.index, plan_.tensorCount, "tensor");
          require(isPowerOfTwo(p.low), "alignment is no power of two");
          break;
        case Precondition::Kind::kSymbolRange:
          index(p.index, plan_.symbolCount, "symbol");
          require(p.low <= p.high, "empty range");
          break;
        default:
          require(false, "unknown kind");
      }
    }
    return error_.empty() ? Status::ok() : corrupt("plan: " + error_);
  }

 private:
  void launch(size_t i) {
    const Launch& launch = plan_.launches[i];
    where_ = "launches[" + std::to_string(i) + "]";
    index(launch.artefact, static_cast<int64_t>(plan_.artefacts.size()), "artefact");
    require(!launch.symbol.empty() && launch.symbol.find('\0') == std::string::npos, "symbol is no name");
    for (const Extent& e : launch.grid) extent(e, "grid");
    for (int32_t n : launch.block) require(n >= 1, "block is not positive");
    for (int32_t n : launch.cluster) require(n >= 1, "cluster is not positive");
    require(launch.dynamicSharedBytes >= 0, "dynamicSharedBytes is negative");
    std::string place = where_;
    for (size_t p = 0; p < launch.parameters.size(); ++p) {
      where_ = place + ".parameters[" + std::to_string(p) + "]";
      std::visit([this](const auto& parameter) { check(parameter); }, launch.parameters[p]);
    }
  }
  void check(const PointerParameter& p) { index(p.tensor, plan_.tensorCount, "tensor"); }
  void check(const ScalarParameter& p) {
    require(!p.bytes.empty() && p.bytes.size() <= kMostScalarBytes, "scalar of an impossible size");
  }
  void check(const SymbolParameter& p) { index(p.symbol, plan_.symbolCount, "symbol"); }
  void check(const WorkspaceParameter& p) {
    index(p.slot, static_cast<int64_t>(plan_.workspaces.size()), "workspace slot");
  }
  void check(const TensorMapParameter& p) {
    index(p.tensor, plan_.tensorCount, "tensor");
    require(!p.extents.empty() && p.extents.size() <= kMostTensorMapDims, "a tensor map has 1 to 5 dims");
    require(p.box.size() == p.extents.size(), "box and extents differ in length");
    require(p.stridesBytes.size() + 1 == p.extents.size(), "strides and extents differ in length");
    for (const Extent& e : p.extents) extent(e, "extent");
    for (const Extent& e : p.stridesBytes) extent(e, "stride");
    for (uint32_t b : p.box) require(b >= 1, "empty box");
  }
  void extent(const Extent& e, const char* what) {
    if (e.symbol != -1) index(e.symbol, plan_.symbolCount, std::string(what) + " symbol");
    int64_t most = e.symbol == -1 ? kMostStaticFactor : kMostSymbolicFactor;
    require(e.factor >= 0 && e.factor <= most, std::string(what) + " factor is out of range");
    require(e.divisor >= 1 && e.divisor <= kMostSymbolicFactor, std::string(what) + " divisor is out of range");
  }
  void index(int64_t i, int64_t count, const std::string& what) {
    require(i >= 0 && i < count, what + " " + std::to_string(i) + " of " + std::to_string(count));
  }
  void require(bool holds, const std::string& why) {
    if (!holds && error_.empty()) error_ = where_ + (where_.empty() ? "" : ": ") + why;
  }

  const Plan& plan_;
  std::string where_, error_;
};

}  // namespace

std::string Precondition::describe() const {
  std::string which = std::to_string(index);
  if (kind == Kind::kAlignment) return "tensor " + which + " is aligned to " + std::to_string(low) + " bytes";
  return "symbol " + which + " lies in " + std::to_string(low) + ".." + std::to_string(high);
}

void Plan::encode(ByteWriter& writer) const {
  writer.u32(static_cast<uint32_t>(artefacts.size()));
  for (const Artefact& a : artefacts) {
    writer.u8(static_cast<uint8_t>(a.kind));
    writer.u64(a.digest.high);
    writer.u64(a.digest.low);
    writer.blob(a.bytes);
  }
  encodeRest(writer, *this);
}

Plan Plan::decode(ByteReader& reader) {
  Plan plan;
  uint32_t artefacts = reader.count(25);
  for (uint32_t i = 0; i < artefacts && reader.good(); ++i) {
    Artefact a;
    a.kind = static_cast<ArtefactKind>(reader.u8());
    a.digest.high = reader.u64();
    a.digest.low = reader.u64();
    a.bytes = reader.blob();
    if (reader.good() && digestOf(a.bytes) != a.digest) reader.fail("an artefact does not have its digest");
    plan.artefacts.push_back(std::move(a));
  }
  uint32_t launches = reader.count(100);
  for (uint32_t i = 0; i < launches && reader.good(); ++i) plan.launches.push_back(decodeLaunch(reader));
  uint32_t workspaces = reader.count(9 + kExtentBytes);
  for (uint32_t i = 0; i < workspaces && reader.good(); ++i) {
    Workspace w;
    w.kind = static_cast<WorkspaceKind>(reader.u8());
    w.alignmentBytes = reader.i64();
    w.bytes = decodeExtent(reader);
    plan.workspaces.push_back(w);
  }
  uint32_t preconditions = reader.count(21);
  for (uint32_t i = 0; i < preconditions && reader.good(); ++i) {
    Precondition p;
    p.kind = static_cast<Precondition::Kind>(reader.u8());
    p.index = reader.i32();
    p.low = reader.i64();
    p.high = reader.i64();
    plan.preconditions.push_back(p);
  }
  plan.tensorCount = reader.i32();
  plan.symbolCount = reader.i32();
  plan.safeWithDependentLaunch = reader.boolean();
  if (!reader.good()) return {};
  if (Status status = plan.validate(); !status.isOk()) {
    reader.fail(status.message());
    return {};
  }
  return plan;
}

std::string Plan::bytes() const {
  ByteWriter writer;
  writer.raw(kPlanMagic);
  writer.u32(kPlanVersion);
  encode(writer);
  writer.u64(checksumOf(writer.bytes()));
  return writer.take();
}

Result<Plan> Plan::fromBytes(std::string_view bytes) {
  constexpr size_t kChecksumBytes = 8;
  if (bytes.size() < kPlanMagic.size() + 4 + kChecksumBytes || bytes.substr(0, kPlanMagic.size()) != kPlanMagic) {
    return corrupt("these bytes are no plan");
  }
  std::string_view covered = bytes.substr(0, bytes.size() - kChecksumBytes);
  ByteReader trailer(bytes.substr(covered.size()));
  if (trailer.u64() != checksumOf(covered)) return corrupt("plan: wrong checksum");
  ByteReader reader(covered.substr(kPlanMagic.size()));
  uint32_t version = reader.u32();
  if (version != kPlanVersion) {
    return unsupported("plan version " + std::to_string(version) + "; this build reads " +
                       std::to_string(kPlanVersion));
  }
  Plan plan = decode(reader);
  KTUNE_TRY(reader.finish());
  return plan;
}

Status Plan::validate() const {
  return Validator(*this).run();
}

Digest Plan::digest() const {
  ByteWriter writer;
  writer.u32(static_cast<uint32_t>(artefacts.size()));
  for (const Artefact& a : artefacts) {
    writer.u8(static_cast<uint8_t>(a.kind));
    writer.u64(a.digest.high);
    writer.u64(a.digest.low);
  }
  encodeRest(writer, *this);
  return digestOf(writer.bytes());
}

}  // namespace ktune::cache
