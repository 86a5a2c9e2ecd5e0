// Runs emitted CUDA C++ text on a CPU: tests only.
//
// A block is a set of fibers, one per thread, on one operating system thread. A fiber runs until it waits at a
// barrier or returns; then the next one runs, in an order that the test chooses. So the threads of a block are as
// far apart as barriers allow, and a barrier that is missing gives a wrong result. Blocks run one after another.
#pragma once
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

using std::max;
using std::min;

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __shared__ static  // one block at a time, so one copy is enough
#define threadIdx (cpu::running->thread)
#define blockIdx (cpu::block_index)

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

alignas(128) unsigned char shared_memory[228 * 1024];  // what `extern __shared__` names

template <class To, class From>
To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}
inline float __uint_as_float(unsigned bits) { return bits_as<float>(bits); }
inline float __int_as_float(int bits) { return bits_as<float>(bits); }
inline unsigned __float_as_uint(float value) { return bits_as<unsigned>(value); }

// In place of the functions that hold inline PTX.
inline float float_from_half(unsigned short bits) { return bits_as<_Float16>(bits); }
inline unsigned short half_from_float(float value) { return bits_as<unsigned short>((_Float16)value); }

namespace cpu {

// An asynchronous copy lands as late as it may, at the wait for its group, or as early, at once: a kernel must be
// right with both.
struct Copy {
    unsigned char* to;
    const unsigned char* from;
    int bytes, read;
    void land() const {
        std::memcpy(to, from, read);
        std::memset(to + read, 0, bytes - read);
    }
};

struct Fiber {
    ucontext_t context;
    dim3 thread;
    bool done;
    std::vector<std::vector<Copy>> groups;  // of asynchronous copies under way, oldest first; the last is open
};

constexpr size_t kStackBytes = 32 * 1024;
Fiber* running;
dim3 block_index;
bool copies_land_at_once;
ucontext_t scheduler;
std::function<void()> body;

void run_thread() {
    body();
    running->done = true;
    swapcontext(&running->context, &scheduler);
}

void run_block(dim3 block, const std::vector<size_t>& order) {
    static std::vector<Fiber> fibers;
    const size_t threads = order.size();
    static char* stacks = new char[threads * kStackBytes];  // not cleared: most of it is never touched
    fibers.resize(threads);
    for (size_t i = 0; i < threads; ++i) {
        Fiber& fiber = fibers[i];
        fiber.thread = {unsigned(i % block.x), unsigned(i / block.x % block.y), unsigned(i / block.x / block.y)};
        fiber.done = false;
        fiber.groups.assign(1, {});
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = &stacks[i * kStackBytes];
        fiber.context.uc_stack.ss_size = kStackBytes;
        fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, run_thread, 0);
    }
    // Between two barriers every thread runs once; all must reach the barrier, or all must return.
    for (size_t waiting = threads; waiting != 0;) {
        waiting = 0;
        for (size_t i : order) {
            running = &fibers[i];
            swapcontext(&scheduler, &running->context);
            waiting += !running->done;
        }
        if (waiting != 0 && waiting != threads) {
            std::fprintf(stderr, "%zu of %zu threads wait at a barrier the others never reach\n", waiting, threads);
            std::exit(1);
        }
    }
}

// order: 0 forwards, 1 backwards (asynchronous copies land at once), 2 scattered.
void launch(dim3 grid, dim3 block, int order, std::function<void()> kernel) {
    body = kernel;
    copies_land_at_once = order == 1;
    const size_t threads = size_t(block.x) * block.y * block.z;
    std::vector<size_t> sequence(threads);
    for (size_t i = 0; i < threads; ++i) {
        sequence[i] = order == 0 ? i : order == 1 ? threads - 1 - i : (i * 97 + 13) % threads;
    }
    for (block_index.z = 0; block_index.z < grid.z; ++block_index.z)
        for (block_index.y = 0; block_index.y < grid.y; ++block_index.y)
            for (block_index.x = 0; block_index.x < grid.x; ++block_index.x) {
                std::memset(shared_memory, 0xff, sizeof shared_memory);  // NaN: reading what nobody wrote must show
                run_block(block, sequence);
            }
}

// `bytes` of memory read from standard input, right in front of a page that must not be touched.
template <class T>
T* read_operand(size_t bytes) {
    const size_t page = sysconf(_SC_PAGESIZE), room = (bytes + 15) / 16 * 16;
    const size_t pages = (room + page - 1) / page * page;
    char* base = (char*)mmap(nullptr, pages + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(base + pages, page, PROT_NONE);
    std::memset(base, 0xff, pages);
    char* start = base + pages - room;
    if (std::fread(start, 1, bytes, stdin) != bytes) std::exit(2);
    return (T*)start;
}

inline void start_copy(void* to, const void* from, int bytes, int read) {
    if (((size_t)to | (size_t)from) % bytes != 0 || read < 0 || read > bytes) {
        std::fprintf(stderr, "asynchronous copy of %d bytes: misaligned, or %d bytes to read\n", bytes, read);
        std::exit(1);
    }
    const Copy copy{(unsigned char*)to, (const unsigned char*)from, bytes, read};
    if (copies_land_at_once) copy.land();
    else running->groups.back().push_back(copy);
}

}  // namespace cpu

inline void copy_async_4(void* to, const void* from, int read = 4) { cpu::start_copy(to, from, 4, read); }
inline void copy_async_8(void* to, const void* from, int read = 8) { cpu::start_copy(to, from, 8, read); }
inline void copy_async_16(void* to, const void* from, int read = 16) { cpu::start_copy(to, from, 16, read); }
inline void commit_copies() { cpu::running->groups.emplace_back(); }
template <int pending>
void wait_copies() {
    auto& groups = cpu::running->groups;
    while (groups.size() > pending + 1) {
        for (const cpu::Copy& copy : groups.front()) copy.land();
        groups.erase(groups.begin());
    }
}

inline void __syncthreads() { swapcontext(&cpu::running->context, &cpu::scheduler); }
