// Runs emitted CUDA C++ text on a CPU: tests only.
//
// A block is a set of fibers, one per thread, on one operating system thread. A fiber runs until it waits at a
// barrier or returns; then the next one runs, in an order that the test chooses. So the threads of a block are as
// far apart as barriers allow, and a barrier that is missing gives a wrong result. Blocks run one after another.
#pragma once
// C headers only: those of C++ would take most of the compile time.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#define __global__
#define __device__
#define __grid_constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __shared__ static  // one block at a time, so one copy is enough
#define threadIdx (cpu::running->thread)
#define blockIdx (cpu::block_index)
#define gridDim (cpu::grid_size)

struct dim3 {
    unsigned x, y, z;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) ushort4 {
    unsigned short x, y, z, w;
};
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

alignas(128) unsigned char shared_memory[228 * 1024];  // what `extern __shared__` names

template <class T>
T min(T a, T b) {
    return b < a ? b : a;
}
template <class T>
T max(T a, T b) {
    return a < b ? b : a;
}

template <class To, class From>
To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
inline float __uint_as_float(unsigned bits) { return bits_as<float>(bits); }
inline float __int_as_float(int bits) { return bits_as<float>(bits); }
inline unsigned __float_as_uint(float value) { return bits_as<unsigned>(value); }
inline int __float2int_rn(float value) { return (int)std::nearbyintf(value); }

// In place of the functions that hold inline PTX.
inline float float_from_half(unsigned short bits) { return bits_as<_Float16>(bits); }
inline unsigned short half_from_float(float value) { return bits_as<unsigned short>((_Float16)value); }

namespace cpu {

void stop(const char* why) {
    fprintf(stderr, "%s\n", why);
    exit(1);
}

// An asynchronous copy lands as late as it may, at the wait for its group, or as early, at once: a kernel must be
// right with both.
struct Copy {
    unsigned char* to;
    const unsigned char* from;
    int bytes, read, group;
    void land() const {
        memcpy(to, from, read);
        memset(to + read, 0, bytes - read);
    }
};

constexpr int kMostCopies = 256;
constexpr size_t kStackBytes = 32 * 1024;

struct Fiber {
    ucontext_t context;
    dim3 thread;
    bool done;
    int copies_under_way, groups;
    Copy copies[kMostCopies];  // oldest first
};

Fiber* running;
dim3 block_index, grid_size, block_size;
float exchanged[1024];
int exchanged_whole[1024];
bool copies_land_at_once;
ucontext_t scheduler;
void (*kernel)();

void run_thread() {
    kernel();
    running->done = true;
    swapcontext(&running->context, &scheduler);
}

void run_block(dim3 block, size_t threads, Fiber* fibers, char* stacks, const size_t* order) {
    for (size_t i = 0; i < threads; ++i) {
        Fiber& fiber = fibers[i];
        fiber.thread = {unsigned(i % block.x), unsigned(i / block.x % block.y), unsigned(i / block.x / block.y)};
        fiber.done = false;
        fiber.copies_under_way = fiber.groups = 0;
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = stacks + i * kStackBytes;
        fiber.context.uc_stack.ss_size = kStackBytes;
        fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, run_thread, 0);
    }
    // Between two barriers every thread runs once; all must reach the barrier, or all must return.
    for (size_t waiting = threads; waiting != 0;) {
        waiting = 0;
        for (size_t i = 0; i < threads; ++i) {
            running = &fibers[order[i]];
            swapcontext(&scheduler, &running->context);
            waiting += !running->done;
        }
        if (waiting != 0 && waiting != threads) stop("some threads wait at a barrier that the others never reach");
    }
}

// order: 0 forwards, 1 backwards (asynchronous copies land at once), 2 scattered.
void launch(dim3 grid, dim3 block, int order, void (*body)()) {
    kernel = body;
    grid_size = grid;
    block_size = block;
    copies_land_at_once = order == 1;
    const size_t threads = size_t(block.x) * block.y * block.z;
    size_t* sequence = new size_t[threads];
    for (size_t i = 0; i < threads; ++i) {
        sequence[i] = order == 0 ? i : order == 1 ? threads - 1 - i : (i * 97 + 13) % threads;
    }
    static Fiber* fibers = new Fiber[1024];
    static char* stacks = new char[1024 * kStackBytes];
    for (block_index.z = 0; block_index.z < grid.z; ++block_index.z) {
        for (block_index.y = 0; block_index.y < grid.y; ++block_index.y) {
            for (block_index.x = 0; block_index.x < grid.x; ++block_index.x) {
                memset(shared_memory, 0xff, sizeof shared_memory);  // NaN: reading what nobody wrote must show
                run_block(block, threads, fibers, stacks, sequence);
            }
        }
    }
}

