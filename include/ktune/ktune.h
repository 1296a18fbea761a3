/*
 * ktune.h: the C interface of libktune, the library that an inference engine loads to run tuned kernels.
 *
 * libktune is light: it contains no compiler, no CUDA and no database, and loads on a machine without a GPU. It starts
 * no process, opens no socket, and starts threads only in ktune_device_open() when the caller asks for more than one.
 *
 * Rules of the whole interface
 *
 * - Status. A function that can fail returns a ktune_status: KTUNE_OK (0) or what kind of failure happened.
 *   ktune_last_error() has the message of the last failing call of the calling thread. When a call fails, its out
 *   parameters are left as they were, unless stated otherwise. No C++ exception leaves libktune.
 * - Handles. ktune_context, ktune_device, ktune_operator and ktune_plan are opaque. Each is destroyed by its own
 *   ktune_..._destroy(), which accepts NULL. A handle keeps what it needs alive: destroy them in any order.
 * - Structs begin with `struct_size`, set by the caller to sizeof the struct (the ..._INIT macros do). Newer versions
 *   only append fields: an older caller's missing fields take their default (zero), and a newer caller's fields that
 *   this library does not know must be zero, else the call fails with KTUNE_UNSUPPORTED. Result structs are filled no
 *   further than struct_size.
 * - Strings are UTF-8 and end with a zero byte. A returned string belongs to the handle that returned it and lives as
 *   long as that handle.
 * - Threads. Contexts and operators are immutable: any number of threads may use one at a time. A plan is used by one
 *   thread at a time. Runs on one device handle do not overlap: a run that finds another in progress fails with
 *   KTUNE_UNAVAILABLE and computes nothing. Threads that run plans at the same time open a device each.
 * - fork(). In a child process the handles made by its parent are dead: their functions fail with KTUNE_UNAVAILABLE
 *   (they never hang), and destroying one only forgets it. Create a new context in the child.
 * - Compatibility. Symbols and numbers are only added, never changed or removed, within one major version.
 *
 * docs/library.md shows a whole program.
 */
#ifndef KTUNE_KTUNE_H
#define KTUNE_KTUNE_H

#include <stddef.h>
#include <stdint.h>

#define KTUNE_VERSION_MAJOR 0
#define KTUNE_VERSION_MINOR 1
#define KTUNE_VERSION_PATCH 0
/* The version of this header as one number, to be compared with ktune_version(). */
#define KTUNE_VERSION ((KTUNE_VERSION_MAJOR << 16) | (KTUNE_VERSION_MINOR << 8) | KTUNE_VERSION_PATCH)

#if defined(__GNUC__) || defined(__clang__)
#define KTUNE_API __attribute__((visibility("default")))
#else
#define KTUNE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- status --------------------------------------------------------------------------------------------------- */

/* What kind of failure happened. The numbers are stable; a caller must accept numbers that it does not know. */
typedef int32_t ktune_status;
enum {
  KTUNE_OK = 0,
  KTUNE_INVALID_ARGUMENT = 1,   /* The caller's input is wrong: a NULL handle, bad JSON, a value outside its range. */
  KTUNE_NOT_FOUND = 2,          /* A named thing (device, bucket) does not exist. */
  KTUNE_UNSUPPORTED = 3,        /* Well-formed, but this build or device cannot do it. */
  KTUNE_CORRUPT = 4,            /* Stored bytes fail their checksum, do not decode or contradict themselves. */
  KTUNE_PERMISSION_DENIED = 5,  /* The operating system refused access. */
  KTUNE_RESOURCE_EXHAUSTED = 6, /* Memory or a stated cap ran out. */
  KTUNE_DEADLINE_EXCEEDED = 7,  /* A time limit passed. */
  KTUNE_CANCELLED = 8,          /* The caller asked to stop. */
  KTUNE_UNAVAILABLE = 9,        /* Busy or missing now: another run in progress, a handle of a parent process. */
  KTUNE_INTERNAL = 10           /* A broken invariant of ktune itself. Please report it. */
};

