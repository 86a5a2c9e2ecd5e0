"""Functions around the asynchronous units: mbarriers, TMA, wgmma. Each is one PTX instruction.

Source: PTX ISA 9.0, mbarrier, cp.async.bulk.tensor, wgmma, setmaxnreg, barrier.cluster, fence.proxy.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from tilewright.codegen.conversions import sum_register
from tilewright.ir.async_stmt import Scope
from tilewright.ir.guard import Guard
from tilewright.isa.catalog import INSTRUCTIONS
from tilewright.isa.instruction import MatrixInstruction
from tilewright.isa.wgmma import transposes

_SHARED = "(unsigned)__cvta_generic_to_shared"
_HEAD = "__device__ __forceinline__"

TENSOR_MAP = "TensorMap"
"""The type of what TMA knows of a matrix: 128 bytes that the driver fills."""


def _plain(comment: str, signature: str, ptx: str, operands: str = "") -> str:
    """A function that is one instruction with no result."""
    return f'// {comment}\n{_HEAD} void {signature} {{\n    asm volatile("{ptx};" ::{operands} : "memory");\n}}'


_FIRST_BLOCK = "blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0"

_GUARDED: Mapping[Guard, tuple[str, str]] = {
    Guard.DECIDES: (
        "whether no flag is raised, and stores it for later kernels",
        f"""\
    const bool raised = *a != 0.0f || *b != 0.0f;
    if ({_FIRST_BLOCK}) *fell_back = raised ? 1.0f : 0.0f;
    return !raised;""",
    ),
    Guard.CLEAR: ("whether the kernel that decides ran", "    return *fell_back == 0.0f;"),
    Guard.RAISED: (
        "whether the kernel that decides did not run, and lowers the flags",
        f"""\
    if ({_FIRST_BLOCK}) *a = *b = 0.0f;
    return *fell_back != 0.0f;""",
    ),
}
"""What the wait of a guarded kernel says, and how. All threads of the first block that wait store the same."""


def wait_guarded_name(guard: Guard) -> str:
    return f"wait_and_{'decide' if guard is Guard.DECIDES else f'follow_{guard.value}'}"


def _wait_guarded(guard: Guard) -> str:
    words, body = _GUARDED[guard]
    return f"""\
// Programmatic dependent launch: waits until earlier kernels have ended, and returns {words}.
{_HEAD} bool {wait_guarded_name(guard)}(float* a, float* b, float* fell_back) {{
    asm volatile("griddepcontrol.wait;" ::: "memory");
{body}
}}"""


def _counted(comment: str, name: str, ptx: str) -> str:
    """A function whose one operand must be a constant."""
    body = f'    asm volatile("{ptx} %0;" ::"n"(count) : "memory");'
    return f"// {comment}\ntemplate <int count>\n{_HEAD} void {name}() {{\n{body}\n}}"


def _wait_barrier(comment: str, name: str, begin: str) -> str:
    """begin: of the instruction up to its semantics."""
    return f"""\
// {comment}
{_HEAD} void {name}(unsigned long long* barrier, int parity) {{
    const unsigned at = {_SHARED}(barrier);
    int complete;
    do {{
        asm volatile("{begin}.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p; }}"
                     : "=r"(complete)
                     : "r"(at), "r"(parity)
                     : "memory");
    }} while (!complete);
}}"""


_WAIT_BARRIER = _wait_barrier(
    "Waits until the phase of this parity has completed.",
    "mbarrier_wait",
    "{ .reg .pred p; mbarrier.try_wait.parity",
)

_WAIT_BARRIER_OF_CLUSTER = _wait_barrier(
    "As mbarrier_wait; stores that other blocks of the cluster made before it are visible.",
    "mbarrier_wait_cluster",
    '{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster"\n                     "',
)


def store_async_name(count: int) -> str:
    return f"store_async_x{count}"


def _store_async(count: int) -> str:
    """count: words, 1, 2 or 4."""
    vector = f".v{count}" if count > 1 else ""
    numbers = ", ".join(f"%{3 + i}" for i in range(count))
    words = ", ".join(f'"f"(from[{i}])' for i in range(count))
    listed = f"{{{numbers}}}" if count > 1 else numbers
    return f"""\
