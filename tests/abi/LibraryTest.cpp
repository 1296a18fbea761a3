// libktune through its C interface, as an engine uses it: linked, not looked into.
#include <gtest/gtest.h>
#include <ktune/ktune.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "abi/Allocations.h"
#include "abi/TestRecord.h"

namespace ktune::abi {
namespace {

struct Free {
  void operator()(void* p) const { std::free(p); }
};
using Buffer = std::unique_ptr<float, Free>;
Buffer makeBuffer(size_t floats, float value = 0) {
  Buffer b(static_cast<float*>(std::aligned_alloc(4096, (floats * sizeof(float) + 4095) / 4096 * 4096)));
  std::fill_n(b.get(), floats, value);
  return b;
}

class Library : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(ktune_context_create(nullptr, &context_), KTUNE_OK) << ktune_last_error(); }
  void TearDown() override {
    ktune_plan_destroy(plan_);
    ktune_device_destroy(device_);
    ktune_operator_destroy(op_);
    ktune_context_destroy(context_);
  }

  void openOperator() {
    const std::string json = addJson();
    ASSERT_EQ(ktune_operator_create(context_, json.data(), json.size(), &op_), KTUNE_OK) << ktune_last_error();
  }
  void openDevice(int threads = 1) {
    ktune_device_options options = KTUNE_DEVICE_OPTIONS_INIT;
    options.threads = threads;
    ASSERT_EQ(ktune_device_open(context_, "cpu", &options, &device_), KTUNE_OK) << ktune_last_error();
  }
  [[nodiscard]] ktune_status readPlan(const cache::Record& record) {
    ktune_plan_destroy(std::exchange(plan_, nullptr));
    const std::string bytes = record.bytes();
    return ktune_plan_from_bytes(context_, bytes.data(), bytes.size(), &plan_);
  }
  void preparePlan(int bucket = 1, const std::string& symbol = "ktune_test_add") {
    ASSERT_EQ(readPlan(addRecord(bucket, symbol)), KTUNE_OK) << ktune_last_error();
    ASSERT_EQ(ktune_plan_prepare(plan_, device_, op_), KTUNE_OK) << ktune_last_error();
  }

  ktune_context* context_ = nullptr;
  ktune_device* device_ = nullptr;
  ktune_operator* op_ = nullptr;
  ktune_plan* plan_ = nullptr;
};

/// The arguments of one run of the add with M rows.
struct Call {
  explicit Call(int64_t m) : rows(m) {
    arguments.tensors = tensors;
    arguments.tensor_count = 3;
    arguments.symbol_values = &rows;
    arguments.symbol_count = 1;
  }
  int64_t rows;
  Buffer a = makeBuffer(16 * 1024, 1.5F), b = makeBuffer(16 * 1024, 2), y = makeBuffer(16 * 1024 + 64, -1);
  void* tensors[3] = {a.get(), b.get(), y.get()};
  ktune_run_arguments arguments = KTUNE_RUN_ARGUMENTS_INIT;
};

void expectError(ktune_status status, ktune_status expected, const std::string& words) {
  EXPECT_EQ(status, expected) << ktune_last_error();
  EXPECT_NE(std::string(ktune_last_error()).find(words), std::string::npos)
      << "message: " << ktune_last_error() << "\nwanted: " << words;
}

TEST(LibraryBasics, VersionAndNames) {
  EXPECT_EQ(ktune_version(), static_cast<uint32_t>(KTUNE_VERSION));
  EXPECT_STREQ(ktune_version_string(), KTUNE_TEST_VERSION);
  EXPECT_STREQ(ktune_status_name(KTUNE_OK), "ok");
  EXPECT_STREQ(ktune_status_name(KTUNE_CORRUPT), "corrupt");
  EXPECT_STREQ(ktune_status_name(KTUNE_INTERNAL), "internal");
  EXPECT_STREQ(ktune_status_name(-1), "unknown");
  EXPECT_STREQ(ktune_status_name(11), "unknown");
}