/* "invalid-argument" and so on; "unknown" for a number that this library does not know. Never NULL. */
KTUNE_API const char* ktune_status_name(ktune_status status);

/* The message of the last call of this thread that did not return KTUNE_OK; "" when there was none. Never NULL. Valid
 * until this thread's next failing call. Messages longer than 1023 bytes are cut. A successful call leaves it alone,
 * so ask only after a failure. */
KTUNE_API const char* ktune_last_error(void);

/* ---- version -------------------------------------------------------------------------------------------------- */

/* The version of the loaded library: KTUNE_VERSION of the header that it was built with. */
KTUNE_API uint32_t ktune_version(void);
/* "0.1.0". */
KTUNE_API const char* ktune_version_string(void);

/* ---- context -------------------------------------------------------------------------------------------------- */

typedef struct ktune_context ktune_context;

enum {
  KTUNE_LOG_DEFAULT = 0, /* What the environment variable KTUNE_LOG says, else warnings and errors. */
  KTUNE_LOG_DEBUG = 1,
  KTUNE_LOG_INFO = 2,
  KTUNE_LOG_WARNING = 3,
  KTUNE_LOG_ERROR = 4,
  KTUNE_LOG_SILENT = 5
};

/* Receives one message, without a line end. LEVEL is KTUNE_LOG_DEBUG to KTUNE_LOG_ERROR. Called on the thread whose
 * ktune call caused the message, one message at a time per process; must not throw or longjmp. */
typedef void (*ktune_log_function)(void* user_data, int32_t level, const char* message);

typedef struct ktune_context_options {
  size_t struct_size;
  int32_t log_level;               /* Least level that is delivered: KTUNE_LOG_... */
  int32_t reserved;                /* Must be 0. */
  ktune_log_function log_function; /* NULL: lines on standard error. */
  void* log_user_data;             /* Handed to log_function. */
} ktune_context_options;
#define KTUNE_CONTEXT_OPTIONS_INIT \
  { sizeof(ktune_context_options), 0, 0, NULL, NULL }

/* Makes a context: the root of everything else. A process may have several; they share nothing but the code.
 * Reads the environment here and never later: KTUNE_LOG (docs/settings.md); no other variable matters to libktune.
 * OPTIONS may be NULL for the defaults. Errors: KTUNE_INVALID_ARGUMENT (context is NULL, a bad option or variable),
 * KTUNE_UNSUPPORTED (options of a newer version), KTUNE_RESOURCE_EXHAUSTED. */
KTUNE_API ktune_status ktune_context_create(const ktune_context_options* options, ktune_context** context);
KTUNE_API void ktune_context_destroy(ktune_context* context);

/* ---- devices -------------------------------------------------------------------------------------------------- */

typedef struct ktune_device ktune_device;

typedef struct ktune_device_info {
  size_t struct_size;
  const char* name;        /* "cpu": what ktune_device_open() takes. */
  const char* description; /* One line for people. */
  const char* hardware;    /* Identity text; part of the key of everything tuned for this device. */
} ktune_device_info;
#define KTUNE_DEVICE_INFO_INIT \
  { sizeof(ktune_device_info), NULL, NULL, NULL }

typedef struct ktune_device_options {
  size_t struct_size;
  int32_t threads;  /* cpu: threads that run a plan, the caller's included. 0 or 1: the caller's thread alone, none is
                       started. -1: one per usable core (affinity mask and control group). At most 1024. */
  int32_t reserved; /* Must be 0. */
} ktune_device_options;
#define KTUNE_DEVICE_OPTIONS_INIT \
  { sizeof(ktune_device_options), 0, 0 }

/* Number of devices that this library can use on this machine, at least 1 (the processor). Looked up once per context.
 * Errors: KTUNE_INVALID_ARGUMENT. */
KTUNE_API ktune_status ktune_device_count(ktune_context* context, size_t* count);
/* Describes device INDEX, best first. The strings belong to the context.
 * Errors: KTUNE_INVALID_ARGUMENT; KTUNE_NOT_FOUND for INDEX >= the count. */
