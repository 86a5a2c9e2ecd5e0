// A stand-in libcuda.so.1 for tests on machines with no GPU. Calls succeed and do nothing, with these exceptions:
// device memory is host memory, so that copies are real, and what the tests look at is written as one line of
// JSON a call to the file $FAKE_CUDA_LOG.
//
//   FAKE_CUDA_ARG_BYTES  sizes of the kernel's arguments, "8,8,4": the driver knows them from the cubin, this does not
//   FAKE_CUDA_FAIL       calls that fail, and how: "cuLaunchKernelEx:719,cuInit:100"
//   FAKE_CUDA_VERSION    what cuDriverGetVersion says; 13000
//   FAKE_CUDA_GPUS       how many GPUs there are; 1
//
// NVRTC opens libcuda.so.1 too and asks for cuGetExportTable, which must fail or NVRTC crashes.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int Result;
typedef void *Handle;

static Handle current_context;
static int launches_captured, is_capturing;
static int most_dynamic_bytes = 48 * 1024;

static FILE *log_file(void) {
  static FILE *file;
  const char *path = getenv("FAKE_CUDA_LOG");
  if (!file && path) file = fopen(path, "a");
  return file;
}
#define LOG(...) do { FILE *f = log_file(); if (f) { fprintf(f, __VA_ARGS__); fflush(f); } } while (0)

// The result that $FAKE_CUDA_FAIL asks for, else 0.
static Result asked(const char *name) {
  const char *at = getenv("FAKE_CUDA_FAIL");
  size_t length = strlen(name);
  while (at && *at) {
    if (!strncmp(at, name, length) && at[length] == ':') return atoi(at + length + 1);
    at = strchr(at, ',');
    if (at) ++at;
  }
  return 0;
}
#define CALL(name, parameters, body) \
  static Result fake_##name parameters { Result r = asked(#name); if (r) return r; body; return 0; }

static int number(const char *variable, int otherwise) {
  const char *text = getenv(variable);
  return text ? atoi(text) : otherwise;
}

// CUdevice_attribute numbers, with values like those of an H200.
static int attribute(int which) {
  switch (which) {
    case 1: return 1024;          // MAX_THREADS_PER_BLOCK
    case 5: return 2147483647;    // MAX_GRID_DIM_X
    case 6: case 7: return 65535; // MAX_GRID_DIM_Y, Z
    case 8: return 49152;         // MAX_SHARED_MEMORY_PER_BLOCK
    case 10: return 32;           // WARP_SIZE
    case 12: return 65536;        // MAX_REGISTERS_PER_BLOCK
    case 13: return 1980000;      // CLOCK_RATE, kHz
    case 16: return 132;          // MULTIPROCESSOR_COUNT
    case 36: return 3201000;      // MEMORY_CLOCK_RATE, kHz
    case 37: return 6144;         // GLOBAL_MEMORY_BUS_WIDTH
    case 38: return 62914560;     // L2_CACHE_SIZE
    case 39: return 2048;         // MAX_THREADS_PER_MULTIPROCESSOR
    case 75: return 9;            // COMPUTE_CAPABILITY_MAJOR
    case 76: return 0;            // COMPUTE_CAPABILITY_MINOR
    case 81: return 233472;       // MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
    case 82: return 65536;        // MAX_REGISTERS_PER_MULTIPROCESSOR
    case 97: return 232448;       // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    case 106: return 32;          // MAX_BLOCKS_PER_MULTIPROCESSOR
    case 111: return 1024;        // RESERVED_SHARED_MEMORY_PER_BLOCK
    default: return 1;
  }
}

static void log_launch(const unsigned *grid, const unsigned *block, unsigned shared_bytes, Handle *args) {
  LOG("{\"call\": \"launch\", \"grid\": [%u, %u, %u], \"block\": [%u, %u, %u], \"shared_bytes\": %u, \"args\": [",
      grid[0], grid[1], grid[2], block[0], block[1], block[2], shared_bytes);
  const char *sizes = getenv("FAKE_CUDA_ARG_BYTES");
  for (int i = 0; sizes && *sizes; ++i) {
    int bytes = strtol(sizes, (char **)&sizes, 10);
    if (*sizes == ',') ++sizes;
    LOG("%s\"", i ? ", " : "");
    for (int b = 0; b < bytes; ++b) LOG("%02x", ((unsigned char *)args[i])[b]);
    LOG("\"");
  }
  LOG("]}\n");
}