// `bytes` of memory read from standard input, right in front of a page that must not be touched.
template <class T>
T* read_operand(size_t bytes) {
    const size_t page = sysconf(_SC_PAGESIZE), room = (bytes + 15) / 16 * 16;
    const size_t pages = (room + page - 1) / page * page;
    char* base = (char*)mmap(nullptr, pages + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(base + pages, page, PROT_NONE);
    memset(base, 0xff, pages);
    char* start = base + pages - room;
    if (fread(start, 1, bytes, stdin) != bytes) exit(2);
    return (T*)start;
}

inline void start_copy(void* to, const void* from, int bytes, int read) {
    if (((size_t)to | (size_t)from) % bytes != 0) stop("misaligned asynchronous copy");
    if (read < 0 || read > bytes) stop("an asynchronous copy that reads less than nothing or more than all");
    const Copy copy{(unsigned char*)to, (const unsigned char*)from, bytes, read, running->groups};
    if (copies_land_at_once) return copy.land();
    if (running->copies_under_way == kMostCopies) stop("too many asynchronous copies for this header");
    running->copies[running->copies_under_way++] = copy;
}

inline void wait_for_copies(int pending) {
    int late = 0;
    for (int i = 0; i < running->copies_under_way; ++i) {
        const Copy copy = running->copies[i];
        if (copy.group < running->groups - pending) copy.land();
        else running->copies[late++] = copy;
    }
    running->copies_under_way = late;
}

}  // namespace cpu

// Each thread loads at once.
template <class T>
T load_streaming(const T* from, bool there) {
    return there ? *from : T{};
}
#define LOAD_STREAMING(name, type) \
    inline type load_streaming_##name(const type* from, bool there) { return load_streaming(from, there); }
LOAD_STREAMING(v4_u32, uint4)
LOAD_STREAMING(v4_f32, float4)
LOAD_STREAMING(v2_u32, uint2)
LOAD_STREAMING(v2_f32, float2)
LOAD_STREAMING(u32, unsigned)
LOAD_STREAMING(f32, float)
LOAD_STREAMING(u16, unsigned short)

inline void store_where(float* to, float value, bool there) {
    if (there) *to = value;
}

inline void cp_async_4(void* to, const void* from, int read = 4) { cpu::start_copy(to, from, 4, read); }
inline void cp_async_8(void* to, const void* from, int read = 8) { cpu::start_copy(to, from, 8, read); }
inline void cp_async_16(void* to, const void* from, int read = 16) { cpu::start_copy(to, from, 16, read); }
inline void cp_async_commit_group() { ++cpu::running->groups; }
template <int pending>
void cp_async_wait_group() {
    cpu::wait_for_copies(pending);
}
inline void __syncthreads() { swapcontext(&cpu::running->context, &cpu::scheduler); }
inline void __syncwarp() {}  // orders a warp that exchanges nothing through memory

template <class T>
T __ldg(const T* from) {
    return *from;
}
template <class T>
T __ldcs(const T* from) {
    return *from;
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
    return unsigned((((unsigned long long)high << 32) | low) >> (by & 31));
}
// All threads of the block come here, which is more than a GPU asks for.
inline float __fdividef(float value, float by) { return value / by; }
inline unsigned own_number() {
    const dim3 at = threadIdx, size = cpu::block_size;
    return (at.z * size.y + at.y) * size.x + at.x;
}
inline float __shfl_xor_sync(unsigned, float value, int apart) {
    const unsigned self = own_number();
    cpu::exchanged[self] = value;
    __syncthreads();
    const float other = cpu::exchanged[self ^ unsigned(apart)];
    __syncthreads();
    return other;
}
// What the lane below holds; 0, which changes no sum and no end, where there is none.
inline int from_below(int value, int apart) {
    const unsigned self = own_number();
    cpu::exchanged_whole[self] = value;
    __syncthreads();
    const int below = self % 32 < unsigned(apart) ? 0 : cpu::exchanged_whole[self - unsigned(apart)];
    __syncthreads();
    return below;
}
inline void scan_add_step(int& place, int apart) { place += from_below(place, apart); }
inline void scan_max_step(int& place, int apart) {
    const int below = from_below(place, apart);
    place = place < below ? below : place;
}