KTUNE_API ktune_status ktune_device_at(ktune_context* context, size_t index, ktune_device_info* info);
/* The identity text of the device NAME, for ktune_operator_key(). The string belongs to the context.
 * Errors: KTUNE_INVALID_ARGUMENT; KTUNE_NOT_FOUND, listing the devices there are. */
KTUNE_API ktune_status ktune_device_hardware(ktune_context* context, const char* name, const char** hardware);

/* Opens a device and, when OPTIONS ask for them, starts its threads; ktune_device_destroy() ends them once the last
 * plan prepared on it is destroyed too. OPTIONS may be NULL.
 * Errors: KTUNE_INVALID_ARGUMENT; KTUNE_NOT_FOUND (no such device); KTUNE_UNSUPPORTED (a device that this build
 * lacks). Threads that the system refuses to start are done without. */
KTUNE_API ktune_status ktune_device_open(ktune_context* context, const char* name, const ktune_device_options* options,
                                         ktune_device** device);
KTUNE_API void ktune_device_destroy(ktune_device* device);

/* ---- operators ------------------------------------------------------------------------------------------------ */

/* A verified operator description: typed input tensors, a small graph, output tensors, a numeric contract, and symbols
 * (sizes known at run time, such as the tokens) whose ranges are cut into buckets. Each bucket has a plan of its own.
 */
typedef struct ktune_operator ktune_operator;

/* Element types; the numbers are those of the canonical form. */
enum {
  KTUNE_F64 = 0,
  KTUNE_F32 = 1,
  KTUNE_F16 = 2,
  KTUNE_BF16 = 3,
  KTUNE_I8 = 4,
  KTUNE_I32 = 5,
  KTUNE_I64 = 6,
  KTUNE_BOOL = 7,
  KTUNE_F8E4M3 = 8,
  KTUNE_F8E5M2 = 9
};

typedef struct ktune_tensor_info {
  size_t struct_size;
  const char* name;        /* Belongs to the operator. */
  int32_t dtype;           /* KTUNE_F32, ... */
  int32_t rank;            /* Number of dims. */
  int32_t is_output;       /* 0 or 1. */
  int32_t is_constant;     /* 1: an input whose bytes never change (weights). */
  int32_t alias;           /* Outputs: index of the input whose memory it overwrites, or -1. Inputs: -1. */
  int32_t reserved;        /* 0. */
  int64_t alignment_bytes; /* Alignment that the first element must have. */
} ktune_tensor_info;
#define KTUNE_TENSOR_INFO_INIT \
  { sizeof(ktune_tensor_info), NULL, 0, 0, 0, 0, -1, 0, 0 }

/* Reads and verifies one description in JSON (docs/manifest.md), LENGTH bytes at JSON (at most 4 MiB; no zero byte at
 * the end is needed).
 * Errors: KTUNE_INVALID_ARGUMENT naming the line and column or the field that is wrong; KTUNE_UNSUPPORTED (an operator
 * has no such dtype); KTUNE_RESOURCE_EXHAUSTED. Here alone memory that runs out can also end the process: the JSON
 * reader's destructors allocate. */
KTUNE_API ktune_status ktune_operator_create(ktune_context* context, const char* json, size_t length,
                                             ktune_operator** op);
KTUNE_API void ktune_operator_destroy(ktune_operator* op);

/* A short name for people ("rms_norm_f32_Mx4096"); not unique. Errors: KTUNE_INVALID_ARGUMENT. */
KTUNE_API ktune_status ktune_operator_label(const ktune_operator* op, const char** label);

#define KTUNE_KEY_SIZE 33 /* 32 hex digits and the zero byte. */
/* The key of this operator on HARDWARE (ktune_device_hardware()): what `ktune list` and `ktune show` print.
 * Errors: KTUNE_INVALID_ARGUMENT. */