TEST(LibraryBasics, EveryEntryRefusesNull) {
  // One line per entry that takes a handle or an out parameter.
  EXPECT_EQ(ktune_context_create(nullptr, nullptr), KTUNE_INVALID_ARGUMENT);
  EXPECT_EQ(ktune_device_count(nullptr, nullptr), KTUNE_INVALID_ARGUMENT);
  EXPECT_EQ(ktune_device_at(nullptr, 0, nullptr), KTUNE_INVALID_ARGUMENT);
  EXPECT_EQ(ktune_device_hardware(nullptr, "cpu", nullptr), KTUNE_INVALID_ARGUMENT);
  EXPECT_EQ(ktune_device_open(nullptr, "cpu", nullptr, nullptr), KTUNE_INVALID_ARGUMENT);
  EXPECT_EQ(ktune_operator_create(nullptr, "{}", 2, nullptr), KTUNE_INVALID_ARGUMENT);
  EXPECT_EQ(ktune_operator_label(nullptr, nullptr), KTUNE_INVALID_ARGUMENT);
  EXPECT_EQ(ktune_operator_key(nullptr, "cpu", nullptr), KTUNE_INVALID_ARGUMENT);
  EXPECT_EQ(ktune_operator_tensor_count(nullptr, nullptr), KTUNE_INVALID_ARGUMENT);
  EXPECT_EQ(ktune_operator_tensor_at(nullptr, 0, nullptr), KTUNE_INVALID_ARGUMENT);
  EXPECT_EQ(ktune_operator_tensor_extents(nullptr, 0, nullptr, 0, nullptr, 0, nullptr), KTUNE_INVALID_ARGUMENT);
  EXPECT_EQ(ktune_operator_symbol_count(nullptr, nullptr), KTUNE_INVALID_ARGUMENT);
  EXPECT_EQ(ktune_operator_symbol_name(nullptr, 0, nullptr), KTUNE_INVALID_ARGUMENT);
  EXPECT_EQ(ktune_operator_bucket_count(nullptr, nullptr), KTUNE_INVALID_ARGUMENT);
  EXPECT_EQ(ktune_operator_bucket_range(nullptr, 0, nullptr, nullptr, 0), KTUNE_INVALID_ARGUMENT);
  EXPECT_EQ(ktune_operator_find_bucket(nullptr, nullptr, 0, nullptr), KTUNE_INVALID_ARGUMENT);
  EXPECT_EQ(ktune_plan_from_bytes(nullptr, nullptr, 0, nullptr), KTUNE_INVALID_ARGUMENT);
  EXPECT_EQ(ktune_plan_get_info(nullptr, nullptr), KTUNE_INVALID_ARGUMENT);
  EXPECT_EQ(ktune_plan_prepare(nullptr, nullptr, nullptr), KTUNE_INVALID_ARGUMENT);
  EXPECT_EQ(ktune_plan_workspace(nullptr, nullptr), KTUNE_INVALID_ARGUMENT);
  EXPECT_EQ(ktune_plan_run(nullptr, nullptr), KTUNE_INVALID_ARGUMENT);
  expectError(ktune_plan_run(nullptr, nullptr), KTUNE_INVALID_ARGUMENT, "plan is NULL");
  ktune_context_destroy(nullptr);
  ktune_device_destroy(nullptr);
  ktune_operator_destroy(nullptr);
  ktune_plan_destroy(nullptr);
}

TEST_F(Library, OutParametersMayNotBeNull) {
  openOperator();
  expectError(ktune_device_count(context_, nullptr), KTUNE_INVALID_ARGUMENT, "count is NULL");
  expectError(ktune_device_at(context_, 0, nullptr), KTUNE_INVALID_ARGUMENT, "info is NULL");
  expectError(ktune_device_open(context_, nullptr, nullptr, &device_), KTUNE_INVALID_ARGUMENT, "name is NULL");
  expectError(ktune_device_open(context_, "cpu", nullptr, nullptr), KTUNE_INVALID_ARGUMENT, "device is NULL");
  expectError(ktune_operator_create(context_, nullptr, 0, &op_), KTUNE_INVALID_ARGUMENT, "json is NULL");
  expectError(ktune_operator_key(op_, nullptr, nullptr), KTUNE_INVALID_ARGUMENT, "hardware is NULL");
  expectError(ktune_plan_from_bytes(context_, nullptr, 3, &plan_), KTUNE_INVALID_ARGUMENT, "bytes is NULL");
}

TEST(LibraryStructs, SizesOfOlderAndNewerCallers) {
  ktune_context* context = nullptr;
  ktune_context_options options = KTUNE_CONTEXT_OPTIONS_INIT;
  options.struct_size = 0;
  expectError(ktune_context_create(&options, &context), KTUNE_INVALID_ARGUMENT, "struct_size is 0, at least 32");
  EXPECT_EQ(context, nullptr);

  // A newer caller: fields that we don't know may be there, as long as they are zero.
  struct {
    ktune_context_options known = KTUNE_CONTEXT_OPTIONS_INIT;
    int64_t unknown = 0;
  } newer;
  newer.known.struct_size = sizeof(newer);
  ASSERT_EQ(ktune_context_create(&newer.known, &context), KTUNE_OK) << ktune_last_error();
  newer.unknown = 1;
  ktune_context* other = nullptr;
  expectError(ktune_context_create(&newer.known, &other), KTUNE_UNSUPPORTED, "newer version");

  struct {
    ktune_device_info known = KTUNE_DEVICE_INFO_INIT;
    int64_t unknown = 42;
  } info;
  info.known.struct_size = sizeof(info);
  ASSERT_EQ(ktune_device_at(context, 0, &info.known), KTUNE_OK) << ktune_last_error();
  EXPECT_EQ(info.unknown, 42) << "written past the struct that the library knows";
  EXPECT_EQ(info.known.struct_size, sizeof(info));

  options = KTUNE_CONTEXT_OPTIONS_INIT;
  options.log_level = 6;
  expectError(ktune_context_create(&options, &other), KTUNE_INVALID_ARGUMENT, "log_level is 6");
  options = KTUNE_CONTEXT_OPTIONS_INIT;
  options.reserved = 1;
  expectError(ktune_context_create(&options, &other), KTUNE_INVALID_ARGUMENT, "reserved");
  ktune_context_destroy(context);
}

