#include "runtime/launch/devices/cuda/CudaInspector.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <random>
#include <string_view>
#include <vector>

#include "runtime/launch/devices/cuda/CudaKernels.h"

namespace ktune::runtime::cuda {

// Each block goes over its share of the elements and writes one record of what it found; the host puts the records
// together, so that results depend neither on the order of blocks nor on what lay in the records before.
const char* const kInspectorSource = R"(
typedef unsigned long long u64;
enum { kThreads = 256 };

__device__ u64 mix(u64 h) {
  h ^= h >> 33;
  h *= 0xff51afd7ed558ccdull;
  h ^= h >> 33;
  h *= 0xc4ceb9fe1a85ec53ull;
  return h ^ (h >> 33);
}
// What word I of a sealed reference is combined with.
__device__ u64 sealOf(u64 key, u64 i) { return mix(key + i * 0x9e3779b97f4a7c15ull); }

__device__ u64 firstIndex() { return (u64)blockIdx.x * kThreads + threadIdx.x; }
__device__ u64 indexStep() { return (u64)gridDim.x * kThreads; }

__device__ unsigned char pairByte(u64 pair, u64 offset) { return (unsigned char)(pair >> ((offset & 1) * 8)); }

// The least of the block's values, in thread 0.
__device__ u64 leastOfBlock(u64 value) {
  __shared__ u64 all[kThreads];
  all[threadIdx.x] = value;
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half && all[threadIdx.x + half] < all[threadIdx.x]) all[threadIdx.x] = all[threadIdx.x + half];
  }
  __syncthreads();
  const u64 least = all[0];
  __syncthreads();
  return least;
}

// DATA need not be aligned: chunks of 16 bytes are, and the ends are done by bytes.
extern "C" __global__ void __launch_bounds__(kThreads) ktune_inspect_fill(char* data, u64 bytes, u64 pair) {
  const u64 first = (u64)data / 16 * 16;
  const u64 chunks = ((u64)data + bytes - first + 15) / 16;
  for (u64 c = firstIndex(); c < chunks; c += indexStep()) {
    char* const chunk = (char*)(first + c * 16);
    const u64 offset = (u64)chunk - (u64)data;  // Wraps in front of the block, with the right parity.
    if (chunk >= data && chunk + 16 <= data + bytes) {
      const unsigned two = pairByte(pair, offset) | (unsigned)pairByte(pair, offset + 1) << 8;
      uint4 words;
      words.x = words.y = words.z = words.w = two | two << 16;
      *(uint4*)chunk = words;
    } else {
      for (int i = 0; i < 16; ++i)
        if (chunk + i >= data && chunk + i < data + bytes) chunk[i] = (char)pairByte(pair, offset + i);
    }
  }
}

// records[block]: the offset of the first other byte, or all ones.
extern "C" __global__ void __launch_bounds__(kThreads) ktune_inspect_other(const char* data, u64 bytes, u64 pair,
                                                                           u64* records) {
  const u64 first = (u64)data / 16 * 16;
  const u64 chunks = ((u64)data + bytes - first + 15) / 16;
  u64 found = ~0ull;
  for (u64 c = firstIndex(); c < chunks; c += indexStep()) {
    const char* const chunk = (const char*)(first + c * 16);
    const u64 offset = (u64)chunk - (u64)data;
    if (chunk >= data && chunk + 16 <= data + bytes) {
      const unsigned two = pairByte(pair, offset) | (unsigned)pairByte(pair, offset + 1) << 8;
      const unsigned word = two | two << 16;
      const uint4 words = *(const uint4*)chunk;
      if (words.x == word && words.y == word && words.z == word && words.w == word) continue;
    }
    for (int i = 0; i < 16 && found == ~0ull; ++i)
      if (chunk + i >= data && chunk + i < data + bytes && (unsigned char)chunk[i] != pairByte(pair, offset + i))
        found = offset + i;
  }
  found = leastOfBlock(found);
  if (threadIdx.x == 0) records[blockIdx.x] = found;
}