KTUNE_API ktune_status ktune_operator_key(const ktune_operator* op, const char* hardware, char key[KTUNE_KEY_SIZE]);

/* Tensors: inputs in the order of the description, then outputs. This is the order that a run takes them in.
 * Errors: KTUNE_INVALID_ARGUMENT; KTUNE_NOT_FOUND for INDEX >= the count. */
KTUNE_API ktune_status ktune_operator_tensor_count(const ktune_operator* op, size_t* count);
KTUNE_API ktune_status ktune_operator_tensor_at(const ktune_operator* op, size_t index, ktune_tensor_info* info);
/* The extents of tensor INDEX at the given symbol values, outermost first; RANK (of ktune_tensor_info) values are
 * written to EXTENTS, which has room for CAPACITY; and, when BYTES is not NULL, how many bytes the tensor spans from
 * its first to the end of its last element (strides included).
 * Errors: KTUNE_INVALID_ARGUMENT (a symbol value outside its range, CAPACITY < rank); KTUNE_NOT_FOUND (INDEX). */
KTUNE_API ktune_status ktune_operator_tensor_extents(const ktune_operator* op, size_t index,
                                                     const int64_t* symbol_values, size_t symbol_count,
                                                     int64_t* extents, size_t capacity, uint64_t* bytes);

/* Symbols, in the order in which symbol values are passed everywhere. Errors: KTUNE_INVALID_ARGUMENT; KTUNE_NOT_FOUND
 * for INDEX >= the count. */
KTUNE_API ktune_status ktune_operator_symbol_count(const ktune_operator* op, size_t* count);
KTUNE_API ktune_status ktune_operator_symbol_name(const ktune_operator* op, size_t index, const char** name);

/* Buckets: the grid of ranges that are tuned separately; 1 when the operator has no symbols.
 * ktune_operator_bucket_range() writes the inclusive range of every symbol; LOW and HIGH have room for SYMBOL_COUNT
 * values, which must be the operator's own count.
 * ktune_operator_find_bucket() gives the bucket that the values fall into.
 * Errors: KTUNE_INVALID_ARGUMENT; KTUNE_NOT_FOUND (INDEX >= the count; values outside the operator's ranges). */
KTUNE_API ktune_status ktune_operator_bucket_count(const ktune_operator* op, size_t* count);
KTUNE_API ktune_status ktune_operator_bucket_range(const ktune_operator* op, size_t index, int64_t* low, int64_t* high,
                                                   size_t symbol_count);
KTUNE_API ktune_status ktune_operator_find_bucket(const ktune_operator* op, const int64_t* symbol_values,
                                                  size_t symbol_count, size_t* index);

/* ---- plans ---------------------------------------------------------------------------------------------------- */

/* How to run one bucket of one operator on one device: the kernels that won, and under which conditions they are right.
 * Read from a record, the file that `ktune show KEY --bucket N --export FILE` writes. A record holds machine code that
 * runs with your rights: its checksums find damage, not malice. Load records only from where you would load a library
 * from. */
typedef struct ktune_plan ktune_plan;

enum {
  KTUNE_DECISION_TUNED = 0,       /* The plan won significantly against the default schedule. */
  KTUNE_DECISION_DEFAULT = 1,     /* Nothing won significantly: the plan is the default schedule's. */
  KTUNE_DECISION_USE_FALLBACK = 2 /* No kernel was proven right, or none beat the caller's own: there is none to run. */
};

typedef struct ktune_plan_info {
  size_t struct_size;
  const char* label;    /* As ktune_operator_label(). */
  const char* key;      /* As ktune_operator_key(). */
  const char* hardware; /* The device that it was tuned for. */
  const char* digest;   /* 32 hex digits: plans with equal digests run equal code. To compare between ranks. */
  size_t bucket_index;
  int32_t decision; /* KTUNE_DECISION_... */
  int32_t reserved; /* 0. */
} ktune_plan_info;
#define KTUNE_PLAN_INFO_INIT \
  { sizeof(ktune_plan_info), NULL, NULL, NULL, NULL, 0, 0, 0 }