TEST_F(Library, Devices) {
  size_t count = 0;
  ASSERT_EQ(ktune_device_count(context_, &count), KTUNE_OK);
  ASSERT_GE(count, 1U);
  bool found = false;
  for (size_t i = 0; i < count; ++i) {
    ktune_device_info info = KTUNE_DEVICE_INFO_INIT;
    ASSERT_EQ(ktune_device_at(context_, i, &info), KTUNE_OK) << ktune_last_error();
    const char* hardware = nullptr;
    ASSERT_EQ(ktune_device_hardware(context_, info.name, &hardware), KTUNE_OK) << ktune_last_error();
    EXPECT_STREQ(hardware, info.hardware);
    found |= std::string(info.name) == "cpu" && std::string(info.hardware).rfind("cpu;", 0) == 0;
  }
  EXPECT_TRUE(found);
  ktune_device_info info = KTUNE_DEVICE_INFO_INIT;
  expectError(ktune_device_at(context_, count, &info), KTUNE_NOT_FOUND, "there are");
  const char* hardware = nullptr;
  expectError(ktune_device_hardware(context_, "tpu", &hardware), KTUNE_NOT_FOUND, "cpu");
  expectError(ktune_device_open(context_, "tpu", nullptr, &device_), KTUNE_NOT_FOUND, "cpu");
  expectError(ktune_device_open(context_, "cuda:0", nullptr, &device_), KTUNE_UNSUPPORTED, "cuda");
  ktune_device_options options = KTUNE_DEVICE_OPTIONS_INIT;
  options.threads = -2;
  expectError(ktune_device_open(context_, "cpu", &options, &device_), KTUNE_INVALID_ARGUMENT, "threads is -2");
  options.threads = 1025;
  expectError(ktune_device_open(context_, "cpu", &options, &device_), KTUNE_INVALID_ARGUMENT, "threads is 1025");
  EXPECT_EQ(device_, nullptr) << "a failing call must leave its out parameter alone";
}

TEST_F(Library, OperatorAnswers) {
  openOperator();
  const char* label = nullptr;
  ASSERT_EQ(ktune_operator_label(op_, &label), KTUNE_OK);
  EXPECT_EQ(label, op::label(addGraph()));
  char key[KTUNE_KEY_SIZE];
  ASSERT_EQ(ktune_operator_key(op_, "cpu;test", key), KTUNE_OK);
  EXPECT_EQ(key, op::keyOf(addGraph(), "cpu;test").hex());
  size_t count = 0;
  ASSERT_EQ(ktune_operator_tensor_count(op_, &count), KTUNE_OK);
  ASSERT_EQ(count, 3U);
  ktune_tensor_info tensor = KTUNE_TENSOR_INFO_INIT;
  ASSERT_EQ(ktune_operator_tensor_at(op_, 2, &tensor), KTUNE_OK);
  EXPECT_STREQ(tensor.name, "y");
  EXPECT_EQ(tensor.dtype, KTUNE_F32);
  EXPECT_EQ(tensor.rank, 2);
  EXPECT_EQ(tensor.is_output, 1);
  EXPECT_EQ(tensor.is_constant, 0);
  EXPECT_EQ(tensor.alias, -1);
  EXPECT_EQ(tensor.alignment_bytes, 64);
  expectError(ktune_operator_tensor_at(op_, 3, &tensor), KTUNE_NOT_FOUND, "tensor 3");
  int64_t m = 3;
  int64_t extents[2] = {};
  uint64_t bytes = 0;
  ASSERT_EQ(ktune_operator_tensor_extents(op_, 0, &m, 1, extents, 2, &bytes), KTUNE_OK);
  EXPECT_EQ(extents[0], 3);
  EXPECT_EQ(extents[1], 1024);
  EXPECT_EQ(bytes, 3U * 1024 * 4);
  expectError(ktune_operator_tensor_extents(op_, 0, &m, 1, extents, 1, &bytes), KTUNE_INVALID_ARGUMENT, "room");
  expectError(ktune_operator_tensor_extents(op_, 0, &m, 2, extents, 2, &bytes), KTUNE_INVALID_ARGUMENT, "symbol");
  m = 17;
  expectError(ktune_operator_tensor_extents(op_, 0, &m, 1, extents, 2, &bytes), KTUNE_INVALID_ARGUMENT, "M = 17");
  ASSERT_EQ(ktune_operator_symbol_count(op_, &count), KTUNE_OK);
  ASSERT_EQ(count, 1U);
  const char* name = nullptr;
  ASSERT_EQ(ktune_operator_symbol_name(op_, 0, &name), KTUNE_OK);
  EXPECT_STREQ(name, "M");
  ASSERT_EQ(ktune_operator_bucket_count(op_, &count), KTUNE_OK);
  ASSERT_EQ(count, 2U);
  int64_t low = 0;
  int64_t high = 0;
  ASSERT_EQ(ktune_operator_bucket_range(op_, 1, &low, &high, 1), KTUNE_OK);
  EXPECT_EQ(low, 2);
  EXPECT_EQ(high, 16);
  expectError(ktune_operator_bucket_range(op_, 2, &low, &high, 1), KTUNE_NOT_FOUND, "bucket 2");
  expectError(ktune_operator_bucket_range(op_, 1, &low, &high, 2), KTUNE_INVALID_ARGUMENT, "1 symbols");
  const std::pair<int64_t, size_t> kBuckets[] = {{1, 0}, {2, 1}, {16, 1}};
  for (const auto& [value, expected] : kBuckets) {
    size_t index = 9;
    ASSERT_EQ(ktune_operator_find_bucket(op_, &value, 1, &index), KTUNE_OK);
    EXPECT_EQ(index, expected);
  }
  m = 0;
  size_t index = 9;
  expectError(ktune_operator_find_bucket(op_, &m, 1, &index), KTUNE_NOT_FOUND, "outside 1..16");
  EXPECT_EQ(index, 9U);
}