// records[block]: its part of a sum over words of 8 bytes, each mixed with its place.
extern "C" __global__ void __launch_bounds__(kThreads) ktune_inspect_checksum(const char* data, u64 bytes,
                                                                              u64* records) {
  const u64 words = (bytes + 7) / 8;
  const u64* const aligned = (const u64*)((u64)data / 8 * 8);
  const unsigned skew = (unsigned)((u64)data % 8) * 8;
  u64 sum = 0;
  for (u64 i = firstIndex(); i < words; i += indexStep()) {
    const u64 left = bytes - i * 8;
    u64 word = aligned[i] >> skew;
    // The next word holds bytes of the block only if the last of these lies in it.
    if (skew != 0 && left * 8 > 64 - skew) word |= aligned[i + 1] << (64 - skew);
    if (left < 8) word &= (1ull << (left * 8)) - 1;
    sum += mix(word ^ mix(i + 0x9e3779b97f4a7c15ull));
  }
  __shared__ u64 all[kThreads];
  all[threadIdx.x] = sum;
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) all[threadIdx.x] += all[threadIdx.x + half];
  }
  if (threadIdx.x == 0) records[blockIdx.x] = all[0];
}

// LAYOUT: rank (0: dense), then extents, then strides, eight of each.
__device__ long long offsetOf(const long long* layout, u64 element) {
  int d = (int)layout[0];
  if (d == 0) return (long long)element;
  long long offset = 0;
  while (d-- > 0) {
    const u64 extent = (u64)layout[1 + d];
    offset += (long long)(element % extent) * layout[9 + d];
    element /= extent;
  }
  return offset;
}

// records[2 * block]: the first element that neither run wrote, and the first other one that differs; all ones if none.
// POISON: the pairs of both runs, above 32 bits whether there are any.
extern "C" __global__ void __launch_bounds__(kThreads) ktune_inspect_runs(const char* first, const char* second,
                                                                          u64 size, u64 count, const long long* layout,
                                                                          u64 poison, u64* records) {
  u64 unwritten = ~0ull, different = ~0ull;
  for (u64 e = firstIndex(); e < count; e += indexStep()) {
    const u64 at = (u64)(offsetOf(layout, e) * (long long)size);
    bool equal = true, untouched = poison >> 32 != 0;
    for (u64 i = 0; i < size; ++i) {
      const unsigned char a = (unsigned char)first[at + i], b = (unsigned char)second[at + i];
      equal = equal && a == b;
      untouched = untouched && a == pairByte(poison & 0xffff, at + i) && b == pairByte(poison >> 16 & 0xffff, at + i);
    }
    if (equal) continue;
    if (untouched && e < unwritten) unwritten = e;
    if (!untouched && e < different) different = e;
  }
  unwritten = leastOfBlock(unwritten);
  different = leastOfBlock(different);
  if (threadIdx.x == 0) {
    records[2 * blockIdx.x] = unwritten;
    records[2 * blockIdx.x + 1] = different;
  }
}

extern "C" __global__ void __launch_bounds__(kThreads) ktune_inspect_seal(u64* words, u64 count, u64 key) {
  for (u64 i = firstIndex(); i < count; i += indexStep()) words[i] ^= sealOf(key, i);
}

__device__ u64 bitsAt(const char* data, int bytes) {
  if ((u64)data % (u64)bytes == 0) {
    if (bytes == 8) return *(const u64*)data;
    if (bytes == 4) return *(const unsigned*)data;
    if (bytes == 2) return *(const unsigned short*)data;
  }
  u64 bits = 0;
  for (int i = 0; i < bytes; ++i) bits |= (u64)(unsigned char)data[i] << (8 * i);
  return bits;
}
__device__ double powerOfTwo(int exponent) { return __longlong_as_double((long long)(1023 + exponent) << 52); }
__device__ double infinity() { return __longlong_as_double(0x7ff0000000000000ll); }
__device__ double notANumber() { return __longlong_as_double(0x7ff8000000000000ll); }
// A float of few bits; without infinities the last number of its largest exponent is the only NaN.
__device__ double smallFloat(u64 bits, int exponentBits, int mantissaBits, bool infinities) {
  const int bias = (1 << (exponentBits - 1)) - 1, top = (1 << exponentBits) - 1;
  const int mantissa = (int)bits & ((1 << mantissaBits) - 1), exponent = (int)(bits >> mantissaBits) & top;
  double value;
  if (exponent == top && infinities)
    value = mantissa == 0 ? infinity() : notANumber();
  else if (exponent == top && mantissa == (1 << mantissaBits) - 1)
    value = notANumber();
  else if (exponent == 0)
    value = mantissa * powerOfTwo(1 - bias - mantissaBits);
  else
    value = (mantissa + (1 << mantissaBits)) * powerOfTwo(exponent - bias - mantissaBits);
  return (bits >> (exponentBits + mantissaBits) & 1) != 0 ? -value : value;
}
// TYPE: as op::DType numbers them.
__device__ double elementAt(const char* data, u64 type) {
  switch (type) {
    case 0:
      return __longlong_as_double((long long)bitsAt(data, 8));
    case 1:
      return __uint_as_float((unsigned)bitsAt(data, 4));
    case 2:
      return smallFloat(bitsAt(data, 2), 5, 10, true);
    case 3:
      return __uint_as_float((unsigned)bitsAt(data, 2) << 16);
    case 4:
      return (double)(signed char)*data;
    case 5:
      return (double)(int)bitsAt(data, 4);
    case 6:
      return (double)(long long)bitsAt(data, 8);
    case 7:
      return (double)(unsigned char)*data;
    case 8:
      return smallFloat((unsigned char)*data, 4, 3, false);
    default:
      return smallFloat((unsigned char)*data, 5, 2, true);
  }
}
__device__ u64 elementBytes(u64 type) { return type == 0 || type == 6 ? 8 : type == 1 || type == 5 ? 4 : type < 4 ? 2 : 1; }

