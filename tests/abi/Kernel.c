/* A cpu kernel as the tuner makes them: an object that links to nothing. y = a + b, one row of 1024 floats a tile. */
#include <stdint.h>

void ktune_test_add(void* const* arguments, int64_t first_tile, int64_t last_tile) {
  const float* a = arguments[0];
  const float* b = arguments[1];
  float* y = arguments[2];
  for (int64_t i = first_tile * 1024; i < last_tile * 1024; ++i) y[i] = a[i] + b[i];
}

/* The same through a workspace slot: arguments[3] has room for a row per tile. */
void ktune_test_add_slot(void* const* arguments, int64_t first_tile, int64_t last_tile) {
  float* scratch = arguments[3];
  for (int64_t row = first_tile; row < last_tile; ++row) {
    for (int64_t i = row * 1024; i < (row + 1) * 1024; ++i) scratch[i] = ((const float*)arguments[0])[i];
    for (int64_t i = row * 1024; i < (row + 1) * 1024; ++i) {
      ((float*)arguments[2])[i] = scratch[i] + ((const float*)arguments[1])[i];
    }
  }
}

/* Keeps its runner in the kernel until another thread clears the flag that the first tensor begins with. */
void ktune_test_wait(void* const* arguments, int64_t first_tile, int64_t last_tile) {
  int32_t* flag = arguments[0];
  (void)last_tile;
  if (first_tile != 0) return;
  __atomic_store_n(flag, 1, __ATOMIC_RELEASE);
  while (__atomic_load_n(flag, __ATOMIC_ACQUIRE) == 1) {
  }
}