// Starts a store of {count} word(s) to the same address in block `rank` of the cluster, and signals its mbarrier there.
{_HEAD} void {store_async_name(count)}(float* to, const float* from, int rank, unsigned long long* barrier) {{
    asm volatile("{{ .reg .b32 there, told; mapa.shared::cluster.u32 there, %0, %2; "
                 "mapa.shared::cluster.u32 told, %1, %2; "
                 "st.async.shared::cluster.mbarrier::complete_tx::bytes{vector}.f32 [there], {listed}, [told]; }}"
                 ::"r"({_SHARED}(to)), "r"({_SHARED}(barrier)), "r"(rank),
                 {words}
                 : "memory");
}}"""


_ARRIVE_IN_CLUSTER = f"""\
// Arrives at the mbarrier at the same address in block `rank` of the cluster.
{_HEAD} void mbarrier_arrive_cluster(unsigned long long* barrier, int rank) {{
    asm volatile("{{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; "
                 "mbarrier.arrive.shared::cluster.b64 _, [there]; }}" ::"r"({_SHARED}(barrier)),
                 "r"(rank)
                 : "memory");
}}"""


def _coordinates(rank: int, first: int) -> tuple[str, str, str]:
    """Of a box: the parameters, the operands, and their numbers in the instruction, the first of them `first`."""
    names = ("inner", "outer", *("matrix",) * (rank == 3), *("third", "fourth") * (rank == 4))
    numbers = ", ".join(f"%{first + i}" for i in range(rank))
    return ", ".join(f"int {name}" for name in names), ", ".join(f'"r"({name})' for name in names), numbers


def _tma_load(rank: int, *, multicast: bool, evict_first: bool) -> str:
    parameters, operands, numbers = _coordinates(rank, 3)
    name = f"tma_load{'_multicast' * multicast}{'_evict_first' * evict_first}{_suffix(rank)}"
    told = "// Starts a TMA load of one box to shared memory; the mbarrier counts its bytes.\n"
    if multicast:
        told = "// As tma_load, multicast to the same address in every block of the cluster that `mask` names.\n"
    if evict_first:
        told += "// L2 policy: evict first.\n"
    before = _EVICTED_FIRST * evict_first
    cut = '"\n                 "' * multicast
    end = f".mbarrier::complete_tx::bytes{'.multicast::cluster' * multicast}{'.L2::cache_hint' * evict_first} "
    close = ", first; }" if evict_first else ";"
    mask = (", int mask", f", %{3 + rank}", ', "h"((unsigned short)mask)') if multicast else ("", "", "")
    return f"""\
{told}{_HEAD} void {name}(
    void* to, const TensorMap* map, {parameters}, unsigned long long* barrier{mask[0]}) {{
    asm volatile({before}"cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile{cut}{end}"
                 "[%0], [%1, {{{numbers}}}], [%2]{mask[1]}{close}" ::"r"({_SHARED}(to)),
                 "l"(map), "r"({_SHARED}(barrier)), {operands}{mask[2]}
                 : "memory");
}}"""


def _tma_prefetch(rank: int) -> str:
    parameters, operands, numbers = _coordinates(rank, 1)
    return _plain(
        "Prefetches a box to the L2.",
        f"tma_prefetch{_suffix(rank)}(const TensorMap* map, {parameters})",
        f"cp.async.bulk.prefetch.tensor.{rank}d.L2.global.tile [%0, {{{numbers}}}]",
        f'"l"(map), {operands}',
    )


_EVICTED_FIRST = '"{ .reg .b64 first; createpolicy.fractional.L2::evict_first.b64 first, 1.0; "\n                 '
"""Before a copy whose lines are the first to leave the L2."""


def _tma_store(rank: int, *, evict_first: bool) -> str:
    parameters, operands, numbers = _coordinates(rank, 2)
    name, group = f"tma_store{'_evict_first' * evict_first}{_suffix(rank)}", "bulk_group"
    told = "// Starts a TMA store of one box from shared memory.\n"
    before, close = "", ";"
    if evict_first:
        told += "// L2 policy: evict first.\n"
        before, group, close = _EVICTED_FIRST, "bulk_group.L2::cache_hint", ", first; }"
    return f"""\
{told}{_HEAD} void {name}(const TensorMap* map, {parameters}, const void* from) {{
    asm volatile({before}"cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.{group} [%0, {{{numbers}}}], [%1]{close}"
                 ::"l"(map), "r"({_SHARED}(from)), {operands}
                 : "memory");
}}"""


def _suffix(rank: int) -> str:
    return f"_{rank}d" if rank > 2 else ""


def flag_name(name: str, scope: Scope) -> str:
    """The function that sets a flag or waits for one, by whom it orders."""
    return name if scope is Scope.GPU else f"{name}_of_system"


def _wait_flag(scope: Scope, *, or_later: bool = False) -> str:
    what, name, again = ("has this value", "wait_flag", "found != value")
    if or_later:
        what, name, again = (
            "has this value or a later one",
            "wait_count",
            "int(unsigned(found) - unsigned(value)) < 0",
        )
    return f"""\
