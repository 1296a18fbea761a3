// What any inspector must say of a device's memory: what the host's says of the same bytes.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "runtime/launch/Device.h"
#include "runtime/launch/Inspector.h"

namespace ktune::runtime::testing {

class InspectorChecks {
 public:
  InspectorChecks(Device& device, Inspector& tested) : device_(device), tested_(tested) {
    memory_ = *device.allocate(kBytes);
    second_ = *device.allocate(kBytes);
  }

  void run() {
    patterns();
    checksums();
    runsOfEverySize();
    comparisons();
  }

  /// Every block size and place: nothing but the block is written, and the first other byte is found.
  void patterns() {
    const BytePair pair = {0xff, 0x7f};
    for (const size_t begin : {size_t{64}, size_t{65}, size_t{79}, size_t{130}}) {
      for (const size_t bytes : {size_t{0}, size_t{1}, size_t{2}, size_t{15}, size_t{16}, size_t{47}, size_t{5000}}) {
        SCOPED_TRACE(std::to_string(begin) + "+" + std::to_string(bytes));
        std::vector<char> block(kBytes, 'x');
        send(*memory_, block);
        ASSERT_TRUE(tested_.fill(memory_->data() + begin, bytes, pair).isOk());
        ASSERT_TRUE(host_->fill(block.data() + begin, bytes, pair).isOk());
        ASSERT_EQ(received(*memory_), block);
        EXPECT_EQ(*tested_.firstOther(memory_->data() + begin, bytes, pair), std::nullopt);
        for (const size_t at : {size_t{0}, bytes / 2, bytes - 1}) {
          if (at >= bytes) continue;
          // A later byte is wrong, too.
          for (const size_t wrong : {at, bytes - 1}) block[begin + wrong] = static_cast<char>(block[begin + wrong] ^ 4);
          if (at == bytes - 1) block[begin + at] = 'y';
          send(*memory_, block);
          EXPECT_EQ(*tested_.firstOther(memory_->data() + begin, bytes, pair), std::optional<size_t>(at));
          ASSERT_TRUE(host_->fill(block.data() + begin, bytes, pair).isOk());
        }
      }
    }
  }

  /// Any byte that changes, and any two words that change places, change the sum; what lies outside does not.
  void checksums() {
    std::vector<char> block = random(kBytes);
    for (const size_t begin : {size_t{64}, size_t{67}}) {
      for (const size_t bytes : {size_t{0}, size_t{1}, size_t{7}, size_t{8}, size_t{9}, size_t{6001}}) {
        SCOPED_TRACE(std::to_string(begin) + "+" + std::to_string(bytes));
        send(*memory_, block);
        const char* const data = memory_->data() + begin;
        const uint64_t sum = *tested_.checksum(data, bytes);
        EXPECT_EQ(*tested_.checksum(data, bytes), sum);
        std::vector<char> other = block;
        other[begin - 1] = static_cast<char>(other[begin - 1] ^ 1);
        other[begin + bytes] = static_cast<char>(other[begin + bytes] ^ 1);
        send(*memory_, other);
        EXPECT_EQ(*tested_.checksum(data, bytes), sum);
        for (const size_t at : {size_t{0}, bytes / 2, bytes - 1}) {
          if (at >= bytes) continue;
          other = block;
          other[begin + at] = static_cast<char>(other[begin + at] ^ 0x10);
          send(*memory_, other);
          EXPECT_NE(*tested_.checksum(data, bytes), sum) << at;
        }
        if (bytes < 16) continue;
        other = block;
        std::swap_ranges(other.begin() + static_cast<std::ptrdiff_t>(begin),
                         other.begin() + static_cast<std::ptrdiff_t>(begin + 8),
                         other.begin() + static_cast<std::ptrdiff_t>(begin + 8 * (bytes / 8 - 1)));
        send(*memory_, other);
        EXPECT_NE(*tested_.checksum(data, bytes), sum);
      }
    }
  }

  void runsOfEverySize() {
    const BytePair poison[2] = {{0xff, 0x7f}, {0xfe, 0xff}};
    for (const op::DType type : {op::DType::kI8, op::DType::kBF16, op::DType::kF32, op::DType::kF64}) {
      for (const TensorView& view : layouts(type)) {
        for (int change = 0; change < 6; ++change) {
          SCOPED_TRACE(std::string(op::dtypeName(type)) + " " + std::to_string(change));
          std::vector<char> first = random(kBytes), second = first;
          const auto bytesOf = [&](int64_t element) {
            const int64_t columns = view.columns();
            return static_cast<size_t>((view.rowOffset(element / columns) + element % columns * view.columnStride()) *
                                       op::dtypeBytes(type));
          };
          const auto size = static_cast<size_t>(op::dtypeBytes(type));
          const auto unwritten = [&](int64_t element) {
            for (size_t i = 0; i < size; ++i) {
              const size_t at = bytesOf(element) + i;
              first[at] = static_cast<char>(poison[0][at & 1]);
              second[at] = static_cast<char>(poison[1][at & 1]);
            }
          };
          const auto differs = [&](int64_t element) {
            char& byte = second[bytesOf(element) + size - 1];
            byte = static_cast<char>(byte ^ 1);
          };
          const int64_t count = view.rows() * view.columns();
          if (count < 10 && change > 1) continue;
          if (change == 1) unwritten(count - 1), unwritten(count / 2);
          if (change == 2) differs(0), differs(3);
          if (change == 3) differs(count - 1), unwritten(5);
          if (change == 4 && view.strides != TensorView::dense(type, nullptr, view.extents).strides)
            second[bytesOf(view.columns() - 1) + size] = 'z';  // A gap.
          if (change == 5) unwritten(7);
          send(*memory_, first);
          send(*second_, second);
          const BytePair* const given = change == 5 ? nullptr : poison;
          const RunDifferences said = *tested_.compareRuns(view, memory_->data(), second_->data(), given);
          const RunDifferences expected = *host_->compareRuns(view, first.data(), second.data(), given);
          EXPECT_EQ(said.unwritten, expected.unwritten);
          EXPECT_EQ(said.different, expected.different);
          EXPECT_EQ(said.unwritten.has_value() || said.different.has_value(), change != 0 && change != 4);
        }
      }
    }
  }