TEST_F(Library, BadDescriptionsSayWhy) {
  const std::pair<std::string, std::string> kTable[] = {
      {"", "description"},
      {"{", "1:"},
      {"[]", "expected an object"},
      {R"({"inputs": [{"name": "a", "dtype": "f33", "shape": [4]}], "nodes": [], "outputs": []})", "inputs[0].dtype"},
      {R"({"inputs": [{"name": "a", "dtype": "f32", "shape": [4]}],
           "nodes": [{"op": "frobnicate", "inputs": ["a"], "result": "y"}], "outputs": [{"value": "y"}]})",
       "frobnicate"},
      {R"({"inputs": [{"name": "a", "dtype": "f32", "shape": [4]}],
           "nodes": [{"op": "add", "inputs": ["a", "q"], "result": "y"}], "outputs": [{"value": "y"}]})",
       "unknown value 'q'"},
  };
  for (const auto& [json, words] : kTable) {
    expectError(ktune_operator_create(context_, json.data(), json.size(), &op_), KTUNE_INVALID_ARGUMENT, words);
    EXPECT_EQ(op_, nullptr);
  }
  const std::string huge((size_t{4} << 20) + 1, ' ');
  expectError(ktune_operator_create(context_, huge.data(), huge.size(), &op_), KTUNE_INVALID_ARGUMENT, "at most");
  const std::string deep(1 << 20, '[');  // Must not overflow the stack.
  EXPECT_EQ(ktune_operator_create(context_, deep.data(), deep.size(), &op_), KTUNE_INVALID_ARGUMENT);
}

TEST_F(Library, RunsAPlan) {
  openOperator();
  for (const int threads : {1, 2}) {
    ktune_plan_destroy(std::exchange(plan_, nullptr));
    ktune_device_destroy(std::exchange(device_, nullptr));
    openDevice(threads);
    preparePlan();
    ktune_plan_info info = KTUNE_PLAN_INFO_INIT;
    ASSERT_EQ(ktune_plan_get_info(plan_, &info), KTUNE_OK);
    const cache::Record record = addRecord(1);
    EXPECT_EQ(info.key, record.key.hex());
    EXPECT_EQ(info.hardware, record.hardware);
    EXPECT_EQ(info.digest, record.plan.digest().hex());
    EXPECT_EQ(info.bucket_index, 1U);
    EXPECT_EQ(info.decision, KTUNE_DECISION_TUNED);
    ktune_workspace_info workspace = KTUNE_WORKSPACE_INFO_INIT;
    ASSERT_EQ(ktune_plan_workspace(plan_, &workspace), KTUNE_OK);
    EXPECT_EQ(workspace.bytes, 0U);
    for (const int64_t m : {2, 7, 16}) {
      Call run(m);
      ASSERT_EQ(ktune_plan_run(plan_, &run.arguments), KTUNE_OK) << ktune_last_error();
      for (int64_t i = 0; i < m * 1024; ++i) ASSERT_EQ(run.y.get()[i], 3.5F);
      EXPECT_EQ(run.y.get()[m * 1024], -1.0F);
    }
  }
}