// As errorShare() of Inspector.h says it.
__device__ double shareOf(double got, double want, double bound, double allowance) {
  const double wrong = infinity();
  if (bound == wrong) return 0.0;
  if (want != want) return got != got ? 0.0 : wrong;
  if (got != got) return wrong;
  if (fabs(want) == wrong) return got == want ? 0.0 : wrong;
  const double error = fabs(got - want);
  if (error == 0.0) return 0.0;
  const double allowed = bound + allowance;
  return allowed > 0.0 ? error / allowed : wrong;
}

// records[5 * block]: share, element, got, want (as bits) of the worst one, and how many were judged. SEALED: COUNT
// values, then as many bounds. LAYOUT[17]: the allowance, [18]: the key.
extern "C" __global__ void __launch_bounds__(kThreads) ktune_inspect_compare(const char* data, u64 type,
                                                                             const u64* sealed, u64 count,
                                                                             const long long* layout, u64* records) {
  __shared__ double shares[kThreads], gots[kThreads], wants[kThreads];
  __shared__ u64 elements[kThreads], judged[kThreads];
  const double allowance = __longlong_as_double(layout[17]);
  const u64 key = (u64)layout[18], size = elementBytes(type);
  double share = 0.0, got = 0.0, want = 0.0;
  u64 element = 0, judgedHere = 0;
  for (u64 e = firstIndex(); e < count; e += indexStep()) {
    const double value = elementAt(data + offsetOf(layout, e) * (long long)size, type);
    const double expected = __longlong_as_double((long long)(sealed[e] ^ sealOf(key, e)));
    const double bound = __longlong_as_double((long long)(sealed[count + e] ^ sealOf(key, count + e)));
    if (bound != infinity()) ++judgedHere;
    const double s = shareOf(value, expected, bound, allowance);
    if (s > share) {
      share = s;
      element = e;
      got = value;
      want = expected;
    }
  }
  const unsigned t = threadIdx.x;
  shares[t] = share;
  elements[t] = element;
  gots[t] = got;
  wants[t] = want;
  judged[t] = judgedHere;
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (t >= half) continue;
    const unsigned other = t + half;
    judged[t] += judged[other];
    if (shares[other] > shares[t] || (shares[other] == shares[t] && shares[t] > 0.0 && elements[other] < elements[t])) {
      shares[t] = shares[other];
      elements[t] = elements[other];
      gots[t] = gots[other];
      wants[t] = wants[other];
    }
  }
  if (t == 0) {
    u64* const record = records + 5 * blockIdx.x;
    record[0] = (u64)__double_as_longlong(shares[0]);
    record[1] = elements[0];
    record[2] = (u64)__double_as_longlong(gots[0]);
    record[3] = (u64)__double_as_longlong(wants[0]);
    record[4] = judged[0];
  }
}
)";

namespace {

constexpr uint64_t kNone = std::numeric_limits<uint64_t>::max();
constexpr uint64_t kMostBlocks = 1056;  // Eight for each of the multiprocessors of a large device.
constexpr size_t kRecordWords = 5;
// rank, 8 extents, 8 strides, allowance, key.
constexpr size_t kLayoutWords = 19;
constexpr size_t kAllowanceWord = 17, kKeyWord = 18;

uint64_t word(BytePair pair) {
  return static_cast<uint64_t>(pair[0]) | static_cast<uint64_t>(pair[1]) << 8;
}
uint64_t word(const void* address) {
  return reinterpret_cast<uint64_t>(address);
}

class SealedReference final : public KeptReference {
 public:
  SealedReference(std::unique_ptr<DeviceMemory> memory, uint64_t count, uint64_t key, uint64_t checksum)
      : memory(std::move(memory)), count(count), key(key), checksum(checksum) {}
  [[nodiscard]] uint64_t bytes() const override { return 2 * count * sizeof(double); }
  const std::unique_ptr<DeviceMemory> memory;  ///< Values, then bounds.
  const uint64_t count, key;
  const uint64_t checksum;  ///< Of the sealed words.
};

class KernelInspector final : public Inspector {
 public:
  KernelInspector(Device& device, InspectorLaunch launch) : device_(device), launch_(std::move(launch)) {}

