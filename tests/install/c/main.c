#include <ktune/ktune.h>
#include <stdio.h>

int main(void) {
  ktune_context* context = NULL;
  size_t count = 0;
  if (ktune_version() != KTUNE_VERSION) return 1;
  if (ktune_context_create(NULL, &context) != KTUNE_OK || ktune_device_count(context, &count) != KTUNE_OK) {
    fprintf(stderr, "%s\n", ktune_last_error());
    return 1;
  }
  printf("ktune %s, %zu device(s)\n", ktune_version_string(), count);
  ktune_context_destroy(context);
  return count == 0;
}