typedef struct ktune_workspace_info {
  size_t struct_size;
  uint64_t bytes;           /* 0: none is needed. */
  uint64_t alignment_bytes; /* Of the address handed to ktune_plan_run(). */
  int32_t must_be_zero; /* 1: fill it with zeros before the first run, and again when it was used for anything else or
                           with other symbol values; every run leaves it fit for the next. */
  int32_t reserved;     /* 0. */
} ktune_workspace_info;
#define KTUNE_WORKSPACE_INFO_INIT \
  { sizeof(ktune_workspace_info), 0, 0, 0, 0 }

typedef struct ktune_run_arguments {
  size_t struct_size;
  void* const* tensors; /* One address per tensor, inputs then outputs. */
  size_t tensor_count;
  const int64_t* symbol_values; /* One value per symbol; may be NULL when there are none. */
  size_t symbol_count;
  void* workspace; /* May be NULL when none is needed. The caller's; its contents are the plan's between runs. */
  uint64_t workspace_bytes;
} ktune_run_arguments;
#define KTUNE_RUN_ARGUMENTS_INIT \
  { sizeof(ktune_run_arguments), NULL, 0, NULL, 0, NULL, 0 }

/* Reads a record (SIZE bytes, copied) and checks it against itself: its checksum, the description's verification, the
 * key, the digests of every kernel and of the plan that was timed.
 * Errors: KTUNE_INVALID_ARGUMENT; KTUNE_CORRUPT with the reason; KTUNE_UNSUPPORTED (a record of a newer version). */
KTUNE_API ktune_status ktune_plan_from_bytes(ktune_context* context, const void* bytes, size_t size, ktune_plan** plan);
KTUNE_API void ktune_plan_destroy(ktune_plan* plan);
/* The strings belong to the plan. Errors: KTUNE_INVALID_ARGUMENT. */
KTUNE_API ktune_status ktune_plan_get_info(const ktune_plan* plan, ktune_plan_info* info);

/* Loads the plan's kernels on DEVICE; may take milliseconds, allocate and open files. OP, when not NULL, is the
 * operator that the caller means to run: the plan must have been made for exactly it. Preparing again replaces the
 * earlier preparation; when it fails the earlier one stays.
 * Errors: KTUNE_INVALID_ARGUMENT (the plan is another operator's); KTUNE_UNSUPPORTED (it was tuned for other hardware:
 * the message shows both); KTUNE_NOT_FOUND (the decision is use-fallback: run your own kernel); KTUNE_CORRUPT (a kernel
 * does not load); KTUNE_UNAVAILABLE (made before fork()). */
KTUNE_API ktune_status ktune_plan_prepare(ktune_plan* plan, ktune_device* device, const ktune_operator* op);

/* The workspace that runs of this plan need: the most over all symbol values of its bucket, so that an engine allocates
 * once. REQUIRES: a prepared plan. Errors: KTUNE_INVALID_ARGUMENT (not prepared). */
KTUNE_API ktune_status ktune_plan_workspace(const ktune_plan* plan, ktune_workspace_info* info);

/* Runs the plan and, on the cpu device, waits for it. Checks everything that the plan relies on, so that a wrong call
 * is an error and not a wrong result: counts, NULLs, symbol values in the bucket, alignments, the size and alignment of
 * the workspace, that an aliased output is its input, and that other outputs overlap nothing. On success allocates
 * nothing, takes no lock and makes no system call other than waking the device's threads. REQUIRES: a prepared plan;
 * tensors of the sizes that ktune_operator_tensor_extents() gives.
 * Errors: KTUNE_INVALID_ARGUMENT naming what does not hold (nothing was computed); KTUNE_UNAVAILABLE (another run on
 * the same device handle is in progress, or the plan was prepared before fork()). */
KTUNE_API ktune_status ktune_plan_run(ktune_plan* plan, const ktune_run_arguments* arguments);

#ifdef __cplusplus
}
#endif

#endif /* KTUNE_KTUNE_H */