// Waits until the flag {what}, with acquire semantics.
{_HEAD} void {flag_name(name, scope)}(const int* flag, int value) {{
    int found;
    do {{
        asm volatile("ld.acquire.{scope.value}.global.s32 %0, [%1];" : "=r"(found) : "l"(flag) : "memory");
    }} while ({again});
}}"""


def _signal_flag(scope: Scope, *, releases: bool = True) -> str:
    what = "Sets the flag, with release semantics."
    return _plain(
        what if releases else "Sets the flag, relaxed: it orders nothing.",
        f"{flag_name('signal_flag' if releases else 'set_flag', scope)}(int* flag, int value)",
        f"st.{'release' if releases else 'relaxed'}.{scope.value}.global.s32 [%0], %1",
        '"l"(flag), "r"(value)',
    )


def _add_to_flag(scope: Scope) -> str:
    return _plain(
        "Adds to the flag, with release semantics.",
        f"{flag_name('add_to_flag', scope)}(int* flag, int value)",
        f"red.release.{scope.value}.global.add.s32 [%0], %1",
        '"l"(flag), "r"(value)',
    )


_CLUSTER_BARRIER = f"""\
// Barrier of all threads of the cluster. It orders no memory: fence_mbarrier_init has done that for new mbarriers.
{_HEAD} void cluster_sync() {{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}}"""

_WAIT_PRODUCTS = f"""\
// Waits until at most `pending` wgmma groups are in flight. The form with `sums` keeps later reads of them behind it.
template <int pending>
{_HEAD} void wgmma_wait_group() {{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}}
{_HEAD} void keep(float& sum) {{ asm volatile("" : "+f"(sum)::"memory"); }}
{_HEAD} void keep(unsigned short& sum) {{ asm volatile("" : "+h"(sum)::"memory"); }}
template <int pending, int count, typename T>
{_HEAD} void wgmma_wait_group(T* sums) {{
    wgmma_wait_group<pending>();
    #pragma unroll
    for (int i = 0; i < count; ++i) {{
        keep(sums[i]);
    }}
}}"""

_MATRIX_DESCRIPTOR = f"""\
// The matrix descriptor of a tile in shared memory. start: its lower half, from wgmma_descriptor_base and an offset.
template <int stride_bytes, int swizzle>
{_HEAD} unsigned long long wgmma_descriptor(unsigned start) {{
    return (unsigned long long)((unsigned)swizzle << 30 | stride_bytes >> 4) << 32 | start;
}}"""

_MATRIX_START = f"""\
// The lower half of a matrix descriptor: start address and leading offset in units of 16 bytes. The shuffle keeps it in
// a register: ptxas would recompute it for each wgmma.
template <int leading_bytes>
{_HEAD} unsigned wgmma_descriptor_base(const void* tiles) {{
    const unsigned address = {_SHARED}(tiles);
    return __shfl_sync(0xffffffffu, (leading_bytes >> 4) << 16 | (address & 0x3ffff) >> 4, 0);
}}"""


def _store_matrices(count: int, transposed: bool) -> str:
    transpose = ".trans" if transposed else ""
    values = ", ".join(f'"r"(words[{i}])' for i in range(count))
    places = ", ".join(f"%{i + 1}" for i in range(count))
    return (
        f"// Stores {count} matrices of 8 rows of 16 bytes; each lane gives the address of one row.\n"
        f"{_HEAD} void {store_matrices_name(count, transposed)}(void* row, const void* fragment) {{\n"
        f"    unsigned words[{count}];\n"
        f"    memcpy(words, fragment, {4 * count});\n"
        f'    asm volatile("stmatrix.sync.aligned.m8n8.x{count}{transpose}.shared.b16 [%0], {{{places}}};" ::"r"('
        f"{_SHARED}(row)),\n                 {values}\n"
        '                 : "memory");\n}'
    )


def store_matrices_name(count: int, transposed: bool) -> str:
    return f"stmatrix_x{count}{'_transposed' if transposed else ''}"


def async_prelude() -> tuple[str, ...]:
    """Every snippet; those of wgmma are made on demand by `wgmma_text`."""
    return (*_mbarriers(), *_tma(), *_threads(), *_wgmma())


def _mbarriers() -> tuple[str, ...]:
    """The type of tensor maps, which later snippets name; mbarriers, and flags in global memory."""
    barrier, at = "unsigned long long* barrier", f'"r"({_SHARED}(barrier))'
    return (
        "struct __align__(64) TensorMap { unsigned long long opaque[16]; };  // filled by the driver",
        _plain(
            "Initialises an mbarrier: each phase completes with this number of arrivals.",
            f"mbarrier_init({barrier}, int arrivals)",
            "mbarrier.init.shared::cta.b64 [%0], %1",
            f'{at}, "r"(arrivals)',
        ),
        _plain(
            "Initialised mbarriers become visible to TMA and to the cluster.",
            "fence_mbarrier_init()",
            "fence.mbarrier_init.release.cluster",
        ),
        _plain(
            "Arrives, and the phase also waits for this number of bytes, which TMA loads complete.",
            f"mbarrier_arrive_expect_tx({barrier}, int bytes)",
            "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1",
            f'{at}, "r"(bytes)',
        ),
        _plain(
            "Arrives at an mbarrier of this block.",
            f"mbarrier_arrive({barrier})",
            "mbarrier.arrive.shared::cta.b64 _, [%0]",
            at,
        ),
        _plain(
            "Arrives once all earlier cp.async copies of this thread have completed.",
            f"mbarrier_arrive_after_cp_async({barrier})",
            "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0]",
            at,
        ),
        _ARRIVE_IN_CLUSTER,
        _WAIT_BARRIER,
        _WAIT_BARRIER_OF_CLUSTER,
        *(_store_async(count) for count in (1, 2, 4)),
        *(_wait_flag(scope) for scope in Scope),
        *(_wait_flag(scope, or_later=True) for scope in Scope),
        *(_signal_flag(scope) for scope in Scope),
        *(_signal_flag(scope, releases=False) for scope in Scope),
        *(_add_to_flag(scope) for scope in Scope),
    )


_L2_PREFETCH = (
    f"// Prefetches an address to the L2, if it is there.\n{_HEAD} void prefetch_l2(const void* from, bool there) "
    '{\n    if (there) asm volatile("prefetch.global.L2 [%0];" ::"l"(from));\n}'
)


def _tma() -> tuple[str, ...]:
    """Copies by TMA, and what orders them."""
    return (
        _plain(
            "Prefetches a tensor map before its first use.",
            "prefetch_tensormap(const TensorMap* map)",
            "prefetch.tensormap [%0]",
            '"l"(map)',
        ),
        *(
            _tma_load(rank, multicast=multicast, evict_first=first)
            for rank in (2, 3, 4)
            for multicast in (False, True)
            for first in (False, True)
        ),
        *(_tma_prefetch(rank) for rank in (2, 3, 4)),
        _plain(
            "Prefetches bytes to the L2.",
            "bulk_prefetch(const void* first, int bytes)",
            "cp.async.bulk.prefetch.L2.global [%0], %1",
            '"l"(first), "r"(bytes)',
        ),
        _L2_PREFETCH,
        *(_tma_store(rank, evict_first=first) for rank in (2, 3, 4) for first in (False, True)),
        _plain(
            "The TMA stores that this thread has started become a group.",
            "tma_store_commit_group()",
            "cp.async.bulk.commit_group",
        ),
        _counted(
            "Waits until at most `count` groups of TMA stores still read shared memory.",
            "tma_store_wait_group_read",
            "cp.async.bulk.wait_group.read",
        ),
        _counted(
            "Waits until at most `count` groups of TMA stores are not complete.",
            "tma_store_wait_group",
            "cp.async.bulk.wait_group",
        ),
        _plain(
            "Orders accesses to shared memory before later ones by TMA and wgmma.",
            "fence_proxy_async()",
            "fence.proxy.async.shared::cta",
        ),
        _plain(
            "Orders accesses to global memory, and what was waited for, before later ones by TMA.",
            "fence_proxy_async_global()",
            "fence.proxy.async.global",
        ),
    )


def _threads() -> tuple[str, ...]:
    """Programmatic dependent launch, barriers of threads, registers of warpgroups."""
    return (
        _plain(
            "Programmatic dependent launch: the next kernel may start.",
            "griddep_launch_dependents()",
            "griddepcontrol.launch_dependents",
        ),
        _plain(
            "Programmatic dependent launch: waits until earlier kernels have ended and their writes are visible.",
            "griddep_wait()",
            "griddepcontrol.wait",
        ),
        *(_wait_guarded(guard) for guard in Guard),
        _CLUSTER_BARRIER,
        _plain(
            "Named barrier of `threads` threads.",
            "named_barrier_sync(int number, int threads)",
            "bar.sync %0, %1",
            '"r"(number), "r"(threads)',
        ),
        _counted(
            "Releases the registers above `count` per thread.", "setmaxnreg_dec", "setmaxnreg.dec.sync.aligned.u32"
        ),
        _counted("Waits until each thread has `count` registers.", "setmaxnreg_inc", "setmaxnreg.inc.sync.aligned.u32"),
    )


def _wgmma() -> tuple[str, ...]:
    """wgmma and stmatrix."""
    return (
        _plain(
            "Orders register accesses to accumulators before later wgmma.", "wgmma_fence()", "wgmma.fence.sync.aligned"
        ),
        _plain("The wgmma issued so far become a group.", "wgmma_commit_group()", "wgmma.commit_group.sync.aligned"),
        _WAIT_PRODUCTS,
        _MATRIX_START,
        _MATRIX_DESCRIPTOR,
        *(_store_matrices(count, transposed) for count in (1, 2, 4) for transposed in (False, True)),
    )


def wgmma_name(instruction: MatrixInstruction, *, a_in_registers: bool = False) -> str:
    """The function that starts a product: `wgmma_m64n256k16_f32_bf16`."""
    return instruction.name.replace(".", "_") + "_from_registers" * a_in_registers


_BY_NAME = {
    wgmma_name(known, a_in_registers=held): (known, held)
    for known in INSTRUCTIONS
    if known.reads_shared
    for held in (False, *([True] if known.left else []))
}


def wgmma_text(name: str) -> str | None:
    """The snippet of a product of wgmma, or None if the name is of something else."""
    if name not in _BY_NAME:
        return None
    instruction, a_in_registers = _BY_NAME[name]
    kind, held = sum_register(instruction.accumulate)
    wide = held == 1
    count = instruction.c.registers * instruction.accumulate.bytes // 4
    element = instruction.accumulate.cuda
    registers = textwrap.wrap(", ".join(f"%{i}" for i in range(count)), 92)
    outputs = textwrap.wrap(", ".join(f'"+{kind}"({"d" if wide else "words"}[{i}])' for i in range(count)), 100)
    words = 0 if instruction.left is None else instruction.left.registers * instruction.product.bytes // 4
    a_words = words if a_in_registers else 0
    ends = count + (a_words or 1) + 2  # behind the sums, A, B and whether they are added
    orders = [name for name in ("a", "b") if transposes(instruction.product) and not (a_words and name == "a")]
    scales = ", ".join(["p, 1, 1", *(f"%{ends + i}" for i in range(len(orders)))])
    transpose = "".join(f', "n"(transpose_{name})' for name in orders)
    fragment = ", ".join(f"%{count + i}" for i in range(a_words))
    a = f"{{{fragment}}}" if a_words else f"%{count}"
    given = ", ".join(f'"r"(held[{i}])' for i in range(a_words)) or '"l"(a)'
    quoted = "\n".join(f'        "{line} "' for line in registers)
    listed = ",\n          ".join(line.rstrip(",") for line in outputs)
    return (
        f"// Issues d = a @ b, plus d if `add`, for a tile of {instruction.m} x {instruction.n} x {instruction.k}, "
        "by the four warps of a warpgroup.\n"
        + (f"template <{', '.join(f'int transpose_{one}' for one in orders)}>\n" if orders else "")
        + f"{_HEAD} void {name}(\n" * bool(a_words)
        + f"    {element}* d, const void* a, unsigned long long b, int add) {{\n" * bool(a_words)
        + f"{_HEAD} void {name}({element}* d, unsigned long long a, unsigned long long b, int add) {{\n" * (not a_words)
        + f"    unsigned held[{a_words}];\n    memcpy(held, a, {4 * a_words});\n" * bool(a_words)
        + ("" if wide else f"    unsigned words[{count}];\n    memcpy(words, d, {4 * count});\n")
        + f'    asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{ends - 1}, 0; {instruction.mnemonic} {{"\n'
        + f"{quoted}\n"
        + f'        "}}, {a}, %{ends - 2}, {scales}; }}"\n'
        + f"        : {listed}\n"
        + f'        : {given}, "l"(b), "r"(add){transpose}\n        : "memory");\n'
        + ("" if wide else f"    memcpy(d, words, {4 * count});\n")
        + "}"
    )
