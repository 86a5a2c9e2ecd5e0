/* Stands between a program and the CUDA runtime where there is no GPU: says what would have been launched.
 * Loaded before the runtime (LD_PRELOAD), it sees kernels being registered by name. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

static const void* functions[64];
static const char* names[64];
static int known;

void __cudaRegisterFunction(void** handle, const char* host, char* device, const char* name, int limit, uint3* tid,
    uint3* bid, dim3* block, dim3* grid, int* size)
{
    functions[known] = host;
    names[known++] = name;
    void (*next)(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*, dim3*, int*) =
        dlsym(RTLD_NEXT, "__cudaRegisterFunction");
    next(handle, host, device, name, limit, tid, bid, block, grid, size);
}

cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int* value, enum cudaDeviceAttr attribute, int device) {
    return (void)attribute, (void)device, *value = 132, cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void* function, enum cudaFuncAttribute attribute, int value) {
    return (void)function, (void)attribute, (void)value, cudaSuccess;
}

static CUresult encode(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
    const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box, const cuuint32_t* steps,
    CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
    CUtensorMapFloatOOBfill fill)
{
    (void)rank, (void)steps, (void)interleave, (void)promotion, (void)fill;
    memset(map, 0, sizeof(*map));
    printf("map type %d at %lld: %lld x %lld, %lld bytes apart, box %d x %d, swizzle %d\n", (int)type,
        (long long)(uintptr_t)address, (long long)sizes[0], (long long)sizes[1], (long long)strides[0], (int)box[0],
        (int)box[1], (int)swizzle);
    return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned int version,
    unsigned long long flags, enum cudaDriverEntryPointQueryResult* status)
{
    (void)symbol, (void)version, (void)flags;
    *function = (void*)encode;
    *status = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** arguments) {
    const char* name = "?";
    (void)arguments;
    for (int i = 0; i < known; ++i) {
        name = functions[i] == function ? names[i] : name;
    }
    printf("launch %s grid %d %d %d block %d shared %d attributes %d\n", name, config->gridDim.x, config->gridDim.y,
        config->gridDim.z, config->blockDim.x, (int)config->dynamicSmemBytes, (int)config->numAttrs);
    return cudaSuccess;
}
