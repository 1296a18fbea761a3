#include "runtime/nvrtc/Nvrtc.h"

#include <dlfcn.h>
#include <glob.h>
#include <nvrtc.h>
#include <unistd.h>

#include <algorithm>
#include <map>

namespace ktune::nvrtc {

namespace {

// Newest first: an older compiler does not know a newer device.
constexpr const char* kNames[] = {"libnvrtc.so.13", "libnvrtc.so.12"};
constexpr size_t kMostLog = 4000;

std::vector<std::string> expand(const std::string& pattern) {
  glob_t found = {};
  std::vector<std::string> paths;
  if (::glob(pattern.c_str(), 0, nullptr, &found) == 0) {
    for (size_t i = 0; i < found.gl_pathc; ++i) paths.emplace_back(found.gl_pathv[i]);
  }
  ::globfree(&found);
  return paths;
}

struct LibraryFile {
  void* handle = nullptr;
  std::string path;
};

// The file that a handle stands for.
std::string fileOf(void* symbol, const std::string& otherwise) {
  Dl_info info = {};
  return ::dladdr(symbol, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : otherwise;
}

}  // namespace

struct Nvrtc::Table {
#define KTUNE_NVRTC(member, symbol) decltype(&::symbol) member = nullptr;
#include "runtime/nvrtc/Nvrtc.def"
#undef KTUNE_NVRTC
  /// The first symbol that HANDLE lacks, or nullptr.
  const char* fill(void* handle) {
#define KTUNE_NVRTC(member, symbol)                                      \
  member = reinterpret_cast<decltype(member)>(::dlsym(handle, #symbol)); \
  if (member == nullptr) return #symbol;
#include "runtime/nvrtc/Nvrtc.def"
#undef KTUNE_NVRTC
    return nullptr;
  }
};

Nvrtc::Nvrtc() : table_(std::make_unique<Table>()) {}
Nvrtc::~Nvrtc() = default;

std::vector<std::string> nvrtcCandidates(const Settings& settings) {
  std::vector<std::string> candidates;
  // Full paths, so that the library finds its builtins, which lie beside it.
  const auto addFolder = [&candidates](const std::string& folder) {
    for (const char* name : kNames) {
      const std::string path = folder + "/" + name;
      if (::access(path.c_str(), R_OK) == 0) candidates.push_back(path);
    }
  };
  if (!settings.cudaHome.empty()) {
    for (const char* folder : {"/lib64", "/lib", "/targets/x86_64-linux/lib"}) addFolder(settings.cudaHome + folder);
  }
  candidates.insert(candidates.end(), std::begin(kNames), std::end(kNames));
  addFolder("/usr/local/cuda/lib64");
  addFolder("/usr/local/cuda/lib");
  std::vector<std::string> bases;
  if (!settings.virtualEnv.empty()) bases.push_back(settings.virtualEnv + "/lib");
  if (!settings.homeDir.empty()) bases.push_back(settings.homeDir + "/.local/lib");
  bases.insert(bases.end(), {"/usr/local/lib", "/usr/lib"});
  for (const std::string& base : bases) {
    for (const char* packages : {"site-packages", "dist-packages"}) {
      // The wheel nvidia-cuda-nvrtc of CUDA 13, and nvidia-cuda-nvrtc-cu12.
      for (const char* wheel : {"nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"}) {
        for (const std::string& folder : expand(base + "/python3*/" + packages + "/" + wheel)) addFolder(folder);
      }
    }
  }
  return candidates;
}

std::vector<std::string> usedVariables(std::string_view ptx) {
  // Words as PTX has them: names, directives with their dot, instructions with their suffixes.
  const auto isWord = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '$' ||
           c == '%' || c == '.';
  };
  std::vector<std::string_view> words;
  for (size_t i = 0; i < ptx.size();) {
    if (ptx.substr(i, 2) == "//") {
      i = std::min(ptx.find('\n', i), ptx.size());
    } else if (isWord(ptx[i])) {
      const size_t begin = i;
      while (i < ptx.size() && isWord(ptx[i])) ++i;
      words.push_back(ptx.substr(begin, i - begin));
    } else {
      ++i;
    }
  }
  // A declaration: .global, then directives and an alignment's number, then the name.
  std::map<std::string_view, int> uses;
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] != ".global") continue;
    size_t at = i + 1;
    while (at < words.size() && (words[at][0] == '.' || (words[at][0] >= '0' && words[at][0] <= '9'))) ++at;
    if (at < words.size()) uses.emplace(words[at], -1);
  }
  for (const std::string_view word : words) {
    if (const auto found = uses.find(word); found != uses.end()) ++found->second;
  }
  std::vector<std::string> names;
  for (const auto& [name, count] : uses) {
    if (count > 0) names.emplace_back(name);
  }
  return names;
}

Result<std::unique_ptr<Nvrtc>> Nvrtc::open() {
  const Result<Settings> read = readSettings();
  const Settings settings = read ? *read : Settings();
  std::string tooOld;
  for (const std::string& candidate : nvrtcCandidates(settings)) {
    // Never closed: it keeps threads and thread-local data.
    void* const handle = ::dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) continue;
    std::unique_ptr<Nvrtc> nvrtc(new Nvrtc());
    if (const char* missing = nvrtc->table_->fill(handle); missing != nullptr) {
      tooOld = candidate + " has no " + missing;
      continue;
    }
    const Table& table = *nvrtc->table_;
    int major = 0, minor = 0, count = 0;
    if (table.version(&major, &minor) != NVRTC_SUCCESS) {
      tooOld = candidate + " does not say its version";
      continue;
    }
    nvrtc->major_ = major;
    nvrtc->version_ = "NVRTC " + std::to_string(major) + "." + std::to_string(minor);
    nvrtc->path_ = fileOf(reinterpret_cast<void*>(table.version), candidate);
    if (table.getNumSupportedArchs(&count) == NVRTC_SUCCESS && count > 0) {
      nvrtc->architectures_.resize(static_cast<size_t>(count));
      if (table.getSupportedArchs(nvrtc->architectures_.data()) != NVRTC_SUCCESS) nvrtc->architectures_.clear();
    }
    std::sort(nvrtc->architectures_.begin(), nvrtc->architectures_.end());
    return nvrtc;
  }
  if (!tooOld.empty()) return unsupported("NVRTC is too old or broken: " + tooOld + "; ktune needs 12.0 or later");
  return notFound(
      "NVRTC was not found in $CUDA_HOME, by the loader, in /usr/local/cuda or as a Python wheel; "
      "`pip install nvidia-cuda-nvrtc`, or set CUDA_HOME to a CUDA toolkit");
}

