#include "ir/schedule/Genome.h"

#include "ir/schedule/Scanner.h"

namespace ktune::schedule {

std::string PlanGenome::text() const {
  std::string out = "#ktune.genome<fuse = [";
  for (size_t i = 0; i < fuse.size(); ++i) {
    if (i > 0) out += ", ";
    out += std::to_string(fuse[i]);
  }
  out += "], kernels = [";
  for (size_t i = 0; i < kernels.size(); ++i) {
    if (i > 0) out += ", ";
    out += kernels[i].text();
  }
  return out + "]>";
}

Result<PlanGenome> PlanGenome::parse(std::string_view text) {
  Scanner scan(text);
  PlanGenome genome;
  KTUNE_TRY(scan.expect("#ktune.genome"));
  for (std::string_view token : {"<", "fuse", "=", "["}) KTUNE_TRY(scan.expect(token));
  if (!scan.accept("]")) {
    do {
      KTUNE_ASSIGN(int32_t bit, scan.integer());
      if (bit != 0 && bit != 1) return scan.error("a fusion bit is 0 or 1");
      genome.fuse.push_back(static_cast<uint8_t>(bit));
    } while (scan.accept(","));
    KTUNE_TRY(scan.expect("]"));
  }
  for (std::string_view token : {",", "kernels", "=", "["}) KTUNE_TRY(scan.expect(token));
  if (!scan.accept("]")) {
    do {
      size_t start = scan.offset();
      std::string_view piece = scan.through('>');
      if (piece.empty()) return scan.error("expected a #ktune.schedule<...>");
      Result<KernelSchedule> kernel = KernelSchedule::parse(piece);
      if (!kernel) return kernel.error().withPrefix("schedule after offset " + std::to_string(start));
      genome.kernels.push_back(*kernel);
    } while (scan.accept(","));
    KTUNE_TRY(scan.expect("]"));
  }
  KTUNE_TRY(scan.expect(">"));
  KTUNE_TRY(scan.atEnd());
  return genome;
}

void PlanGenome::encode(ByteWriter& writer) const {
  writer.u32(static_cast<uint32_t>(fuse.size()));
  for (uint8_t bit : fuse) writer.u8(bit);
  writer.u32(static_cast<uint32_t>(kernels.size()));
  for (const KernelSchedule& kernel : kernels) kernel.encode(writer);
}

PlanGenome PlanGenome::decode(ByteReader& reader) {
  PlanGenome genome;
  uint32_t bits = reader.count(1);
  for (uint32_t i = 0; i < bits && reader.good(); ++i) genome.fuse.push_back(reader.boolean() ? 1 : 0);
  uint32_t kernels = reader.count(5);
  for (uint32_t i = 0; i < kernels && reader.good(); ++i) genome.kernels.push_back(KernelSchedule::decode(reader));
  return genome;
}

}  // namespace ktune::schedule
