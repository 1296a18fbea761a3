/* A program that opens libktune as a plug-in would. usage: client LIBRARY twice|simple [MARKER]
 * MARKER: a symbol that a preloaded library must define, so that the test knows that it is there. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <ktune/ktune.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Functions of the library, found by name. */
struct api {
  void* handle;
  ktune_status (*context_create)(const ktune_context_options*, ktune_context**);
  void (*context_destroy)(ktune_context*);
  ktune_status (*device_hardware)(ktune_context*, const char*, const char**);
  ktune_status (*device_open)(ktune_context*, const char*, const ktune_device_options*, ktune_device**);
  void (*device_destroy)(ktune_device*);
  ktune_status (*operator_create)(ktune_context*, const char*, size_t, ktune_operator**);
  ktune_status (*operator_label)(const ktune_operator*, const char**);
  ktune_status (*operator_key)(const ktune_operator*, const char*, char*);
  void (*operator_destroy)(ktune_operator*);
  ktune_status (*plan_from_bytes)(ktune_context*, const void*, size_t, ktune_plan**);
  const char* (*last_error)(void);
};

static void fail(const char* what, const char* why) {
  fprintf(stderr, "client: %s: %s\n", what, why);
  exit(1);
}

static void find(void* handle, const char* name, void* slot) {
  void* symbol = dlsym(handle, name);
  if (symbol == NULL) fail(name, "missing");
  memcpy(slot, &symbol, sizeof symbol);
}

static struct api open_library(const char* path) {
  struct api a;
  a.handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (a.handle == NULL) fail("dlopen", dlerror());
  find(a.handle, "ktune_context_create", &a.context_create);
  find(a.handle, "ktune_context_destroy", &a.context_destroy);
  find(a.handle, "ktune_device_hardware", &a.device_hardware);
  find(a.handle, "ktune_device_open", &a.device_open);
  find(a.handle, "ktune_device_destroy", &a.device_destroy);
  find(a.handle, "ktune_operator_create", &a.operator_create);
  find(a.handle, "ktune_operator_label", &a.operator_label);
  find(a.handle, "ktune_operator_key", &a.operator_key);
  find(a.handle, "ktune_operator_destroy", &a.operator_destroy);
  find(a.handle, "ktune_plan_from_bytes", &a.plan_from_bytes);
  find(a.handle, "ktune_last_error", &a.last_error);
  return a;
}

static const char kJson[] =
    "{\"symbols\": [{\"name\": \"M\", \"max\": 16}],"
    " \"inputs\": [{\"name\": \"x\", \"dtype\": \"f32\", \"shape\": [\"M\", 256]},"
    "              {\"name\": \"w\", \"dtype\": \"f32\", \"shape\": [256], \"constant\": true}],"
    " \"nodes\": [{\"op\": \"rms_norm\", \"inputs\": [\"x\", \"w\"], \"result\": \"y\","
    "             \"attributes\": {\"eps\": 1e-6}}],"
    " \"outputs\": [{\"value\": \"y\"}]}";

#define CHECK(a, call) \
  if ((call) != KTUNE_OK) fail(#call, (a)->last_error())

static void use(const struct api* a) {
  ktune_context* context = NULL;
  ktune_device* device = NULL;
  ktune_operator* op = NULL;
  ktune_plan* plan = NULL;
  ktune_device_options options = KTUNE_DEVICE_OPTIONS_INIT;
  const char* hardware = NULL;
  const char* label = NULL;
  char key[KTUNE_KEY_SIZE];
  options.threads = 2;
  CHECK(a, a->context_create(NULL, &context));
  CHECK(a, a->device_hardware(context, "cpu", &hardware));
  CHECK(a, a->device_open(context, "cpu", &options, &device));
  CHECK(a, a->operator_create(context, kJson, sizeof kJson - 1, &op));
  CHECK(a, a->operator_label(op, &label));
  CHECK(a, a->operator_key(op, hardware, key));
  if (strlen(key) != 32) fail("key", key);
  if (a->plan_from_bytes(context, kJson, sizeof kJson, &plan) != KTUNE_CORRUPT) fail("plan", "nonsense was accepted");
  printf("%s %s\n", label, key);
  a->operator_destroy(op);
  a->device_destroy(device);
  a->context_destroy(context);
}

int main(int argc, char** argv) {
  struct api first;
  if (argc < 3) fail("usage", "client LIBRARY twice|simple [MARKER]");
  if (argc > 3 && dlsym(RTLD_DEFAULT, argv[3]) == NULL) fail(argv[3], "the hostile library is not there");
  first = open_library(argv[1]);
  if (strcmp(argv[2], "twice") == 0) {
    struct api second = open_library(argv[1]);
    use(&first);
    use(&second);
    dlclose(second.handle);
    use(&first);
    dlclose(first.handle);
    if (dlopen(argv[1], RTLD_NOW | RTLD_NOLOAD) != NULL) fail("dlclose", "the library stayed in memory");
    first = open_library(argv[1]);
    use(&first);
  } else {
    use(&first);
  }
  return 0;
}