TEST_F(Library, WorkspaceIsTheBucketsMost) {
  openOperator();
  openDevice();
  preparePlan(1, "ktune_test_add_slot");
  ktune_workspace_info workspace = KTUNE_WORKSPACE_INFO_INIT;
  ASSERT_EQ(ktune_plan_workspace(plan_, &workspace), KTUNE_OK);
  EXPECT_EQ(workspace.bytes, 16U * 4096);
  EXPECT_EQ(workspace.must_be_zero, 0);
  Call run(2);
  expectError(ktune_plan_run(plan_, &run.arguments), KTUNE_INVALID_ARGUMENT, "workspace of 65536 bytes, got 0");
  const Buffer scratch = makeBuffer(17 * 1024);
  run.arguments.workspace = scratch.get();
  run.arguments.workspace_bytes = workspace.bytes - 1;
  expectError(ktune_plan_run(plan_, &run.arguments), KTUNE_INVALID_ARGUMENT, "got 65535");
  run.arguments.workspace = scratch.get() + 1;
  run.arguments.workspace_bytes = workspace.bytes;
  expectError(ktune_plan_run(plan_, &run.arguments), KTUNE_INVALID_ARGUMENT, "aligned");
  run.arguments.workspace = scratch.get();
  ASSERT_EQ(ktune_plan_run(plan_, &run.arguments), KTUNE_OK) << ktune_last_error();
  EXPECT_EQ(run.y.get()[2047], 3.5F);
}

TEST_F(Library, RunRefusesWrongCalls) {
  openOperator();
  openDevice();
  ASSERT_EQ(readPlan(addRecord(1)), KTUNE_OK) << ktune_last_error();
  {
    Call run(4);
    expectError(ktune_plan_run(plan_, &run.arguments), KTUNE_INVALID_ARGUMENT, "not prepared");
  }
  ASSERT_EQ(ktune_plan_prepare(plan_, device_, op_), KTUNE_OK) << ktune_last_error();
  const std::pair<std::function<void(Call&)>, std::string> kTable[] = {
      {[](Call& r) { r.arguments.struct_size = 8; }, "struct_size"},
      {[](Call& r) { r.arguments.tensor_count = 2; }, "expected 3 tensors, got 2"},
      {[](Call& r) { r.arguments.tensors = nullptr; }, "tensors is NULL"},
      {[](Call& r) { r.tensors[1] = nullptr; }, "tensor 'b' is NULL"},
      {[](Call& r) { r.arguments.symbol_count = 0; }, "expected 1 symbol values, got 0"},
      {[](Call& r) { r.arguments.symbol_values = nullptr; }, "symbol_values is NULL"},
      {[](Call& r) { r.rows = 0; }, "outside 1..16"},
      {[](Call& r) { r.rows = 1; }, "is for M=2..16, not for M=1"},
      {[](Call& r) { r.tensors[2] = r.y.get() + 1; }, "align"},
      {[](Call& r) { r.tensors[2] = r.tensors[0]; }, "output 'y' overlaps tensor 'a'"},
      {[](Call& r) { r.tensors[2] = r.b.get() + 3 * 1024; }, "output 'y' overlaps tensor 'b'"},
  };
  for (const auto& [spoil, words] : kTable) {
    Call run(4);
    spoil(run);
    expectError(ktune_plan_run(plan_, &run.arguments), KTUNE_INVALID_ARGUMENT, words);
    EXPECT_EQ(run.y.get()[0], -1.0F) << "computed all the same: " << words;
  }
  Call run(4);
  run.tensors[2] = run.b.get() + 4 * 1024;  // Beside it is not over it.
  EXPECT_EQ(ktune_plan_run(plan_, &run.arguments), KTUNE_OK) << ktune_last_error();
}

