// What every entry of the C interface goes through: one guard that turns exceptions into status, the calling thread's
// last message, and the reading and filling of structs that begin with their size.
#pragma once

#include <cxxabi.h>
#include <ktune/ktune.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <new>
#include <string>

#include "base/Status.h"

namespace ktune::library {

/// The message of the thread's last failing call.
[[nodiscard]] const char* lastError() noexcept;
void setLastError(const char* message) noexcept;

/// Runs BODY (a function returning Status) and turns what comes out of it, exceptions too, into a status code.
template <typename Body>
ktune_status guarded(Body&& body) {
  try {
    const Status status = body();
    if (status.isOk()) return KTUNE_OK;
    setLastError(status.message().c_str());
    return static_cast<ktune_status>(status.code());
  } catch (const std::bad_alloc&) {
    setLastError("out of memory");
    return KTUNE_RESOURCE_EXHAUSTED;
  } catch (abi::__forced_unwind&) {
    throw;  // pthread_cancel unwinding the caller's thread; swallowing it aborts the process.
  } catch (const std::exception& e) {
    setLastError(e.what());
    return KTUNE_INTERNAL;
  } catch (...) {
    setLastError("unknown exception");
    return KTUNE_INTERNAL;
  }
}

/// Copies a caller's struct into OUT. FIRSTSIZE is the struct's size in version 0.1, the least that is accepted; what
/// the caller's version lacks stays as in OUT; what ours lacks must be zero.
template <typename T>
[[nodiscard]] Status readStruct(const T* in, size_t firstSize, const char* name, T& out) {
  if (in == nullptr) return invalidArgument(std::string(name) + " is NULL");
  if (in->struct_size < firstSize) {
    return invalidArgument(std::string(name) + ".struct_size is " + std::to_string(in->struct_size) + ", at least " +
                           std::to_string(firstSize) + " is needed (initialise it with the ..._INIT macro)");
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(in);
  const size_t known = std::min(in->struct_size, sizeof(T));
  for (size_t i = known; i < in->struct_size; ++i) {
    if (bytes[i] != 0) return unsupported(std::string(name) + " has fields of a newer version of ktune");
  }
  std::memcpy(&out, in, known);
  return Status::ok();
}

/// Fills a caller's struct from VALUE, no further than both versions know; struct_size stays the caller's.
template <typename T>
[[nodiscard]] Status fillStruct(T* out, size_t firstSize, const char* name, T value) {
  if (out == nullptr) return invalidArgument(std::string(name) + " is NULL");
  if (out->struct_size < firstSize) {
    return invalidArgument(std::string(name) + ".struct_size is " + std::to_string(out->struct_size) + ", at least " +
                           std::to_string(firstSize) + " is needed (initialise it with the ..._INIT macro)");
  }
  value.struct_size = out->struct_size;
  std::memcpy(out, &value, std::min(out->struct_size, sizeof(T)));
  return Status::ok();
}

}  // namespace ktune::library
