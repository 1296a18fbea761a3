#include "runtime/launch/devices/cpu/CpuDevice.h"

#include <dlfcn.h>
#include <elf.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/Subprocess.h"
#include "runtime/launch/Devices.h"
#include "runtime/launch/ThreadPool.h"

namespace ktune::runtime {

namespace {

using Kernel = void (*)(void* const* arguments, int64_t firstTile, int64_t lastTile);

// ------------------------------------------------------------------------------------------------ reading the ELF

// A shared object's segments. Every read is checked against the file's end.
class ElfView {
 public:
  explicit ElfView(std::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  [[nodiscard]] bool read(uint64_t offset, T& value) const {
    if (offset > bytes_.size() || bytes_.size() - offset < sizeof(T)) return false;
    std::memcpy(&value, bytes_.data() + offset, sizeof(T));
    return true;
  }
  /// The file offset of a virtual address that a loaded segment has in the file.
  [[nodiscard]] bool offsetOf(uint64_t address, uint64_t& offset) const {
    for (const Elf64_Phdr& p : segments) {
      if (p.p_type == PT_LOAD && address >= p.p_vaddr && address - p.p_vaddr < p.p_filesz) {
        offset = p.p_offset + (address - p.p_vaddr);
        return true;
      }
    }
    return false;
  }

  std::vector<Elf64_Phdr> segments;
  std::vector<Elf64_Dyn> dynamic;

  [[nodiscard]] uint64_t dynamicValue(int64_t tag) const {
    for (const Elf64_Dyn& d : dynamic) {
      if (d.d_tag == tag) return d.d_un.d_val;
    }
    return 0;
  }

 private:
  std::string_view bytes_;
};

Status notKernel(const std::string& why) {
  return corrupt("the shared object " + why);
}

// The types of relocation that run code: the loader calls a resolver.
bool isIndirect(uint32_t type) {
#if defined(__aarch64__)
  return type == R_AARCH64_IRELATIVE;
#else
  return type == R_X86_64_IRELATIVE;
#endif
}

Status inspectRelocations(const ElfView& elf, int64_t tableTag, int64_t sizeTag) {
  const uint64_t table = elf.dynamicValue(tableTag);
  const uint64_t size = elf.dynamicValue(sizeTag);
  if (size == 0) return Status::ok();
  uint64_t offset = 0;
  uint64_t symbols = 0;
  if (!elf.offsetOf(table, offset) || !elf.offsetOf(elf.dynamicValue(DT_SYMTAB), symbols))
    return notKernel("is cut short");
  for (uint64_t i = 0; i < size / sizeof(Elf64_Rela); ++i) {
    Elf64_Rela relocation;
    if (!elf.read(offset + i * sizeof relocation, relocation)) return notKernel("is cut short");
    if (isIndirect(static_cast<uint32_t>(ELF64_R_TYPE(relocation.r_info))))
      return notKernel("runs code when it is loaded (an indirect function)");
    const uint64_t index = ELF64_R_SYM(relocation.r_info);
    if (index == 0) continue;
    Elf64_Sym symbol;
    if (!elf.read(symbols + index * sizeof symbol, symbol)) return notKernel("is cut short");
    if (symbol.st_shndx != SHN_UNDEF) continue;
    std::string name;
    uint64_t names = 0;
    char c = 0;
    if (elf.offsetOf(elf.dynamicValue(DT_STRTAB), names)) {
      for (uint64_t at = names + symbol.st_name; name.size() < 80 && elf.read(at, c) && c != 0; ++at) name += c;
    }
    return notKernel("links to nothing by contract, but refers to '" + name + "'");
  }
  return Status::ok();
}

// Everything writable must become read-only after loading: what a kernel could write it could read at its next call,
// and so answer from memory instead of computing (measuring.md, 6).
Status inspectWritable(const ElfView& elf) {
  struct Range {
    uint64_t first, last;
  };
  std::vector<Range> readOnlyLater;
  for (const Elf64_Phdr& p : elf.segments) {
    if (p.p_type == PT_GNU_RELRO) readOnlyLater.push_back({p.p_vaddr, p.p_vaddr + p.p_memsz});
  }
  // The table of the procedure linkage: three words of the loader's and one per call, written by the loader only.
  if (const uint64_t got = elf.dynamicValue(DT_PLTGOT); got != 0)
    readOnlyLater.push_back({got, got + sizeof(uint64_t) * (3 + elf.dynamicValue(DT_PLTRELSZ) / sizeof(Elf64_Rela))});
  std::sort(readOnlyLater.begin(), readOnlyLater.end(), [](auto a, auto b) { return a.first < b.first; });
  for (const Elf64_Phdr& p : elf.segments) {
    if (p.p_type == PT_TLS) return notKernel("has thread-local variables");
    if (p.p_type != PT_LOAD || !(p.p_flags & PF_W)) continue;
    if (p.p_flags & PF_X) return notKernel("has a segment that is writable and executable");
    uint64_t covered = p.p_vaddr;
    for (const Range& range : readOnlyLater) {
      if (range.first <= covered && range.last > covered) covered = range.last;
    }
    if (covered < p.p_vaddr + p.p_memsz)
      return notKernel("has writable variables, in which a kernel could keep an earlier answer");
  }
  return Status::ok();
}

}  // namespace

Status inspectSharedObject(std::string_view bytes) {
  ElfView elf(bytes);
  Elf64_Ehdr header;
  if (!elf.read(0, header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return notKernel("is no ELF file");
#if defined(__aarch64__)
  constexpr int kMachine = EM_AARCH64;
#else
  constexpr int kMachine = EM_X86_64;
#endif
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_type != ET_DYN || header.e_machine != kMachine)
    return notKernel("is not for this machine");
  if (header.e_phentsize != sizeof(Elf64_Phdr) || header.e_phnum > 64) return notKernel("has odd program headers");
  for (int i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    if (!elf.read(header.e_phoff + static_cast<uint64_t>(i) * sizeof segment, segment))
      return notKernel("is cut short");
    elf.segments.push_back(segment);
    if (segment.p_type == PT_LOAD &&
        (segment.p_offset > bytes.size() || bytes.size() - segment.p_offset < segment.p_filesz))
      return notKernel("is cut short");
  }
  for (const Elf64_Phdr& p : elf.segments) {
    if (p.p_type != PT_DYNAMIC) continue;
    for (uint64_t i = 0; i < p.p_filesz / sizeof(Elf64_Dyn); ++i) {
      Elf64_Dyn entry;
      if (!elf.read(p.p_offset + i * sizeof entry, entry)) return notKernel("is cut short");
      if (entry.d_tag == DT_NULL) break;
      elf.dynamic.push_back(entry);
    }
  }
  if (elf.dynamic.empty()) return notKernel("has no dynamic section");
  for (const Elf64_Dyn& entry : elf.dynamic) {
    switch (entry.d_tag) {
      case DT_NEEDED:
      case DT_AUXILIARY:
      case DT_FILTER:
        return notKernel("needs another library");
      case DT_INIT:
      case DT_INIT_ARRAY:
      case DT_FINI:
      case DT_FINI_ARRAY:
        return notKernel("runs code when it is loaded or unloaded");
      case DT_REL:
        return notKernel("has relocations of an unknown form");
      case DT_FLAGS_1:
        // It would stay in memory under its descriptor's name, and a later object under that name would get its code.
        if (entry.d_un.d_val & DF_1_NODELETE) return notKernel("refuses to be unloaded");
        break;
      default:
        break;
    }
  }
  KTUNE_TRY(inspectWritable(elf));
  KTUNE_TRY(inspectRelocations(elf, DT_RELA, DT_RELASZ));
  return inspectRelocations(elf, DT_JMPREL, DT_PLTRELSZ);
}

namespace {

// ------------------------------------------------------------------------------------------------------- loading

// An artefact in memory. The descriptor stays open as long as the library is loaded: the loader knows libraries by
// name, and a name of /proc/self/fd that is used again would give the old code.
class Library {
 public:
  Library() = default;
  Library(Library&& o) noexcept : fd_(std::move(o.fd_)), handle_(std::exchange(o.handle_, nullptr)) {}
  Library& operator=(Library&&) = delete;
  ~Library() {
    if (handle_ != nullptr) ::dlclose(handle_);
  }

  static Result<Library> open(const cache::Artefact& artefact) {
    if (artefact.kind != cache::ArtefactKind::kElfSharedObject)
      return unsupported("the cpu device runs shared objects; this artefact is of kind " +
                         std::to_string(static_cast<int>(artefact.kind)));
    if (digestOf(artefact.bytes) != artefact.digest)
      return corrupt("the artefact's bytes do not have the digest " + artefact.digest.hex());
    KTUNE_TRY(inspectSharedObject(artefact.bytes));
    Library library;
    library.fd_ = UniqueFd(::memfd_create("ktune-kernel", MFD_CLOEXEC));
    if (!library.fd_.valid()) return errnoStatus(errno, "memfd_create");
    for (size_t done = 0; done < artefact.bytes.size();) {
      const ssize_t n = ::write(library.fd_.get(), artefact.bytes.data() + done, artefact.bytes.size() - done);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return errnoStatus(errno, "writing a kernel to memory");
      done += static_cast<size_t>(n);
    }
    const std::string path = "/proc/self/fd/" + std::to_string(library.fd_.get());
    library.handle_ = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library.handle_ == nullptr) return corrupt(std::string("the artefact does not load: ") + ::dlerror());
    return library;
  }

  [[nodiscard]] Kernel find(const std::string& symbol) const {
    return reinterpret_cast<Kernel>(::dlsym(handle_, symbol.c_str()));
  }

 private:
  UniqueFd fd_;
  void* handle_ = nullptr;
};

// How one argument of a launch is made.
struct ArgumentSource {
  enum class Kind : uint8_t { kTensor, kSymbol, kWorkspace, kValue } kind = Kind::kValue;
  size_t index = 0;
  void* value = nullptr;
};

struct LoadedLaunch {
  Kernel kernel = nullptr;
  std::vector<ArgumentSource> sources;
  std::vector<void*> arguments;  ///< Filled anew by every run.
  std::array<cache::Extent, 3> grid;
};

class CpuPlan final : public LoadedPlan {
 public:
  CpuPlan(std::vector<Library> libraries, std::vector<LoadedLaunch> launches, const cache::Plan& plan, ThreadPool& pool)
      : libraries_(std::move(libraries)),
        launches_(std::move(launches)),
        workspaces_(plan.workspaces),
        symbols_(static_cast<size_t>(plan.symbolCount)),
        slotOffsets_(plan.workspaces.size()),
        pool_(pool) {}

  [[nodiscard]] size_t workspaceBytes(const std::vector<int64_t>& symbolValues) const override {
    return workspaceEnd(workspaceSlots(symbolValues));
  }
  [[nodiscard]] std::vector<WorkspaceSlot> workspaceSlots(const std::vector<int64_t>& symbolValues) const override {
    return layOutWorkspace(workspaces_, symbolValues);
  }

  Status run(std::span<void* const> tensors, std::span<const int64_t> symbolValues, void* workspace) override {
    std::copy_n(symbolValues.begin(), symbols_.size(), symbols_.begin());
    layOutWorkspace(workspaces_, symbols_, slotOffsets_);
    for (LoadedLaunch& launch : launches_) {
      for (size_t i = 0; i < launch.sources.size(); ++i) {
        const ArgumentSource& source = launch.sources[i];
        switch (source.kind) {
          case ArgumentSource::Kind::kTensor:
            launch.arguments[i] = tensors[source.index];
            break;
          case ArgumentSource::Kind::kSymbol:
            launch.arguments[i] = reinterpret_cast<void*>(static_cast<intptr_t>(symbols_[source.index]));
            break;
          case ArgumentSource::Kind::kWorkspace:
            launch.arguments[i] = static_cast<char*>(workspace) + slotOffsets_[source.index];
            break;
          case ArgumentSource::Kind::kValue:
            launch.arguments[i] = source.value;
            break;
        }
      }
      int64_t tiles = 1;
      for (const cache::Extent& extent : launch.grid) tiles *= extent.evaluate(symbols_);
      pool_.run(
          tiles,
          [](void* context, int64_t first, int64_t last) {
            const auto& l = *static_cast<const LoadedLaunch*>(context);
            l.kernel(l.arguments.data(), first, last);
          },
          &launch);
    }
    return Status::ok();
  }

 private:
  std::vector<Library> libraries_;
  std::vector<LoadedLaunch> launches_;
  std::vector<cache::Workspace> workspaces_;
  std::vector<int64_t> symbols_;
  std::vector<size_t> slotOffsets_;
  ThreadPool& pool_;
};

Result<ArgumentSource> sourceOf(const cache::LaunchParameter& parameter) {
  using Kind = ArgumentSource::Kind;
  if (const auto* p = std::get_if<cache::PointerParameter>(&parameter))
    return ArgumentSource{Kind::kTensor, static_cast<size_t>(p->tensor), nullptr};
  if (const auto* p = std::get_if<cache::SymbolParameter>(&parameter))
    return ArgumentSource{Kind::kSymbol, static_cast<size_t>(p->symbol), nullptr};
  if (const auto* p = std::get_if<cache::WorkspaceParameter>(&parameter))
    return ArgumentSource{Kind::kWorkspace, static_cast<size_t>(p->slot), nullptr};
  if (const auto* p = std::get_if<cache::ScalarParameter>(&parameter)) {
    if (p->bytes.size() > sizeof(void*)) return unsupported("the cpu device takes scalars of up to 8 bytes");
    ArgumentSource source{Kind::kValue, 0, nullptr};
    std::memcpy(&source.value, p->bytes.data(), p->bytes.size());
    return source;
  }
  return unsupported("the cpu device has no tensor maps");
}

// --------------------------------------------------------------------------------------------------------- device

std::string release() {
  utsname name{};
  return ::uname(&name) == 0 ? std::string(name.sysname) + " " + name.release : "Linux";
}

std::string describe(const CpuIdentity& cpu, const schedule::Target& target) {
  const char* width = target.vectorBytes == 64 ? "AVX-512" : target.vectorBytes == 32 ? "AVX2" : "128-bit vectors";
  return (cpu.model.empty() ? target.architecture : cpu.model) + ", " + std::to_string(target.cores) +
         (target.cores == 1 ? " core, " : " cores, ") + width;
}

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(int threads)
      : identity_(readCpuIdentity()),
        target_(cpuTarget(identity_)),
        driver_(release()),
        pool_(threads > 0 ? threads : usableCores()) {}

  [[nodiscard]] const schedule::Target& target() const override { return target_; }
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::string description() const override { return describe(identity_, target_); }
  [[nodiscard]] std::string driver() const override { return driver_; }

  [[nodiscard]] Result<std::unique_ptr<LoadedPlan>> load(const cache::Plan& plan) override {
    KTUNE_TRY(plan.validate());
    for (const cache::Workspace& workspace : plan.workspaces) {
      if (workspace.alignmentBytes > static_cast<int64_t>(kWorkspaceAlignment))
        return unsupported("a workspace alignment of " + std::to_string(workspace.alignmentBytes) +
                           " bytes; the most is " + std::to_string(kWorkspaceAlignment));
    }
    std::vector<Library> libraries;
    libraries.reserve(plan.artefacts.size());
    for (const cache::Artefact& artefact : plan.artefacts) {
      KTUNE_ASSIGN(Library library, Library::open(artefact));
      libraries.push_back(std::move(library));
    }
    std::vector<LoadedLaunch> launches;
    launches.reserve(plan.launches.size());
    for (const cache::Launch& launch : plan.launches) {
      LoadedLaunch loaded;
      loaded.kernel = libraries[static_cast<size_t>(launch.artefact)].find(launch.symbol);
      if (loaded.kernel == nullptr) return notFound("the artefact has no symbol '" + launch.symbol + "'");
      for (const cache::LaunchParameter& parameter : launch.parameters) {
        KTUNE_ASSIGN(ArgumentSource source, sourceOf(parameter));
        loaded.sources.push_back(source);
      }
      loaded.arguments.resize(loaded.sources.size());
      loaded.grid = launch.grid;
      launches.push_back(std::move(loaded));
    }
    return std::unique_ptr<LoadedPlan>(new CpuPlan(std::move(libraries), std::move(launches), plan, pool_));
  }

  void parallelFor(int64_t count, const std::function<void(int64_t, int64_t)>& body) override {
    pool_.parallelFor(count, 1, body);
  }

 private:
  std::string name_ = "cpu";
  CpuIdentity identity_;
  schedule::Target target_;
  std::string driver_;
  ThreadPool pool_;
};

}  // namespace

schedule::Target cpuTarget(const CpuIdentity& cpu) {
  schedule::Target target;
  target.kind = schedule::DeviceKind::kCpu;
  target.hardware = "cpu;" + cpu.vendor + ";" + std::to_string(cpu.family) + "." + std::to_string(cpu.modelNumber) +
                    "." + std::to_string(cpu.stepping) + ";" + cpu.model + ";features=";
  for (size_t i = 0; i < cpu.features.size(); ++i) target.hardware += (i == 0 ? "" : ",") + cpu.features[i];
  target.hardware += ";cores=" + std::to_string(cpu.logicalCores);
  target.cores = std::max(1, cpu.logicalCores);

#if defined(__x86_64__)
  const bool v2 = cpu.has("sse4_2") && cpu.has("popcnt");
  const bool v3 = v2 && cpu.has("avx2") && cpu.has("fma") && cpu.has("bmi2") && cpu.has("f16c");
  const bool v4 = v3 && cpu.has("avx512f") && cpu.has("avx512dq") && cpu.has("avx512bw") && cpu.has("avx512vl") &&
                  cpu.has("avx512cd");
  target.architecture = v4 ? "x86-64-v4" : v3 ? "x86-64-v3" : v2 ? "x86-64-v2" : "x86-64";
  target.vectorBytes = v4 ? 64 : v3 ? 32 : 16;
  target.vectorRegisters = v4 ? 32 : 16;
#else
  utsname name{};
  target.architecture = ::uname(&name) == 0 ? name.machine : "unknown";
  target.vectorBytes = 16;
  target.vectorRegisters = 32;
#endif
  if (cpu.l1Bytes != 0) target.l1Bytes = cpu.l1Bytes;
  if (cpu.l2Bytes != 0) target.l2Bytes = cpu.l2Bytes;
  target.l3Bytes = cpu.l3Bytes;
  // The rest is for references, compilers and the application.
  target.memoryBytes = availableMemoryBytes() / 2;
  return target;
}

std::unique_ptr<Device> makeCpuDevice(int threads) {
  return std::make_unique<CpuDevice>(threads);
}

std::vector<DeviceInfo> listCpuDevices() {
  const CpuIdentity cpu = readCpuIdentity();
  schedule::Target target = cpuTarget(cpu);
  return {{"cpu", describe(cpu, target), target, release()}};
}

Result<std::unique_ptr<Device>> openCpuDevice(const std::string& name, const DeviceOptions& options) {
  if (name != "cpu") return notFound("there is one cpu device, named 'cpu'; there is no '" + name + "'");
  return makeCpuDevice(options.threads);
}

}  // namespace ktune::runtime