CALL(cuInit, (unsigned flags), )
CALL(cuDriverGetVersion, (int *v), *v = number("FAKE_CUDA_VERSION", 13000))
CALL(cuDeviceGetCount, (int *n), *n = number("FAKE_CUDA_GPUS", 1))
CALL(cuDeviceGet, (int *d, int ordinal), *d = ordinal)
CALL(cuDeviceGetName, (char *name, int length, int d), strncpy(name, "NVIDIA H200", length))
CALL(cuDeviceGetUuid, (unsigned char *uuid, int d), for (int i = 0; i < 16; ++i) uuid[i] = 16 * d + i)
CALL(cuDeviceTotalMem, (size_t *n, int d), *n = 150ull << 30)
CALL(cuDeviceGetAttribute, (int *v, int which, int d), *v = attribute(which))
CALL(cuDevicePrimaryCtxRetain, (Handle *c, int d), *c = (Handle)0x1000)
CALL(cuCtxGetCurrent, (Handle *c), *c = current_context)
CALL(cuCtxSetCurrent, (Handle c), current_context = c)
CALL(cuCtxPushCurrent, (Handle c), current_context = c)
CALL(cuCtxPopCurrent, (Handle *c), *c = current_context)
CALL(cuCtxGetDevice, (int *d), *d = 0)
CALL(cuCtxGetStreamPriorityRange, (int *least, int *greatest), *least = 0; *greatest = -5)
CALL(cuCtxSynchronize, (void), )
CALL(cuStreamCreateWithPriority, (Handle *s, unsigned f, int p), *s = (Handle)0x2000)
CALL(cuStreamGetCtx, (Handle s, Handle *c), *c = current_context)
CALL(cuStreamGetDevice, (Handle s, int *d), *d = 0)
CALL(cuStreamSynchronize, (Handle s), )
CALL(cuStreamBeginCapture, (Handle s, int mode), is_capturing = 1; launches_captured = 0)
CALL(cuStreamEndCapture, (Handle s, Handle *g), is_capturing = 0; *g = (Handle)0x6000)
CALL(cuGraphInstantiateWithFlags, (Handle *e, Handle g, unsigned long long f),
     *e = (Handle)0x7000; LOG("{\"call\": \"graph\", \"launches\": %d}\n", launches_captured))
CALL(cuGraphLaunch, (Handle e, Handle s), LOG("{\"call\": \"replay\"}\n"))
CALL(cuGraphExecDestroy, (Handle e), LOG("{\"call\": \"free graph\"}\n"))
CALL(cuLibraryLoadData, (Handle *l, const void *c, Handle a, Handle b, unsigned n, Handle d, Handle e, unsigned m),
     *l = (Handle)0x3000)
CALL(cuLibraryGetKernel, (Handle *k, Handle l, const char *name), *k = (Handle)0x4000)
CALL(cuKernelGetFunction, (Handle *f, Handle k), *f = (Handle)0x4000)
CALL(cuKernelGetAttribute, (int *v, int which, Handle k, int d), *v = which == 8 ? most_dynamic_bytes : 64)
CALL(cuKernelSetAttribute, (int which, int v, Handle k, int d),
     if (which == 8) most_dynamic_bytes = v; LOG("{\"call\": \"set\", \"attribute\": %d, \"value\": %d}\n", which, v))
CALL(cuOccupancyMaxActiveBlocksPerMultiprocessor, (int *n, Handle f, int threads, size_t shared), *n = 3)
CALL(cuEventCreate, (Handle *e, unsigned f), *e = (Handle)0x5000)
CALL(cuEventElapsedTime, (float *ms, Handle a, Handle b), *ms = 1.5f)
CALL(cuMemAlloc, (uint64_t *p, size_t n), *p = (uint64_t)malloc(n))
CALL(cuMemFree, (uint64_t p), free((void *)p); LOG("{\"call\": \"free\"}\n"))
CALL(cuMemcpyHtoDAsync, (uint64_t d, const void *h, size_t n, Handle s), memcpy((void *)d, h, n))
CALL(cuMemcpyDtoHAsync, (void *h, uint64_t d, size_t n, Handle s), memcpy(h, (void *)d, n))
CALL(cuMemcpyDtoDAsync, (uint64_t to, uint64_t from, size_t n, Handle s), memcpy((void *)to, (void *)from, n))
CALL(cuMemsetD8Async, (uint64_t d, unsigned char byte, size_t n, Handle s), memset((void *)d, byte, n))
CALL(cuGetErrorString, (int e, const char **text), *text = "as asked")

typedef struct { unsigned grid[3], block[3], shared_bytes; Handle stream; Handle attributes; unsigned count; } Config;