  Status fill(char* data, size_t bytes, BytePair pair) override {
    if (bytes == 0) return Status::ok();
    return launch("ktune_inspect_fill", bytes / 16, {word(data), bytes, word(pair)}).status();
  }

  Result<std::optional<size_t>> firstOther(const char* data, size_t bytes, BytePair pair) override {
    if (bytes == 0) return std::optional<size_t>();
    KTUNE_TRY(ensureScratch());
    KTUNE_ASSIGN(const unsigned blocks,
                 launch("ktune_inspect_other", bytes / 16, {word(data), bytes, word(pair), records()}));
    KTUNE_TRY(fetch(blocks));
    const uint64_t found = *std::min_element(fetched_.begin(), fetched_.begin() + blocks);
    return found == kNone ? std::optional<size_t>() : std::optional<size_t>(found);
  }

  Result<uint64_t> checksum(const char* data, size_t bytes) override {
    if (bytes == 0) return uint64_t{0};
    KTUNE_TRY(ensureScratch());
    KTUNE_ASSIGN(const unsigned blocks, launch("ktune_inspect_checksum", bytes / 8, {word(data), bytes, records()}));
    KTUNE_TRY(fetch(blocks));
    uint64_t sum = 0;
    for (unsigned b = 0; b < blocks; ++b) sum += fetched_[b];
    return sum;
  }

  Result<RunDifferences> compareRuns(const TensorView& view, const char* first, const char* second,
                                     const BytePair* poison) override {
    KTUNE_TRY(ensureScratch());
    KTUNE_TRY(sendLayout(view, 0, 0));
    const auto count = static_cast<uint64_t>(view.rows() * view.columns());
    if (count == 0) return RunDifferences{};
    const uint64_t pairs = poison == nullptr ? 0 : word(poison[0]) | word(poison[1]) << 16 | uint64_t{1} << 32;
    KTUNE_ASSIGN(const unsigned blocks,
                 launch("ktune_inspect_runs", count,
                        {word(first), word(second), static_cast<uint64_t>(op::dtypeBytes(view.dtype)), count, layout(),
                         pairs, records()}));
    KTUNE_TRY(fetch(2 * blocks));
    uint64_t unwritten = kNone, different = kNone;
    for (unsigned b = 0; b < blocks; ++b) {
      unwritten = std::min(unwritten, fetched_[2 * b]);
      different = std::min(different, fetched_[2 * b + 1]);
    }
    const auto found = [](uint64_t i) {
      return i == kNone ? std::nullopt : std::optional<int64_t>(static_cast<int64_t>(i));
    };
    return RunDifferences{found(unwritten), found(different)};
  }

  Result<std::unique_ptr<KeptReference>> keep(Expected& expected) override {
    const uint64_t count = expected.values.size();
    if (expected.bounds.size() != count) return internalError("a reference needs a bound for each value");
    const size_t bytes = count * sizeof(double);
    KTUNE_ASSIGN(std::unique_ptr<DeviceMemory> memory, device_.allocate(std::max<size_t>(1, 2 * bytes)));
    const uint64_t key = uint64_t{random_()} << 32 | random_();
    if (count != 0) {
      KTUNE_TRY(device_.copyToDevice(memory->data(), expected.values.data(), bytes));
      KTUNE_TRY(device_.copyToDevice(memory->data() + bytes, expected.bounds.data(), bytes));
      KTUNE_TRY(launch("ktune_inspect_seal", 2 * count, {word(memory->data()), 2 * count, key}).status());
    }
    KTUNE_ASSIGN(const uint64_t sealed, checksum(memory->data(), 2 * bytes));
    return std::unique_ptr<KeptReference>(std::make_unique<SealedReference>(std::move(memory), count, key, sealed));
  }