  /// Every dtype, any bits, values and bounds of every kind: the same worst element, to the bit.
  void comparisons() {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
    for (int t = 0; t < op::kDTypeCount; ++t) {
      const auto type = static_cast<op::DType>(t);
      for (TensorView view : layouts(type)) {
        for (int round = 0; round < 6; ++round) {
          SCOPED_TRACE(std::string(op::dtypeName(type)) + " " + std::to_string(round));
          const std::vector<char> block = random(kBytes);
          const auto count = static_cast<size_t>(view.rows() * view.columns());
          Expected expected{ReferenceValues(count), ReferenceValues(count)};
          view.data = const_cast<char*>(block.data());
          for (int64_t row = 0; row < view.rows(); ++row)
            loadElements(type, view.at(view.rowOffset(row)), view.columnStride(), view.columns(),
                         expected.values.data() + row * view.columns());
          for (size_t i = 0; i < count; ++i) {
            const double value = expected.values[i];
            const double size = std::isfinite(value) ? std::fabs(value) : 1;
            expected.bounds[i] = size * 1e-3 * static_cast<double>(random_() % 100 + 1);
            if (std::isfinite(value)) expected.values[i] += expected.bounds[i] * (random_() % 1000 * 1e-3 - 0.5);
            // Right so far. Now what can't be judged, and what is wrong.
            if (round == 1 && i % 3 == 0) expected.bounds[i] = kInfinity;
            if (round == 2 && i == count / 3) expected.values[i] = value + 3 * expected.bounds[i] + 1;
            if (round == 3 && i % 50 == 7) expected.values[i] = kNaN;
            if (round == 4 && i % 60 == 9) expected.values[i] = -kInfinity;
            if (round == 5) expected.bounds[i] = 0;
          }
          send(*memory_, block);
          Expected copy = expected;
          const std::unique_ptr<KeptReference> here = *host_->keep(expected), there = *tested_.keep(copy);
          EXPECT_EQ(there->bytes(), here->bytes());
          const Comparison wanted = *host_->compare(view, *here);
          view.data = memory_->data();
          const Comparison said = *tested_.compare(view, *there);
          EXPECT_EQ(std::bit_cast<uint64_t>(said.worstShare), std::bit_cast<uint64_t>(wanted.worstShare));
          EXPECT_EQ(said.worstIndex, wanted.worstIndex);
          EXPECT_EQ(said.judged, wanted.judged);
          if (wanted.worstShare > 0) {
            EXPECT_EQ(std::isnan(said.got), std::isnan(wanted.got));
            if (!std::isnan(wanted.got)) {
              EXPECT_EQ(said.got, wanted.got);
            }
            EXPECT_EQ(std::isnan(said.want), std::isnan(wanted.want));
            if (!std::isnan(wanted.want)) {
              EXPECT_EQ(said.want, wanted.want);
            }
          }
          if (round == 0 || round == 2) {
            EXPECT_EQ(said.right(), round == 0);
          }
        }
      }
    }
  }

 private:
  static constexpr size_t kBytes = size_t{96} << 10;
  Device& device_;
  Inspector& tested_;
  const std::unique_ptr<Inspector> host_ = makeHostInspector(op::serialFor());
  std::unique_ptr<DeviceMemory> memory_, second_;
  std::mt19937 random_{5};

  static std::vector<TensorView> layouts(op::DType type) {
    return {TensorView::dense(type, nullptr, {61, 67}),
            {type, nullptr, {5, 7, 19}, {301, 40, 2}},
            TensorView::dense(type, nullptr, {})};
  }
  std::vector<char> random(size_t bytes) {
    std::vector<char> block(bytes);
    for (char& c : block) c = static_cast<char>(random_());
    return block;
  }
  void send(const DeviceMemory& memory, const std::vector<char>& block) {
    ASSERT_TRUE(device_.copyToDevice(memory.data(), block.data(), block.size()).isOk());
  }
  std::vector<char> received(const DeviceMemory& memory) {
    std::vector<char> block(kBytes);
    EXPECT_TRUE(device_.copyFromDevice(block.data(), memory.data(), block.size()).isOk());
    return block;
  }
};

}  // namespace ktune::runtime::testing