TEST_F(Library, RecordsThatContradictThemselves) {
  const cache::Record good = addRecord(1);
  std::string bytes = good.bytes();
  // Damage anywhere is found by the checksum.
  for (size_t at = 0; at < bytes.size(); at += std::max<size_t>(1, bytes.size() / 61)) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    const ktune_status status = ktune_plan_from_bytes(context_, damaged.data(), damaged.size(), &plan_);
    EXPECT_TRUE(status == KTUNE_CORRUPT || status == KTUNE_UNSUPPORTED) << "byte " << at << ": " << status;
    ASSERT_EQ(plan_, nullptr);
  }
  for (const size_t size : {size_t{0}, size_t{7}, bytes.size() - 1}) {
    EXPECT_EQ(ktune_plan_from_bytes(context_, bytes.data(), size, &plan_), KTUNE_CORRUPT);
  }
  // What a checksum cannot find: a whole record that is wrong in itself.
  using Change = std::function<void(cache::Record&)>;
  const std::pair<Change, std::string> kTable[] = {
      {[](cache::Record& r) { r.hardware += "x"; }, "its description and hardware give"},
      {[](cache::Record& r) { r.key.digest.low ^= 1; }, "its description and hardware give"},
      {[](cache::Record& r) { r.bucketIndex = 2; }, "bucket"},
      {[](cache::Record& r) { r.bucketIndex = 0; }, "bucket"},
      {[](cache::Record& r) { r.canonical.resize(r.canonical.size() / 2); }, "description"},
      {[](cache::Record& r) { r.plan.tensorCount = 4; }, "takes 4 tensors"},
      {[](cache::Record& r) { r.plan.launches.clear(); }, "launches nothing"},
      {[](cache::Record& r) { r.plan.artefacts[0].bytes[100] ^= 1; }, "digest"},
  };
  for (const auto& [change, words] : kTable) {
    expectError(readPlan(addRecord(1, "ktune_test_add", change)), KTUNE_CORRUPT, words);
  }
  cache::Record swapped = addRecord(1);
  swapped.evidence.planDigest.high ^= 1;
  expectError(readPlan(swapped), KTUNE_CORRUPT, "not the one that was timed");
}

TEST_F(Library, PrepareRefusesWhatDoesNotFit) {
  openDevice();
  const std::string json = R"({"inputs": [{"name": "a", "dtype": "f32", "shape": [4]},
                                          {"name": "b", "dtype": "f32", "shape": [4]}],
                               "nodes": [{"op": "add", "inputs": ["a", "b"], "result": "y"}],
                               "outputs": [{"value": "y"}]})";
  ASSERT_EQ(ktune_operator_create(context_, json.data(), json.size(), &op_), KTUNE_OK) << ktune_last_error();
  ASSERT_EQ(readPlan(addRecord(1)), KTUNE_OK) << ktune_last_error();
  expectError(ktune_plan_prepare(plan_, device_, op_), KTUNE_INVALID_ARGUMENT, "the plan was made for");
  expectError(ktune_plan_prepare(plan_, nullptr, nullptr), KTUNE_INVALID_ARGUMENT, "device is NULL");

  ASSERT_EQ(readPlan(addRecord(1, "ktune_test_add",
                               [](cache::Record& r) {
                                 r.hardware = "cpu;another";
                                 r.key = op::keyOf(addGraph(), r.hardware);
                               })),
            KTUNE_OK)
      << ktune_last_error();
  expectError(ktune_plan_prepare(plan_, device_, nullptr), KTUNE_UNSUPPORTED, "tuned for \"cpu;another\"");

  ASSERT_EQ(readPlan(addRecord(1, "ktune_test_add",
                               [](cache::Record& r) {
                                 r.decision = cache::Decision::kUseFallback;
                                 r.plan = {};
                               })),
            KTUNE_OK)
      << ktune_last_error();
  expectError(ktune_plan_prepare(plan_, device_, nullptr), KTUNE_NOT_FOUND, "use-fallback");

  ASSERT_EQ(readPlan(addRecord(1, "no_such_symbol")), KTUNE_OK) << ktune_last_error();
  expectError(ktune_plan_prepare(plan_, device_, nullptr), KTUNE_NOT_FOUND, "no_such_symbol");
}

TEST_F(Library, AFailedPrepareKeepsTheEarlierOne) {
  openOperator();
  openDevice();
  preparePlan();
  expectError(ktune_plan_prepare(plan_, nullptr, nullptr), KTUNE_INVALID_ARGUMENT, "device");
  Call run(2);
  EXPECT_EQ(ktune_plan_run(plan_, &run.arguments), KTUNE_OK) << ktune_last_error();
}

TEST_F(Library, HandlesMayGoInAnyOrder) {
  openOperator();
  openDevice(2);
  preparePlan();
  ktune_context_destroy(std::exchange(context_, nullptr));
  ktune_device_destroy(std::exchange(device_, nullptr));
  ktune_operator_destroy(std::exchange(op_, nullptr));
  Call run(2);
  EXPECT_EQ(ktune_plan_run(plan_, &run.arguments), KTUNE_OK) << ktune_last_error();
}