  Result<Comparison> compare(const TensorView& got, const KeptReference& kept) override {
    // An inspector's references are its own.
    const auto& reference = static_cast<const SealedReference&>(kept);
    const auto count = static_cast<uint64_t>(got.rows() * got.columns());
    if (count != reference.count) return internalError("a reference of another size");
    if (count == 0) return Comparison{};
    KTUNE_ASSIGN(const uint64_t present, checksum(reference.memory->data(), reference.bytes()));
    if (present != reference.checksum) return corrupt("a kept reference was written over");
    KTUNE_TRY(ensureScratch());
    KTUNE_TRY(sendLayout(got, flushAllowance(got.dtype), reference.key));
    KTUNE_ASSIGN(const unsigned blocks, launch("ktune_inspect_compare", count,
                                               {word(got.data), static_cast<uint64_t>(got.dtype),
                                                word(reference.memory->data()), count, layout(), records()}));
    KTUNE_TRY(fetch(kRecordWords * blocks));
    Comparison total;
    for (unsigned b = 0; b < blocks; ++b) {
      const uint64_t* const record = fetched_.data() + kRecordWords * b;
      const auto share = std::bit_cast<double>(record[0]);
      const auto index = static_cast<int64_t>(record[1]);
      total.judged += static_cast<int64_t>(record[4]);
      if (!(share > total.worstShare || (share == total.worstShare && share > 0 && index < total.worstIndex))) continue;
      total.worstShare = share;
      total.worstIndex = index;
      total.got = std::bit_cast<double>(record[2]);
      total.want = std::bit_cast<double>(record[3]);
    }
    return total;
  }

 private:
  Device& device_;
  const InspectorLaunch launch_;
  std::random_device random_;
  std::unique_ptr<DeviceMemory> scratch_;  ///< Records of the blocks, then the layout.
  std::vector<uint64_t> fetched_;

  static constexpr size_t kRecordsBytes = kMostBlocks * kRecordWords * sizeof(uint64_t);

  Status ensureScratch() {
    if (scratch_ != nullptr) return Status::ok();
    KTUNE_ASSIGN(scratch_, device_.allocate(kRecordsBytes + kLayoutWords * sizeof(int64_t)));
    return Status::ok();
  }
  [[nodiscard]] uint64_t records() const { return word(scratch_->data()); }
  [[nodiscard]] uint64_t layout() const { return word(scratch_->data() + kRecordsBytes); }

  Status sendLayout(const TensorView& view, double allowance, uint64_t key) {
    int64_t words[kLayoutWords] = {};
    const bool dense = view.strides == TensorView::dense(view.dtype, nullptr, view.extents).strides;
    const size_t rank = view.extents.size();
    if (rank > op::kMaxRank) return internalError("a tensor of too many dims");
    words[0] = dense ? 0 : static_cast<int64_t>(rank);
    std::copy(view.extents.begin(), view.extents.end(), words + 1);
    std::copy(view.strides.begin(), view.strides.end(), words + 1 + op::kMaxRank);
    words[kAllowanceWord] = std::bit_cast<int64_t>(allowance);
    words[kKeyWord] = static_cast<int64_t>(key);
    return device_.copyToDevice(scratch_->data() + kRecordsBytes, words, sizeof words);
  }

  // Returns the number of blocks.
  Result<unsigned> launch(const char* name, uint64_t items, std::initializer_list<uint64_t> arguments) {
    const auto blocks = static_cast<unsigned>(
        std::clamp<uint64_t>((items + kInspectorThreads - 1) / kInspectorThreads, 1, kMostBlocks));
    KTUNE_TRY(launch_(name, blocks, std::span<const uint64_t>(arguments.begin(), arguments.size())));
    return blocks;
  }

  Status fetch(size_t words) {
    fetched_.resize(std::max(words, fetched_.size()));
    return device_.copyFromDevice(fetched_.data(), scratch_->data(), words * sizeof(uint64_t));
  }
};

}  // namespace

std::unique_ptr<Inspector> makeKernelInspector(Device& device, InspectorLaunch launch) {
  return std::make_unique<KernelInspector>(device, std::move(launch));
}

Result<std::unique_ptr<Inspector>> makeCudaInspector(std::shared_ptr<CudaContext> context, Device& device,
                                                     const std::string& cubin) {
  constexpr const char* kNames[] = {"ktune_inspect_fill", "ktune_inspect_other", "ktune_inspect_checksum",
                                    "ktune_inspect_runs", "ktune_inspect_seal",  "ktune_inspect_compare"};
  KTUNE_ASSIGN(std::shared_ptr<CudaKernels> kernels,
               CudaKernels::load(std::move(context), cubin, "an inspector's kernel", kNames));
  return makeKernelInspector(device, [kernels](const char* name, unsigned blocks, std::span<const uint64_t> arguments) {
    return kernels->launch(name, blocks, 1, kInspectorThreads, arguments);
  });
}

}  // namespace ktune::runtime::cuda
