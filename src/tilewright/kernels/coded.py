"""Products with a weight in codes of 4 or 8 bits, by mma.sync: the weight is the operand with 16 rows, A that with 8
columns (swap-AB), so a skinny A wastes little.

Codes, scales and A come by cp.async through a ring of stages; a warp reads its codes from shared memory 16 bytes a
lane, as they lie, unpacks them in registers and multiplies. The sum of each group is multiplied by its scale in f32
when it is added to the sum of all. Warps of a block share out tiles of columns and k; their sums are added through
shared memory in the order of the warps, so no order depends on what runs first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.device.arch import SINCE, Feature
from tilewright.device.spec import DeviceSpec
from tilewright.dtypes import BF16, F32, I32, DType
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import ZERO, Binary, Const, Expr, Fma, Load, Op, Ref, Var, both, real
from tilewright.ir.expr import ceil_div as ceil_div_of
from tilewright.ir.finish import as_f32
from tilewright.ir.kernel import MAX_SHARED_BYTES, SIZES, WIDEST_BYTES, Kernel, Variant
from tilewright.ir.stmt import (
    Alloc,
    Assign,
    Barrier,
    Body,
    Carried,
    CommitCopies,
    For,
    If,
    Let,
    LoadMatrices,
    Move,
    MultiplyTiles,
    UnpackCodes,
    WaitCopies,
)
from tilewright.isa.mma_sync import MMA_BF16_F32, MMA_F16_F32
from tilewright.kernels.coded_store import SumsStore
from tilewright.kernels.statements import (
    AFTER_PREVIOUS_GRID,
    BLOCK,
    THREAD,
    WARP_LANES,
    against_overlap,
    at,
    below,
    element_of,
    registers,
    times,
    together,
    unrolled,
    verified,
)
from tilewright.problem.coded_product import LANE_WORDS, TILE, CodedProduct
from tilewright.units import ceil_div

EIGHT = 8
"""Rows of A of one multiplication."""

PAD = 8
"""Elements behind each row in shared memory: 16 bytes, so that ldmatrix reads eight rows from different banks."""

_STEPS = 2
"""Multiplications along k whose parts of 8 rows of A one ldmatrix brings."""

_SUMS = 4
"""Sums of a lane in a 16 x 8 tile."""

MOST_ROWS = 64

_LARGEST_OFFSET = 2**31 - 1


@dataclass(frozen=True, slots=True)
class CodedConfig:
    """rows: of A of a block, 8 or a multiple of 16. tiles: of 16 columns, of a warp. warps_n, warps_k: warps that share
    out tiles, and the k of a stage. own_k: elements of k of a warp in a stage, a multiple of the weight's unit. stages:
    of the ring. overlapped: it starts under the kernel before it."""

    rows: int = 8
    tiles: int = 1
    warps_n: int = 4
    warps_k: int = 2
    own_k: int = 128
    stages: int = 4
    overlapped: bool = False

    @property
    def threads(self) -> int:
        return self.warps_n * self.warps_k * WARP_LANES

    @property
    def block_tiles(self) -> int:
        return self.tiles * self.warps_n

    @property
    def columns(self) -> int:
        """Of C, of a block."""
        return self.block_tiles * TILE

    @property
    def stage_k(self) -> int:
        return self.own_k * self.warps_k

    def shared_bytes(self, problem: CodedProduct) -> int:
        """Shared memory of a block."""
        weight = problem.weight
        a = self.rows * (self.stage_k + PAD) * problem.dtype.bytes
        codes = self.columns * self.stage_k * weight.codes.bits // 8
        groups = ceil_div(self.stage_k, weight.group) if weight.group else 0
        scales = groups * self.columns * weight.scale_dtype.bytes
        return self.stages * (a + codes + scales) + self.warps_k * self.rows * (self.columns + PAD) * F32.bytes

    def reasons_against(self, problem: CodedProduct, spec: DeviceSpec | None = None) -> tuple[str, ...]:
        """Why this kernel cannot compute it, in words; empty if it can."""
        found: list[str] = []
        weight = problem.weight
        if self.rows % TILE and self.rows != EIGHT:
            found.append(f"{self.rows} rows of A are neither 8 nor a multiple of 16")
        if self.own_k % weight.unit or (weight.group and self.own_k % weight.group and weight.group % self.own_k):
            found.append(f"{self.own_k} of k are not whole units of {weight.unit} in groups of {weight.group}")
        if problem.lda % (WIDEST_BYTES // problem.dtype.bytes):
            found.append(f"rows of A are {problem.lda} elements apart, no multiple of 16 bytes")
        if self.threads > 1024:
            found.append(f"{self.threads} threads are more than a block may have")
        if self.shared_bytes(problem) > MAX_SHARED_BYTES:
            found.append(f"{self.shared_bytes(problem)} bytes of shared memory are more than {MAX_SHARED_BYTES}")
        if max(weight.words, problem.storage_elements("A"), problem.storage_elements("C")) > _LARGEST_OFFSET // 2:
            found.append("offsets do not fit in 31 bits")
        if spec is not None and spec.compute_capability < SINCE[Feature.MMA_BF16]:
            found.append(f"{spec.name} has neither cp.async nor bf16 on its tensor cores")
        return *found, *against_overlap(self.overlapped, spec)

    def kernel(self, problem: CodedProduct) -> Kernel:
        """The kernel for the formats, groups and epilogue of a problem; sizes are arguments."""
        body = CodedBody(self, problem)
        shape = f"{self.rows}x{self.columns}_{self.tiles}_{self.warps_n}x{self.warps_k}_{self.own_k}x{self.stages}"
        group = problem.weight.group or "column"
        return verified(
            Kernel(
                f"coded_{problem.weight.codes}_{group}_{problem.dtype}_{shape}",
                problem,
                Variant(alignment_bytes=WIDEST_BYTES, near=True, result_bytes=1),
                (ceil_div_of(SIZES["n"], self.columns), ceil_div_of(SIZES["m"], self.rows), Const(1)),
                (self.threads, 1, 1),
                body.shared,
                together(AFTER_PREVIOUS_GRID if self.overlapped else (), body.body()),
                {},
                overlapped=self.overlapped,
            )
        )


class CodedBody:
    """The statements of a thread."""

    def __init__(self, config: CodedConfig, problem: CodedProduct) -> None:
        c, weight = config, problem.weight
        self.config, self.problem, self.weight = config, problem, weight
        self.group = min(weight.group, c.own_k) if weight.group else c.own_k  # of k, whose sum is added at once
        self.stage_groups = ceil_div(c.stage_k, weight.group) if weight.group else 0
        self.across = c.rows // EIGHT  # multiplications along the rows of A
        self.own_units = c.own_k // weight.unit
        self.stage_units = c.stage_k // weight.unit
        self.instruction = MMA_BF16_F32 if problem.dtype is BF16 else MMA_F16_F32
        self.a_ring = self._ring("A_ring", problem.dtype, (c.rows, c.stage_k + PAD), ("row", "k"))
        shape = (c.block_tiles, self.stage_units, WARP_LANES, LANE_WORDS)
        self.code_ring = self._ring("code_ring", I32, shape, ("tile", "unit", "lane", "word"))
        scales = (c.block_tiles, max(self.stage_groups, 1), TILE)
        self.scale_ring = self._ring("scale_ring", weight.scale_dtype, scales, ("tile", "group", "column"))
        sums = (c.warps_k, c.rows, c.columns + PAD)
        self.sums = Buffer("sums", Space.SHARED, F32, sums, ("warp_k", "row", "column"))
        self.total = registers("total", F32, c.tiles, self.across, _SUMS, note="of all groups")
        self.part = registers("part", F32, c.tiles, self.across, _SUMS, note="of one group")
        self.words = registers("words", I32, c.tiles, LANE_WORDS, note="codes of a unit")
        self.left = registers("left", problem.dtype, c.tiles, 8, note="unpacked")
        self.right = registers("right", problem.dtype, max(self.across, _STEPS), 4)
        self.held_scale = registers("held_scale", weight.scale_dtype, c.tiles, 2)
        self.scale = registers("scale", F32, c.tiles, 2, note="of the lane's two columns")
        self.lane, self.warp_n, self.warp_k = Var("lane"), Var("warp_n"), Var("warp_k")
        self.stage, self.fill = Var("stage"), Var("fill")

    def _ring(self, name: str, dtype: DType, shape: tuple[int, ...], axes: tuple[str, ...]) -> Buffer:
        return Buffer(name, Space.SHARED, dtype, (self.config.stages, *shape), ("stage", *axes))

    @property
    def grouped(self) -> bool:
        return self.weight.group > 0

    @property
    def shared(self) -> tuple[Buffer, ...]:
        scales = (self.scale_ring,) if self.grouped else ()
        return self.a_ring, self.code_ring, *scales, self.sums

    def body(self) -> Body:
        c = self.config
        ahead = c.stages - 1
        step = together(
            WaitCopies(c.stages - 2),
            Barrier(note="this stage has arrived, and the one before is used up"),
            self._copy(Var("k_stage") + ahead, self.fill),
            CommitCopies(),
            self._multiply(),
        )
        carried = Carried.cyclic("stage", ZERO, c.stages), Carried.cyclic("fill", Const(ahead), c.stages)
        return together(
            self._coordinates(),
            Alloc(self.total),
            self._over(lambda t, m, i: Assign(at(self.total, t, m, i), real(0), origin="total")),
            *(together(self._copy_first(number), CommitCopies()) for number in range(ahead)),
            For("k_stage", Var("k_stages"), step, carried=carried),
            self._add_warps(),
            self._finish(),
        )

    def _copy_first(self, number: int) -> Body:
        return self._copy(Const(number), Const(number))

    def _coordinates(self) -> Body:
        c = self.config
        warp = Var("warp")
        return together(
            Let("warp", THREAD // WARP_LANES),
            Let("lane", THREAD % WARP_LANES),
            Let("warp_n", warp // c.warps_k),
            Let("warp_k", warp % c.warps_k),
            Let("first_tile", BLOCK * c.block_tiles),
            Let("first_row", Var("blockIdx.y") * c.rows),
            Let("k_stages", ceil_div_of(SIZES["k"], c.stage_k)),
            Let("tile_count", ceil_div_of(SIZES["n"], TILE)),
            Let("unit_count", ceil_div_of(SIZES["k"], self.weight.unit)),
            Let("group_count", SIZES["k"] // self.weight.group) if self.grouped else (),
        )

    # -- copies -------------------------------------------------------------------------------------------------------

    def _copy(self, number: Expr, stage: Expr) -> Body:
        """Everything of a stage of k, zeros behind the ends."""
        return together(
            self._copy_codes(number, stage),
            self._copy_a(number, stage),
            self._copy_scales(number, stage) if self.grouped else (),
        )

    def _copy_codes(self, number: Expr, stage: Expr) -> Body:
        """Each lane copies what it will unpack itself."""

        def one(tile: Expr, unit: Expr) -> Move:
            own_tile = self.warp_n * self.config.tiles + tile
            own_unit = self.warp_k * self.own_units + unit
            in_n, in_k = Var("first_tile") + own_tile, number * self.stage_units + own_unit
            offset = ((in_n * Var("unit_count") + in_k) * WARP_LANES + self.lane) * LANE_WORDS
            guard = both(below(in_n, Var("tile_count")), below(in_k, Var("unit_count")))
            target = at(self.code_ring, stage, own_tile, own_unit, self.lane, 0)
            source = element_of("codes", I32, offset)
            return Move(target, source, LANE_WORDS, guard, origin="codes", asynchronous=True)

        tiles, units = self.config.tiles, self.own_units
        return unrolled("tile", tiles, lambda tile: unrolled("unit", units, lambda unit: one(tile, unit)))

    def _pieces(self, var: str, pieces: int, copy: Callable[[Expr], Body]) -> Body:
        """`pieces` copies, shared out over the threads."""
        threads = self.config.threads

        def one(i: Expr) -> Body:
            number = Var(f"{var}_number")
            body = copy(number)
            partial = pieces % threads != 0
            return together(
                Let(f"{var}_number", i * threads + THREAD), If(below(number, pieces), body) if partial else body
            )

        # A loop also of one iteration, as each names its number.
        return (For(var, Const(ceil_div(pieces, threads)), one(Var(var)), unroll=True),)

    def _copy_a(self, number: Expr, stage: Expr) -> Body:
        c, dtype = self.config, self.problem.dtype
        along = c.stage_k // PAD

        def copy(piece: Expr) -> Body:
            row, k = piece // along, piece % along * PAD
            in_m, in_k = Var("first_row") + row, number * c.stage_k + k
            guard = both(below(in_m, SIZES["m"]), below(in_k, SIZES["k"]))
            source = element_of("A", dtype, times(in_m, "lda", near=True) + in_k)
            return (Move(at(self.a_ring, stage, row, k), source, PAD, guard, origin="A", asynchronous=True),)

        return self._pieces("piece", c.rows * along, copy)

    def _copy_scales(self, number: Expr, stage: Expr) -> Body:
        c, dtype, group = self.config, self.weight.scale_dtype, self.weight.group
        width = WIDEST // dtype.bytes
        each = TILE // width

        def copy(piece: Expr) -> Body:
            tile, local = piece // (self.stage_groups * each), piece // each % self.stage_groups
            first = number * c.stage_k // group
            in_n, in_k = Var("first_tile") + tile, first + local
            guard = both(below(in_n, Var("tile_count")), below(in_k, Var("group_count")))
            column = piece % each * width
            source = element_of("scales", dtype, (in_n * Var("group_count") + in_k) * TILE + column)
            target = at(self.scale_ring, stage, tile, local, column)
            return (Move(target, source, width, guard, origin="scales", asynchronous=True),)

        return self._pieces("share", c.block_tiles * self.stage_groups * each, copy)

    # -- products -----------------------------------------------------------------------------------------------------

    def _over(self, make: Callable[[Expr, Expr, Expr], Assign]) -> Body:
        """Each sum of a lane."""

        def tile(t: Expr) -> Body:
            return unrolled("m", self.across, lambda m: unrolled("i", _SUMS, lambda i: make(t, m, i)))

        return unrolled("t", self.config.tiles, tile)

    def _multiply(self) -> Body:
        """A stage: group by group, where they are whole units; else unit by unit, which has several groups."""
        unit, group = self.weight.unit, self.group
        buffers = (self.words, self.left, self.right, self.part, self.held_scale, self.scale)
        declared = tuple(Alloc(one) for one in (buffers if self.grouped else buffers[:4]))
        steps = unit // TILE
        if group >= unit:
            units = group // unit

            def whole(g: Expr) -> Body:
                def one(u: Expr) -> Body:
                    number = g * units + u
                    return together(self._load_words(number), self._steps(number, ZERO, steps))

                return together(self._clear(), unrolled("u", units, one), self._promote(g))

            return together(declared, unrolled("g", self.config.own_k // group, whole))
        several = unit // group

        def unit_of(u: Expr) -> Body:
            def part(g: Expr) -> Body:
                first = g * (group // TILE)
                return together(self._clear(), self._steps(u, first, group // TILE), self._promote(u * several + g))

            return together(self._load_words(u), unrolled("g", several, part))

        return together(declared, unrolled("u", self.own_units, unit_of))

    def _clear(self) -> Body:
        return self._over(lambda t, m, i: Assign(at(self.part, t, m, i), real(0), origin="part"))

    def _load_words(self, unit: Expr) -> Body:
        def one(t: Expr) -> Move:
            tile, own = self.warp_n * self.config.tiles + t, self.warp_k * self.own_units + unit
            source = at(self.code_ring, self.stage, tile, own, self.lane, 0)
            return Move(at(self.words, t, 0), source, LANE_WORDS, origin="codes")

        return unrolled("t", self.config.tiles, one)

    def _steps(self, unit: Expr, first: Expr, count: int) -> Body:
        """Multiplications of `count` times 16 of k, an even number, from a step of a unit on."""
        weight = self.weight
        together_steps = _STEPS if self.across == 1 else 1

        def steps(pair: Expr) -> Body:
            start = first + pair * together_steps
            k = self.warp_k * self.config.own_k + (unit * (weight.unit // TILE) + start) * TILE

            def step(s: Expr) -> Body:
                word = (start + s) * weight.words_of_step

                def tile(t: Expr) -> Body:
                    unpack = UnpackCodes(at(self.left, t, 0), at(self.words, t, word), weight.codes, origin="codes")
                    return together(unpack, unrolled("m", self.across, lambda m: self._product(t, m, s)))

                return unrolled("t", self.config.tiles, tile)

            return together(self._load_a(k), unrolled("s", together_steps, step))

        return unrolled("pair", count // together_steps, steps)

    def _load_a(self, k: Expr) -> Body:
        """Of A, 16 rows at 16 of k, or 8 rows at 32: ldmatrix gives each lane its part of four 8 x 8 matrices."""
        row, matrix = self.lane % EIGHT, self.lane // EIGHT
        if self.across == 1:
            source = at(self.a_ring, self.stage, row, k + matrix * EIGHT)
            return (LoadMatrices(at(self.right, ZERO, 0), source, 4, origin="A"),)

        def load(pair: Expr) -> LoadMatrices:
            place = pair * TILE + matrix // 2 * EIGHT + row
            source = at(self.a_ring, self.stage, place, k + matrix % 2 * EIGHT)
            return LoadMatrices(at(self.right, pair * 2, 0), source, 4, origin="A")

        return unrolled("m", self.across // 2, load)

    def _product(self, t: Expr, m: Expr, s: Expr) -> MultiplyTiles:
        d, a, b = at(self.part, t, m, 0), at(self.left, t, 0), at(self.right, m + s, 0)
        return MultiplyTiles(self.instruction, d, a, b, origin="part")

    def _promote(self, group: Expr) -> Body:
        """The sum of a group, times its scale, added to that of all."""
        if not self.grouped:
            return self._over(self._add_part)
        c = self.config
        local = (self.warp_k * c.own_k + group * self.group) // self.weight.group

        def load(t: Expr) -> Body:
            place = at(self.scale_ring, self.stage, self.warp_n * c.tiles + t, local, self.lane // 4 * 2)

            def convert(e: Expr) -> Assign:
                return Assign(at(self.scale, t, e), as_f32(Load(self.held_scale, (t, e))), origin="scales")

            return together(Move(at(self.held_scale, t, 0), place, 2, origin="scales"), unrolled("e", 2, convert))

        def add_part(t: Expr, m: Expr, h: Expr) -> Body:
            def one(i: Expr) -> Assign:
                where = (t, m, h * 2 + i)
                value = Fma(Load(self.part, where), Load(self.scale, (t, h)), Load(self.total, where))
                return Assign(Ref(self.total, where), value, origin="total")

            return unrolled("i", 2, one)

        def tile(t: Expr) -> Body:
            return unrolled("m", self.across, lambda m: unrolled("h", 2, lambda h: add_part(t, m, h)))

        return together(unrolled("t", c.tiles, load), unrolled("t", c.tiles, tile))

    def _add_part(self, t: Expr, m: Expr, i: Expr) -> Assign:
        value = Binary(Op.ADD, Load(self.total, (t, m, i)), Load(self.part, (t, m, i)))
        return Assign(at(self.total, t, m, i), value, origin="total")

    # -- the end ------------------------------------------------------------------------------------------------------

    def _add_warps(self) -> Body:
        """The sums of each warp to shared memory."""
        c = self.config

        def store(t: Expr, m: Expr, h: Expr, i: Expr) -> Move:
            row = m * EIGHT + self.lane % 4 * 2 + i
            column = (self.warp_n * c.tiles + t) * TILE + h * EIGHT + self.lane // 4
            return Move(at(self.sums, self.warp_k, row, column), at(self.total, t, m, h * 2 + i), origin="sums")

        def tile(t: Expr) -> Body:
            def across(m: Expr) -> Body:
                return unrolled("h", 2, lambda h: unrolled("i", 2, lambda i: store(t, m, h, i)))

            return unrolled("m", self.across, across)

        return together(WaitCopies(0), unrolled("t", c.tiles, tile), Barrier(note="the sums of all warps are there"))

    def _finish(self) -> Body:
        c = self.config
        columns = Var("first_tile") * TILE
        return SumsStore(self.problem, self.sums, c.rows, c.columns, c.threads, Var("first_row"), columns).body()


WIDEST = 16
"""Bytes of a copy of scales."""