TEST_F(Library, RunsOnOneDeviceDoNotOverlap) {
  openOperator();
  openDevice();
  preparePlan(1, "ktune_test_wait");
  ktune_plan* second = nullptr;
  const std::string bytes = addRecord(1).bytes();
  ASSERT_EQ(ktune_plan_from_bytes(context_, bytes.data(), bytes.size(), &second), KTUNE_OK);
  ASSERT_EQ(ktune_plan_prepare(second, device_, op_), KTUNE_OK) << ktune_last_error();
  Call waiting(2);
  auto* flag = reinterpret_cast<int32_t*>(waiting.a.get());
  __atomic_store_n(flag, 0, __ATOMIC_RELEASE);
  std::thread runner([&] { EXPECT_EQ(ktune_plan_run(plan_, &waiting.arguments), KTUNE_OK) << ktune_last_error(); });
  while (__atomic_load_n(flag, __ATOMIC_ACQUIRE) != 1) std::this_thread::yield();
  Call run(2);
  expectError(ktune_plan_run(second, &run.arguments), KTUNE_UNAVAILABLE, "in progress");
  __atomic_store_n(flag, 2, __ATOMIC_RELEASE);
  runner.join();
  EXPECT_EQ(ktune_plan_run(second, &run.arguments), KTUNE_OK) << ktune_last_error();
  ktune_plan_destroy(second);
}

TEST_F(Library, RunAllocatesNothing) {
#ifdef KTUNE_SANITIZED
  GTEST_SKIP() << "sanitizers bring their own allocator";
#endif
  openOperator();
  openDevice(2);
  preparePlan(1, "ktune_test_add_slot");
  Call run(5);
  const Buffer scratch = makeBuffer(16 * 1024);
  run.arguments.workspace = scratch.get();
  run.arguments.workspace_bytes = 16 * 4096;
  startCounting();
  const ktune_status first = ktune_plan_run(plan_, &run.arguments);
  const ktune_status second = ktune_plan_run(plan_, &run.arguments);
  const int64_t duringRuns = stopCounting();
  EXPECT_EQ(first, KTUNE_OK);
  EXPECT_EQ(second, KTUNE_OK);
  EXPECT_EQ(duringRuns, 0);
  // The counter does see libktune.
  const std::string bytes = addRecord(1).bytes();
  ktune_plan* other = nullptr;
  startCounting();
  const ktune_status read = ktune_plan_from_bytes(context_, bytes.data(), bytes.size(), &other);
  EXPECT_GT(stopCounting(), 0);
  EXPECT_EQ(read, KTUNE_OK);
  ktune_plan_destroy(other);
}

// Every allocation of these calls fails once: the answer is a status, never a crash, and the next try works.
// ktune_operator_create is left out: the JSON library's destructors allocate, and end the process when they can't.
TEST(LibraryErrors, OutOfMemoryIsAStatus) {
#ifdef KTUNE_SANITIZED
  GTEST_SKIP() << "sanitizers bring their own allocator";
#endif
  const std::string bytes = addRecord(1).bytes();
  ktune_context* context = nullptr;
  ktune_device* device = nullptr;
  ktune_plan* plan = nullptr;
  size_t count = 0;
  ktune_device_options options = KTUNE_DEVICE_OPTIONS_INIT;
  options.threads = 1;
  const std::pair<const char*, std::function<ktune_status()>> kSteps[] = {
      {"context", [&] { return ktune_context_create(nullptr, &context); }},
      {"devices", [&] { return ktune_device_count(context, &count); }},
      {"open", [&] { return ktune_device_open(context, "cpu", &options, &device); }},
      {"read", [&] { return ktune_plan_from_bytes(context, bytes.data(), bytes.size(), &plan); }},
      {"prepare", [&] { return ktune_plan_prepare(plan, device, nullptr); }},
  };
  for (const auto& [name, step] : kSteps) {
    int64_t failures = 0;
    for (int64_t n = 0;; ++n) {
      failAllocation(n);
      const ktune_status status = step();
      failAllocation(-1);
      if (status == KTUNE_OK) break;
      ASSERT_EQ(status, KTUNE_RESOURCE_EXHAUSTED) << name << ", allocation " << n << ": " << ktune_last_error();
      ++failures;
      ASSERT_LT(n, 100000) << name;
    }
    EXPECT_GT(failures, 0) << name;
  }
  Call run(2);
  EXPECT_EQ(ktune_plan_run(plan, &run.arguments), KTUNE_OK) << ktune_last_error();
  ktune_plan_destroy(plan);
  ktune_device_destroy(device);
  ktune_context_destroy(context);
}