static Result fake_cuLaunchKernelEx(const Config *c, Handle f, Handle *args, Handle *extra) {
  Result r = asked("cuLaunchKernelEx");
  if (r) return r;
  if ((int)c->shared_bytes > most_dynamic_bytes) return 1;
  if (is_capturing) ++launches_captured;
  log_launch(c->grid, c->block, c->shared_bytes, args);
  return 0;
}

static Result fake_cuLaunchKernel(Handle f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                  unsigned bz, unsigned shared_bytes, Handle stream, Handle *args, Handle *extra) {
  Config c = {{gx, gy, gz}, {bx, by, bz}, shared_bytes, stream, 0, 0};
  return fake_cuLaunchKernelEx(&c, f, args, extra);
}

static Result fake_cuGetErrorName(int e, const char **name) {
  switch (e) {
    case 0: *name = "CUDA_SUCCESS"; break;
    case 1: *name = "CUDA_ERROR_INVALID_VALUE"; break;
    case 209: *name = "CUDA_ERROR_NO_BINARY_FOR_GPU"; break;
    case 700: *name = "CUDA_ERROR_ILLEGAL_ADDRESS"; break;
    case 701: *name = "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"; break;
    default: *name = "CUDA_ERROR_UNKNOWN";
  }
  return 0;
}

static Result succeed(void) { return 0; }
Result cuGetExportTable(const void **table, const void *id) { *table = 0; return 1; }

#define ENTRY(name) {#name, (Handle)fake_##name}
static const struct { const char *name; Handle function; } entries[] = {
  ENTRY(cuInit), ENTRY(cuDriverGetVersion), ENTRY(cuDeviceGetCount), ENTRY(cuDeviceGet), ENTRY(cuDeviceGetName),
  ENTRY(cuDeviceGetUuid), ENTRY(cuDeviceTotalMem), ENTRY(cuDeviceGetAttribute), ENTRY(cuDevicePrimaryCtxRetain),
  ENTRY(cuCtxGetCurrent), ENTRY(cuCtxSetCurrent), ENTRY(cuCtxPushCurrent), ENTRY(cuCtxPopCurrent),
  ENTRY(cuCtxGetDevice), ENTRY(cuCtxGetStreamPriorityRange), ENTRY(cuCtxSynchronize),
  ENTRY(cuStreamCreateWithPriority), ENTRY(cuStreamGetCtx), ENTRY(cuStreamGetDevice), ENTRY(cuStreamSynchronize),
  ENTRY(cuStreamBeginCapture), ENTRY(cuStreamEndCapture), ENTRY(cuGraphInstantiateWithFlags), ENTRY(cuGraphLaunch),
  ENTRY(cuGraphExecDestroy), ENTRY(cuLibraryLoadData), ENTRY(cuLibraryGetKernel), ENTRY(cuKernelGetFunction),
  ENTRY(cuKernelGetAttribute), ENTRY(cuKernelSetAttribute), ENTRY(cuOccupancyMaxActiveBlocksPerMultiprocessor),
  ENTRY(cuEventCreate), ENTRY(cuEventElapsedTime), ENTRY(cuMemAlloc), ENTRY(cuMemFree), ENTRY(cuMemcpyHtoDAsync),
  ENTRY(cuMemcpyDtoHAsync), ENTRY(cuMemcpyDtoDAsync), ENTRY(cuMemsetD8Async), ENTRY(cuGetErrorString), ENTRY(cuGetErrorName),
  ENTRY(cuLaunchKernelEx), ENTRY(cuLaunchKernel), {"cuGetExportTable", (Handle)cuGetExportTable},
};

Result cuGetProcAddress_v2(const char *name, Handle *function, int version, uint64_t flags, int *status) {
  if (status) *status = 0;
  *function = (Handle)succeed;
  if (!strcmp(name, "cuGetProcAddress")) *function = (Handle)cuGetProcAddress_v2;
  for (unsigned i = 0; i < sizeof entries / sizeof *entries; ++i)
    if (!strcmp(name, entries[i].name)) *function = entries[i].function;
  if (getenv("FAKE_CUDA_TRACE")) fprintf(stderr, "%s%s\n", name, *function == (Handle)succeed ? " (stub)" : "");
  return 0;
}
Result cuGetProcAddress(const char *name, Handle *function, int version, uint64_t flags) {
  return cuGetProcAddress_v2(name, function, version, flags, 0);
}
Result cuInit(unsigned flags) { return fake_cuInit(flags); }
Result cuDriverGetVersion(int *version) { return fake_cuDriverGetVersion(version); }
