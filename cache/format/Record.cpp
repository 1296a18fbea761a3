#include "cache/format/Record.h"

#include <cmath>

namespace ktune::cache {

namespace {

constexpr std::string_view kRecordMagic = "KTUNEREC";
constexpr uint32_t kRecordVersion = 2;
// The frame is the same in every version: magic, version, payload length; payload; checksum of all before it.
constexpr size_t kHeaderBytes = 8 + 4 + 8, kChecksumBytes = 8;
constexpr std::string_view kDecisionNames[] = {"tuned", "default", "use-fallback"};

void encodeDigest(ByteWriter& w, const Digest& d) {
  w.u64(d.high);
  w.u64(d.low);
}

Digest decodeDigest(ByteReader& r) {
  Digest d;
  d.high = r.u64();
  d.low = r.u64();
  return d;
}

void encodeIntegers(ByteWriter& w, const std::vector<int64_t>& values) {
  w.u32(static_cast<uint32_t>(values.size()));
  for (int64_t v : values) w.i64(v);
}

std::vector<int64_t> decodeIntegers(ByteReader& r) {
  std::vector<int64_t> values;
  uint32_t count = r.count(8);
  for (uint32_t i = 0; i < count && r.good(); ++i) values.push_back(r.i64());
  return values;
}

double decodeFinite(ByteReader& r) {
  double v = r.f64();
  if (!std::isfinite(v)) r.fail("a figure is not finite");
  return v;
}

void encodeEvidence(ByteWriter& w, const Evidence& e) {
  w.u64(e.seed);
  w.u32(static_cast<uint32_t>(e.points.size()));
  for (const PointEvidence& p : e.points) {
    encodeIntegers(w, p.symbolValues);
    w.f64(p.medianNs);
    w.f64(p.defaultMedianNs);
    w.i64(p.samples);
    w.f64(p.bytes);
    w.f64(p.operations);
  }
  for (double v : {e.ratio, e.ratioLow, e.ratioHigh, e.confidence}) w.f64(v);
  w.i64(e.candidates);
  w.i64(e.measured);
  w.u32(static_cast<uint32_t>(e.rejections.size()));
  for (const auto& [reason, count] : e.rejections) {
    w.text(reason);
    w.i64(count);
  }
  w.u32(static_cast<uint32_t>(e.checks.size()));
  for (const std::string& c : e.checks) w.text(c);
  w.f64(e.worstErrorShare);
  encodeDigest(w, e.planDigest);
  w.f64(e.tuningSeconds);
  w.f64(e.copyBytesPerSecond);
  w.i64(e.unixTime);
  w.text(e.regime);
  w.text(e.proposer);
  for (double v : {e.clockMhz, e.powerWatts, e.temperatureC}) w.f64(v);
  w.text(e.throttle);
}

Evidence decodeEvidence(ByteReader& r, uint32_t version) {
  Evidence e;
  e.seed = r.u64();
  uint32_t points = r.count(44);
  for (uint32_t i = 0; i < points && r.good(); ++i) {
    PointEvidence p;
    p.symbolValues = decodeIntegers(r);
    p.medianNs = decodeFinite(r);
    p.defaultMedianNs = decodeFinite(r);
    p.samples = r.i64();
    p.bytes = decodeFinite(r);
    p.operations = decodeFinite(r);
    e.points.push_back(std::move(p));
  }
  for (double* v : {&e.ratio, &e.ratioLow, &e.ratioHigh, &e.confidence}) *v = decodeFinite(r);
  e.candidates = r.i64();
  e.measured = r.i64();
  uint32_t rejections = r.count(12);
  for (uint32_t i = 0; i < rejections && r.good(); ++i) {
    std::string reason = r.text();
    int64_t count = r.i64();
    if (!e.rejections.emplace(std::move(reason), count).second) r.fail("a rejection reason occurs twice");
  }
  uint32_t checks = r.count(4);
  for (uint32_t i = 0; i < checks && r.good(); ++i) e.checks.push_back(r.text());
  e.worstErrorShare = decodeFinite(r);
  e.planDigest = decodeDigest(r);
  e.tuningSeconds = decodeFinite(r);
  e.copyBytesPerSecond = decodeFinite(r);
  e.unixTime = r.i64();
  e.regime = r.text();
  e.proposer = r.text();
  if (version < 2) return e;
  for (double* v : {&e.clockMhz, &e.powerWatts, &e.temperatureC}) *v = decodeFinite(r);
  e.throttle = r.text();
  return e;
}

}  // namespace

std::string_view decisionName(Decision decision) {
  auto i = static_cast<size_t>(decision);
  return i < std::size(kDecisionNames) ? kDecisionNames[i] : "unknown";
}

std::string Record::bytes() const {
  ByteWriter w;
  encodeDigest(w, key.digest);
  w.i32(bucketIndex);
  encodeIntegers(w, bucket.low);
  encodeIntegers(w, bucket.high);
  w.blob(canonical);
  w.text(hardware);
  for (const std::string* s : {&stamp.ktune, &stamp.compiler, &stamp.driver, &stamp.verifier}) w.text(*s);
  w.u8(static_cast<uint8_t>(decision));
  genome.encode(w);
  plan.encode(w);
  encodeEvidence(w, evidence);

  ByteWriter frame;
  frame.raw(kRecordMagic);
  frame.u32(kRecordVersion);
  frame.blob(w.bytes());
  frame.u64(checksumOf(frame.bytes()));
  return frame.take();
}

Result<Record> Record::fromBytes(std::string_view bytes) {
  if (bytes.size() < kHeaderBytes + kChecksumBytes) return corrupt("record: too short");
  if (bytes.substr(0, kRecordMagic.size()) != kRecordMagic) return corrupt("record: these bytes are no record");
  std::string_view covered = bytes.substr(0, bytes.size() - kChecksumBytes);
  ByteReader trailer(bytes.substr(covered.size()));
  if (trailer.u64() != checksumOf(covered)) return corrupt("record: wrong checksum");
  ByteReader header(covered.substr(kRecordMagic.size()));
  uint32_t version = header.u32();
  uint64_t length = header.u64();
  if (length != covered.size() - kHeaderBytes) return corrupt("record: wrong length");
  if (version < 1 || version > kRecordVersion) {
    return unsupported("record version " + std::to_string(version) + "; this build reads up to " +
                       std::to_string(kRecordVersion));
  }

  ByteReader r(covered.substr(kHeaderBytes));
  Record record;
  record.key.digest = decodeDigest(r);
  record.bucketIndex = r.i32();
  record.bucket.low = decodeIntegers(r);
  record.bucket.high = decodeIntegers(r);
  record.canonical = r.blob();
  record.hardware = r.text();
  Stamp& stamp = record.stamp;
  for (std::string* s : {&stamp.ktune, &stamp.compiler, &stamp.driver, &stamp.verifier}) *s = r.text();
  record.decision = static_cast<Decision>(r.u8());
  record.genome = schedule::PlanGenome::decode(r);
  record.plan = Plan::decode(r);
  record.evidence = decodeEvidence(r, version);
  KTUNE_TRY(r.finish().withPrefix("record"));
  if (record.decision > Decision::kUseFallback) return corrupt("record: unknown decision");
  if (record.bucketIndex < 0 || record.bucket.low.size() != record.bucket.high.size()) {
    return corrupt("record: impossible bucket");
  }
  return record;
}

}  // namespace ktune::cache