TEST(LibraryLog, EachContextHasItsOwn) {
  struct Seen {
    std::vector<std::pair<int, std::string>> messages;
  };
  const auto record = [](void* user, int32_t level, const char* message) {
    static_cast<Seen*>(user)->messages.emplace_back(level, message);
  };
  Seen loud;
  Seen quiet;
  ktune_context_options options = KTUNE_CONTEXT_OPTIONS_INIT;
  options.log_level = KTUNE_LOG_INFO;
  options.log_function = record;
  options.log_user_data = &loud;
  ktune_context* a = nullptr;
  ASSERT_EQ(ktune_context_create(&options, &a), KTUNE_OK);
  options.log_level = KTUNE_LOG_ERROR;
  options.log_user_data = &quiet;
  ktune_context* b = nullptr;
  ASSERT_EQ(ktune_context_create(&options, &b), KTUNE_OK);
  const std::string bytes = addRecord(1).bytes();
  for (ktune_context* context : {a, b}) {
    ktune_device* device = nullptr;
    ktune_plan* plan = nullptr;
    ASSERT_EQ(ktune_device_open(context, "cpu", nullptr, &device), KTUNE_OK);
    ASSERT_EQ(ktune_plan_from_bytes(context, bytes.data(), bytes.size(), &plan), KTUNE_OK);
    ASSERT_EQ(ktune_plan_prepare(plan, device, nullptr), KTUNE_OK) << ktune_last_error();
    ktune_plan_destroy(plan);
    ktune_device_destroy(device);
  }
  ASSERT_EQ(loud.messages.size(), 1U);
  EXPECT_EQ(loud.messages[0].first, KTUNE_LOG_INFO);
  EXPECT_NE(loud.messages[0].second.find("prepared add"), std::string::npos) << loud.messages[0].second;
  EXPECT_TRUE(quiet.messages.empty());
  ktune_context_destroy(a);
  ktune_context_destroy(b);
}

TEST(LibraryLog, AThrowingSinkDoesNoHarm) {
  ktune_context_options options = KTUNE_CONTEXT_OPTIONS_INIT;
  options.log_level = KTUNE_LOG_DEBUG;
  options.log_function = [](void*, int32_t, const char*) { throw 1; };
  ktune_context* context = nullptr;
  ASSERT_EQ(ktune_context_create(&options, &context), KTUNE_OK);
  const std::string bytes = addRecord(1).bytes();
  ktune_device* device = nullptr;
  ktune_plan* plan = nullptr;
  ASSERT_EQ(ktune_device_open(context, "cpu", nullptr, &device), KTUNE_OK);
  ASSERT_EQ(ktune_plan_from_bytes(context, bytes.data(), bytes.size(), &plan), KTUNE_OK);
  EXPECT_EQ(ktune_plan_prepare(plan, device, nullptr), KTUNE_OK);
  ktune_plan_destroy(plan);
  ktune_device_destroy(device);
  ktune_context_destroy(context);
}

TEST(LibraryErrors, EachThreadHasItsOwnMessage) {
  EXPECT_NE(ktune_device_count(nullptr, nullptr), KTUNE_OK);
  const std::string mine = ktune_last_error();
  std::string before;
  std::string after;
  std::thread([&] {
    before = ktune_last_error();
    EXPECT_NE(ktune_operator_label(nullptr, nullptr), KTUNE_OK);
    after = ktune_last_error();
  }).join();
  EXPECT_EQ(before, "");
  EXPECT_EQ(after, "op is NULL");
  EXPECT_EQ(ktune_last_error(), mine);
}

TEST_F(Library, AForkedChildGetsErrorsAndNoHang) {
#ifdef KTUNE_SANITIZED
  GTEST_SKIP() << "a sanitizer's own threads do not survive fork()";
#endif
  openOperator();
  openDevice(2);
  preparePlan();
  Call run(2);
  ASSERT_EQ(ktune_plan_run(plan_, &run.arguments), KTUNE_OK);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);  // A hang is killed, and seen by the parent.
    size_t count = 0;
    if (ktune_plan_run(plan_, &run.arguments) != KTUNE_UNAVAILABLE) ::_exit(1);
    if (std::string(ktune_last_error()).find("before fork()") == std::string::npos) ::_exit(2);
    if (ktune_device_count(context_, &count) != KTUNE_UNAVAILABLE) ::_exit(3);
    if (ktune_plan_prepare(plan_, device_, op_) != KTUNE_UNAVAILABLE) ::_exit(4);
    ktune_plan_destroy(plan_);
    ktune_device_destroy(device_);
    ktune_operator_destroy(op_);
    ktune_context_destroy(context_);
    // A new context works, threads and all.
    context_ = nullptr;
    device_ = nullptr;
    plan_ = nullptr;
    if (ktune_context_create(nullptr, &context_) != KTUNE_OK) ::_exit(5);
    ktune_device_options options = KTUNE_DEVICE_OPTIONS_INIT;
    options.threads = 2;
    if (ktune_device_open(context_, "cpu", &options, &device_) != KTUNE_OK) ::_exit(6);
    if (readPlan(addRecord(1)) != KTUNE_OK) ::_exit(7);
    if (ktune_plan_prepare(plan_, device_, nullptr) != KTUNE_OK) ::_exit(8);
    if (ktune_plan_run(plan_, &run.arguments) != KTUNE_OK) ::_exit(9);
    ktune_plan_destroy(plan_);
    ktune_device_destroy(device_);
    ktune_context_destroy(context_);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "killed by signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(ktune_plan_run(plan_, &run.arguments), KTUNE_OK) << "the parent is not harmed";
}

}  // namespace
}  // namespace ktune::abi
