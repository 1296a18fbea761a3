#include "runtime/launch/devices/cuda/Cubin.h"

#include <elf.h>

#include <cstring>
#include <string>

namespace ktune::runtime::cuda {

namespace {

constexpr uint16_t kCudaMachine = 190;  // EM_CUDA

template <typename T>
bool readAt(std::string_view bytes, uint64_t offset, T& value) {
  if (offset > bytes.size() || bytes.size() - offset < sizeof(T)) return false;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return true;
}

Status cutShort() {
  return corrupt("the cubin is cut short");
}

}  // namespace

Status inspectCubin(std::string_view bytes) {
  Elf64_Ehdr header;
  if (!readAt(bytes, 0, header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
      header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_machine != kCudaMachine)
    return corrupt("the artefact is no cubin");
  if (header.e_shentsize != sizeof(Elf64_Shdr) || header.e_shnum == 0) return corrupt("the cubin has no sections");
  const auto sectionAt = [&](uint64_t index, Elf64_Shdr& section) {
    return readAt(bytes, header.e_shoff + index * sizeof section, section);
  };
  Elf64_Shdr names;
  if (header.e_shoff > bytes.size() || !sectionAt(header.e_shstrndx, names) || names.sh_offset > bytes.size() ||
      bytes.size() - names.sh_offset < names.sh_size)
    return cutShort();
  const std::string_view table = bytes.substr(names.sh_offset, names.sh_size);
  for (uint64_t i = 0; i < header.e_shnum; ++i) {
    Elf64_Shdr section;
    if (!sectionAt(i, section)) return cutShort();
    // The driver copies a section's bytes; those without bytes in the file are fine wherever they claim to be.
    if (section.sh_type != SHT_NOBITS && section.sh_type != SHT_NULL &&
        (section.sh_offset > bytes.size() || bytes.size() - section.sh_offset < section.sh_size))
      return cutShort();
    if (section.sh_name >= table.size()) return cutShort();
    const std::string_view rest = table.substr(section.sh_name);
    const std::string_view name = rest.substr(0, rest.find('\0'));
    // __device__ variables lie in .nv.global and .nv.global.init, constants in .nv.constant*. Shared memory, which
    // lives as long as its block, is the only other thing that is writable. .nv.global.init can't be refused: NVRTC
    // puts every constexpr of a namespace or class there, although no code refers to it; who compiles refuses those
    // that are used.
    if (section.sh_size != 0 && (section.sh_flags & SHF_WRITE) && (section.sh_flags & SHF_ALLOC) &&
        !name.starts_with(".nv.shared") && name != ".nv.global.init")
      return unsupported("the cubin keeps state between calls: it has variables in the device's memory (section " +
                         std::string(name) + ")");
  }
  return Status::ok();
}

}  // namespace ktune::runtime::cuda