Status nvrtcFitsDriver(const std::string& name, int major, int driverVersion) {
  const int driverMajor = driverVersion / 1000;
  if (driverVersion == 0 || driverMajor >= major) return Status::ok();
  const std::string package = "nvidia-cuda-nvrtc" + (driverMajor == 12 ? std::string("-cu12") : std::string());
  return unsupported(name + " makes code that the driver can't load, which speaks CUDA " + std::to_string(driverMajor) +
                     "." + std::to_string(driverVersion % 1000 / 10) + "; install a driver of CUDA " +
                     std::to_string(major) + ", or an NVRTC of CUDA " + std::to_string(driverMajor) +
                     " (`pip install " + package + "`, or a toolkit) and set CUDA_HOME to the folder that has its lib");
}

Status Nvrtc::fitsDriver(int driverVersion) const {
  return nvrtcFitsDriver(version_ + " (" + path_ + ")", major_, driverVersion);
}

Result<const Nvrtc*> Nvrtc::load() {
  static const Result<std::unique_ptr<Nvrtc>> loaded = open();
  if (!loaded) return loaded.error();
  return static_cast<const Nvrtc*>(loaded->get());
}

Result<Compiled> Nvrtc::compile(const Program& program) const {
  const Table& table = *table_;
  const auto describe = [&](nvrtcResult result, const char* what) {
    return std::string(what) + " of " + program.name + ": " + table.getErrorString(result);
  };
  const auto failure = [&](nvrtcResult result, const char* what) -> Status {
    const bool memory = result == NVRTC_ERROR_OUT_OF_MEMORY;
    return {memory ? StatusCode::kResourceExhausted : StatusCode::kInternal, describe(result, what)};
  };

  std::vector<const char*> names, texts, options;
  for (const auto& [name, text] : program.headers) {
    names.push_back(name.c_str());
    texts.push_back(text.c_str());
  }
  for (const std::string& option : program.options) options.push_back(option.c_str());

  struct Handle {
    const Table& table;
    nvrtcProgram program = nullptr;
    ~Handle() {
      if (program != nullptr) (void)table.destroyProgram(&program);
    }
  } handle{table};
  // The order of the arrays is texts, names (nvrtc.h).
  nvrtcResult result = table.createProgram(&handle.program, program.source.c_str(), program.name.c_str(),
                                           static_cast<int>(names.size()), texts.data(), names.data());
  if (result != NVRTC_SUCCESS) return failure(result, "nvrtcCreateProgram");
  const nvrtcResult compiled = table.compileProgram(handle.program, static_cast<int>(options.size()), options.data());

  Compiled output;
  size_t bytes = 0;
  if (table.getProgramLogSize(handle.program, &bytes) == NVRTC_SUCCESS && bytes > 1) {
    output.log.resize(bytes);
    if (table.getProgramLog(handle.program, output.log.data()) != NVRTC_SUCCESS) output.log.clear();
    while (!output.log.empty() && (output.log.back() == '\0' || output.log.back() == '\n')) output.log.pop_back();
  }
  if (compiled == NVRTC_ERROR_COMPILATION || compiled == NVRTC_ERROR_INVALID_OPTION ||
      compiled == NVRTC_ERROR_INVALID_INPUT) {
    const std::string log = output.log.substr(0, kMostLog);
    return invalidArgument(describe(compiled, "compiling") + (log.empty() ? "" : ":\n" + log));
  }
  if (compiled != NVRTC_SUCCESS) {
    Status status = failure(compiled, "compiling");
    return Status(status.code(), status.message() + (output.log.empty() ? "" : ":\n" + output.log.substr(0, kMostLog)));
  }
  result = table.getPTXSize(handle.program, &bytes);
  if (result != NVRTC_SUCCESS) return failure(result, "nvrtcGetPTXSize");
  std::string ptx(bytes, '\0');
  result = table.getPTX(handle.program, ptx.data());
  if (result != NVRTC_SUCCESS) return failure(result, "nvrtcGetPTX");
  if (const std::vector<std::string> variables = usedVariables(ptx); !variables.empty())
    return unsupported(program.name + " uses a variable in the device's memory ('" + variables.front() +
                       "'), in which a kernel could keep an answer from one call to the next; make it a local, an "
                       "argument, or __constant__");
  result = table.getCUBINSize(handle.program, &bytes);
  if (result != NVRTC_SUCCESS) return failure(result, "nvrtcGetCUBINSize");
  if (bytes == 0)
    return invalidArgument(
        "compiling " + program.name +
        " gave no machine code: the options must name a real architecture (--gpu-architecture=sm_90a)");
  output.cubin.resize(bytes);
  result = table.getCUBIN(handle.program, output.cubin.data());
  if (result != NVRTC_SUCCESS) return failure(result, "nvrtcGetCUBIN");
  return output;
}

}  // namespace ktune::nvrtc
