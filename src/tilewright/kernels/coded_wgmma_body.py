"""The statements of a product with a coded weight by wgmma; see `coded_wgmma.py` for what they do together."""

from __future__ import annotations

from tilewright.dtypes import F32, I32, MBARRIER
from tilewright.ir.async_stmt import (
    ArriveBarrier,
    ClusterBarrier,
    ExpectBytes,
    FenceBarriers,
    InitBarrier,
    PrefetchMap,
    SetRegisters,
    SharedMatrix,
    StartNextGrid,
    StoreAsync,
    TeamBarrier,
    TensorMap,
    TmaLoad,
    WaitBarrier,
    WaitPreviousGrid,
    Wgmma,
    WgmmaCommit,
    WgmmaFence,
    WgmmaWait,
)
from tilewright.ir.buffer import Buffer, Handoff, Space
from tilewright.ir.expr import ZERO, Binary, Const, Expr, Fma, Load, Op, Ref, Var, binary, both, real
from tilewright.ir.expr import ceil_div as ceil_div_of
from tilewright.ir.finish import as_f32
from tilewright.ir.kernel import SIZES
from tilewright.ir.register_budgets import budgets
from tilewright.ir.stmt import Alloc, Assign, Barrier, Body, For, If, Let, Move, UnpackCodes
from tilewright.isa.catalog import instruction
from tilewright.kernels.coded_store import SumsStore
from tilewright.kernels.coded_wgmma_tile import GROUP_THREADS, CodedWgmmaTile
from tilewright.kernels.statements import BLOCK, THREAD, WARP_LANES, at, registers, together, unrolled
from tilewright.layout.swizzle import NO_SWIZZLE, SWIZZLE_128B
from tilewright.problem.coded_product import LANE_WORDS, TILE, CodedProduct
from tilewright.problem.weight_codes import FRAGMENT_CODES, Codes

ATOM = 64
"""Elements of k of a row of a swizzle atom: 128 bytes."""

SUMS_PAD = 4
"""Elements behind each row of sums: lanes of a warp store to different banks."""

_WARPS = 4
_CORE_ROWS = 8
_SUMS = 4
"""Accumulators of a lane for 8 rows of A."""
_OTHER_REGISTERS, _LEAST_ROWS = 36, 40
"""Of a consumer, beside accumulators and codes: fragments, scales, addresses. Few accumulators save none of them. With
fewer, ptxas spills or serialises wgmma (CUDA 13.0)."""
_TEAM = Const(1)
"""The named barrier of the warpgroups that multiply."""


def needed_registers(rows: int, codes: Codes) -> int:
    """Of a thread that multiplies."""
    more = 8 if rows > 64 else 0
    return max(rows, _LEAST_ROWS) + _OTHER_REGISTERS + codes.bits + more


class CodedWgmmaBody:
    """The statements of a thread."""

    def __init__(self, config: CodedWgmmaTile, problem: CodedProduct) -> None:
        c, weight = config, problem.weight
        self.config, self.problem, self.weight = config, problem, weight
        self.group = weight.group or c.own_k  # of k, whose sum is added at once
        self.span = max(self.group, weight.unit)  # of k, whose codes are loaded at once
        self.stage_groups = c.stage_k // weight.group if weight.group else 0
        self.units = c.stage_k // weight.unit
        self.box_units = 2 if self.units % 2 == 0 else 1
        self.across = c.rows // _CORE_ROWS
        self.instruction = instruction(f"wgmma.m64n{c.rows}k16", problem.dtype, F32)
        shape = (c.stage_k // ATOM, c.rows, ATOM)
        self.a_ring = self._ring("A_ring", problem.dtype.name, shape, ("atom", "row", "k"), 1024)
        codes = (self.units // self.box_units, c.block_tiles, self.box_units, WARP_LANES, LANE_WORDS)
        self.code_ring = self._ring("code_ring", "i32", codes, ("box", "tile", "unit", "lane", "word"))
        scales = (c.block_tiles, max(self.stage_groups, 1), TILE)
        self.scale_ring = self._ring("scale_ring", weight.scale_dtype.name, scales, ("tile", "group", "column"))
        self.full, self.empty = (self._barriers(name, c.stages) for name in ("full", "empty"))
        self.parts_full = self._barriers("parts_full", 1)
        sums = (c.groups_k, c.owned_rows, c.columns + SUMS_PAD)
        self.sums = Buffer("sums", Space.SHARED, F32, sums, ("group_k", "row", "column"), handoff=Handoff.WARPGROUP)
        chunks = self.across // c.cluster
        parts = (c.cluster, chunks, c.consumers * GROUP_THREADS, _SUMS)
        axes = ("block of the cluster", "chunk", "thread", "element")
        self.parts = Buffer("parts", Space.SHARED, F32, parts, axes, handoff=Handoff.MBARRIERS)
        self.total = registers("total", F32, self.across, _SUMS, note="of all groups")
        self.part = registers("part", F32, self.across, _SUMS, note="of one group")
        span_units = self.span // weight.unit
        self.words = registers("words", I32, span_units, LANE_WORDS, note="codes")
        self.left = registers("left", problem.dtype, 2, c.steps, FRAGMENT_CODES, note="unpacked, in turn")
        groups = self.span // self.group
        self.held_scale = registers("held_scale", weight.scale_dtype, groups, 2)
        self.scale = registers("scale", F32, 2, note="of the lane's two columns")
        self.maps = self._maps()
        self.stage, self.parity = Var("stage"), Var("parity")
        self.lane, self.thread = Var("lane"), Var("group_thread")
        self.group_n, self.group_k = Var("group_n"), Var("group_k")

    def _ring(self, name: str, dtype: str, shape: tuple[int, ...], axes: tuple[str, ...], align: int = 128) -> Buffer:
        kinds = {one.name: one for one in (self.problem.dtype, self.weight.scale_dtype, I32)}
        stages, named = self.config.stages, ("stage", *axes)
        ring = (stages, *shape)
        return Buffer(
            name, Space.SHARED, kinds[dtype], ring, named, "", align, stages=stages, handoff=Handoff.MBARRIERS
        )

    @staticmethod
    def _barriers(name: str, count: int) -> Buffer:
        return Buffer(name, Space.SHARED, MBARRIER, (count,), ("stage",), stages=count)

    def _maps(self) -> dict[str, TensorMap]:
        c = self.config
        boxes = {
            "A": ((ATOM, c.rows), SWIZZLE_128B),
            "codes": ((self.box_units * WARP_LANES * LANE_WORDS, c.block_tiles), NO_SWIZZLE),
            "scales": ((self.stage_groups * TILE, c.block_tiles), NO_SWIZZLE),
        }
        names = ("A", "codes", "scales") if self.grouped else ("A", "codes")
        return {name: TensorMap(f"{name}_map", name, *boxes[name]) for name in names}

    @property
    def grouped(self) -> bool:
        return self.weight.group > 0

    @property
    def shared(self) -> tuple[Buffer, ...]:
        scales = (self.scale_ring,) if self.grouped else ()
        parts = (self.parts, self.parts_full) if self.config.cluster > 1 else ()
        return self.a_ring, self.code_ring, *scales, self.sums, *parts, self.full, self.empty

    def body(self) -> Body:
        is_producer = binary(Op.EQ, Var("group"), self.config.consumers)
        return together(self._coordinates(), self._init(), If(is_producer, self._producer(), self._consumer()))

    def _coordinates(self) -> Body:
        c = self.config
        stages = ceil_div_of(SIZES["k"], c.stage_k)
        rank = Var("rank")
        shared: Body = (Let("stage_count", stages),)
        if c.cluster > 1:
            shared = (
                Let("rank", binary(Op.MOD, BLOCK, c.cluster)),
                Let("k_stages", stages),
                Let("first_stage", binary(Op.DIV, Var("k_stages") * rank, c.cluster)),
                Let("stage_count", binary(Op.DIV, Var("k_stages") * (rank + 1), c.cluster) - Var("first_stage")),
            )
        return together(
            Let("group", THREAD // GROUP_THREADS, uniform=True),
            Let("group_thread", THREAD % GROUP_THREADS),
            shared,
            Let("first_tile", BLOCK // c.cluster * c.block_tiles),
            Let("first_row", Var("blockIdx.y") * c.rows),
        )

    def _init(self) -> Body:
        """One thread makes the barriers, and all see them."""
        c, stage = self.config, Var("stage")
        of_parts: Body = ()
        if c.cluster > 1:
            signal = at(self.parts_full, ZERO)
            of_parts = (InitBarrier(signal, 1), ExpectBytes(signal, self.parts.size_bytes))
        ring = InitBarrier(at(self.full, stage), 1), InitBarrier(at(self.empty, stage), c.consumers * _WARPS)
        made = together(
            *(PrefetchMap(one) for one in self.maps.values()),
            For("stage", Const(c.stages), ring, unroll=True),
            of_parts,
            FenceBarriers(),
        )
        return together(
            If(binary(Op.EQ, THREAD, 0), made),
            ClusterBarrier() if c.cluster > 1 else Barrier("mbarriers are initialised"),
            StartNextGrid() if c.overlapped else (),
        )

    # -- copies -------------------------------------------------------------------------------------------------------

    @property
    def _wait(self) -> Body:
        return (WaitPreviousGrid(),) if self.config.overlapped else ()

    def _registers(self) -> tuple[int, int]:
        """Of a thread that loads, and of one that multiplies: those of two blocks that share an SM, if enough."""
        threads = self.config.threads
        shared = budgets(threads, blocks=2)
        return shared if shared[1] >= needed_registers(self.config.rows, self.weight.codes) else budgets(threads)

    def _use(self) -> Body:
        number, stages = Var("use"), self.config.stages
        return (
            Let("stage", binary(Op.MOD, number, stages)),
            Let("parity", binary(Op.MOD, binary(Op.DIV, number, stages), 2)),
        )

    def _producer(self) -> Body:
        c = self.config
        first = Var("first_stage") if c.cluster > 1 else ZERO
        load = together(
            self._use(),
            Let("number", first + Var("use")),
            WaitBarrier(at(self.empty, self.stage), self.parity ^ 1),
            ExpectBytes(at(self.full, self.stage), c.stage_bytes(self.problem)),
            self._load_a(),
            self._load_codes(),
            self._load_scales() if self.grouped else (),
        )
        produce = together(self._wait, For("use", Var("stage_count"), load))
        shrink = SetRegisters(self._registers()[0], grow=False)
        return together(shrink, If(binary(Op.EQ, self.thread, 0), produce))

    def _box(self, name: str, place: Ref, along: Expr, across: Expr) -> TmaLoad:
        return TmaLoad(place, self.maps[name], (along, across), at(self.full, self.stage), origin=name)

    def _load_a(self) -> Body:
        def load(atom: Expr) -> TmaLoad:
            k = Var("number") * self.config.stage_k + atom * ATOM
            return self._box("A", at(self.a_ring, self.stage, atom, 0, 0), k, Var("first_row"))

        return unrolled("atom", self.config.stage_k // ATOM, load)

    def _load_codes(self) -> Body:
        words = WARP_LANES * LANE_WORDS

        def load(box: Expr) -> TmaLoad:
            along = (Var("number") * self.units + box * self.box_units) * words
            return self._box("codes", at(self.code_ring, self.stage, box, 0, 0, 0, 0), along, Var("first_tile"))

        return unrolled("box", self.units // self.box_units, load)

    def _load_scales(self) -> Body:
        along = Var("number") * (self.stage_groups * TILE)
        return (self._box("scales", at(self.scale_ring, self.stage, 0, 0, 0), along, Var("first_tile")),)

    # -- products -----------------------------------------------------------------------------------------------------

    def _consumer(self) -> Body:
        c = self.config
        release = If(binary(Op.EQ, self.lane, 0), (ArriveBarrier(at(self.empty, self.stage)),))
        step = together(self._use(), WaitBarrier(at(self.full, self.stage), self.parity), self._multiply(), release)
        return together(
            SetRegisters(self._registers()[1], grow=True),
            self._wait,
            Let("warp", self.thread // WARP_LANES),
            Let("lane", self.thread % WARP_LANES),
            Let("group_n", Var("group") // c.groups_k),
            Let("group_k", Var("group") % c.groups_k),
            tuple(Alloc(one) for one in (self.total, self.part, self.left)),
            self._over(lambda j, i: Assign(at(self.total, j, i), real(0), origin="total")),
            For("use", Var("stage_count"), step),
            self._add_blocks() if c.cluster > 1 else self._add_groups(self.total),
            self._finish(),
        )

    def _over(self, make: object, across: int = 0) -> Body:
        """Each accumulator of a lane."""
        assert callable(make)
        return unrolled("j", across or self.across, lambda j: unrolled("i", _SUMS, lambda i: make(j, i)))

    def _multiply(self) -> Body:
        """A stage, span by span: codes and scales of one are loaded at once."""
        spans = self.config.own_k // self.span
        declared = (Alloc(self.words), *((Alloc(self.held_scale), Alloc(self.scale)) if self.grouped else ()))

        def span(number: Expr) -> Body:
            return together(
                self._load_words(number),
                self._load_held_scales(number) if self.grouped else (),
                unrolled("g", self.span // self.group, self._group),
            )

        def all_spans() -> Body:
            base = Let("own_k", self.group_k * self.config.own_k)
            return together(base, self._in_spans(spans, span))

        return together(declared, all_spans())

    def _in_spans(self, spans: int, make: object) -> Body:
        """span_k: where the running span begins in its stage."""
        assert callable(make)

        def one(number: Expr) -> Body:
            return together(Let("span_k", Var("own_k") + number * self.span), make(number))

        return unrolled("span", spans, one)

    def _tile(self) -> Expr:
        """That a warp unpacks, of the block's."""
        return self.group_n * _WARPS + Var("warp")

    def _load_words(self, _: Expr) -> Body:
        first = Var("span_k") // self.weight.unit

        def load(u: Expr) -> Move:
            unit = first + u
            box = unit // self.box_units, self._tile(), unit % self.box_units
            source = at(self.code_ring, self.stage, *box, self.lane, 0)
            return Move(at(self.words, u, 0), source, LANE_WORDS, origin="codes")

        return unrolled("u", self.span // self.weight.unit, load)

    def _load_held_scales(self, _: Expr) -> Body:
        first = Var("span_k") // self.group

        def load(g: Expr) -> Move:
            place = at(self.scale_ring, self.stage, self._tile(), first + g, self.lane // 4 * 2)
            return Move(at(self.held_scale, g, 0), place, 2, origin="scales")

        return unrolled("g", self.span // self.group, load)

    def _group(self, group: Expr) -> Body:
        """A group's MMAs: while some are under way, the codes of the next are unpacked into the other fragments."""
        steps = self.config.steps

        def batch(b: Expr) -> Body:
            first = group * (self.group // TILE) + b * steps
            return together(
                WgmmaWait(1, origin="part"),
                unrolled("s", steps, lambda s: self._unpack(first + s, binary(Op.MOD, b, 2), s)),
                WgmmaFence(),
                unrolled("s", steps, lambda s: self._product(first + s, b, s)),
                WgmmaCommit(),
            )

        wait = WgmmaWait(0, at(self.part, 0, 0), origin="part")
        return together(unrolled("b", self.group // TILE // steps, batch), wait, self._promote(group))

    def _unpack(self, step: Expr, turn: Expr, s: Expr) -> UnpackCodes:
        in_unit = self.weight.unit // TILE
        words = at(self.words, step // in_unit, step % in_unit * self.weight.words_of_step)
        return UnpackCodes(at(self.left, turn, s, 0), words, self.weight.codes, origin="codes")

    def _product(self, step: Expr, b: Expr, s: Expr) -> Wgmma:
        k = Var("span_k") + step * TILE
        place = at(self.a_ring, self.stage, k // ATOM, 0, k % ATOM)
        right = SharedMatrix(place, SWIZZLE_128B, False, 16, _CORE_ROWS * SWIZZLE_128B.row_bytes)
        fresh = both(binary(Op.EQ, b, 0), binary(Op.EQ, s, 0))
        left = at(self.left, binary(Op.MOD, b, 2), s, 0)
        return Wgmma(self.instruction, at(self.part, 0, 0), left, right, fresh, origin="part")

    def _promote(self, group: Expr) -> Body:
        """The sum of a group, times its scale, added to that of all."""
        if not self.grouped:

            def add(j: Expr, i: Expr) -> Assign:
                value = Binary(Op.ADD, Load(self.total, (j, i)), Load(self.part, (j, i)))
                return Assign(at(self.total, j, i), value, origin="total")

            return self._over(add)

        def convert(h: Expr) -> Assign:
            return Assign(at(self.scale, h), as_f32(Load(self.held_scale, (group, h))), origin="scales")

        def add_scaled(j: Expr, i: Expr) -> Assign:
            value = Fma(Load(self.part, (j, i)), Load(self.scale, (i // 2,)), Load(self.total, (j, i)))
            return Assign(at(self.total, j, i), value, origin="total")

        return together(unrolled("h", 2, convert), self._over(add_scaled))

    # -- the end ------------------------------------------------------------------------------------------------------

    def _add_blocks(self) -> Body:
        """Each block of the cluster gets from all what they have summed of its own rows, and adds it in their order."""
        c = self.config
        chunks, signal = self.across // c.cluster, at(self.parts_full, ZERO)
        owned, one = registers("owned", F32, chunks, _SUMS), registers("one", F32, _SUMS)

        def send(block: Expr, chunk: Expr) -> StoreAsync:
            target = at(self.parts, Var("rank"), chunk, THREAD, 0)
            source = at(self.total, block * chunks + chunk, 0)
            return StoreAsync(target, source, _SUMS, block, signal, origin="sums")

        def add(chunk: Expr, block: Expr) -> Body:
            load = Move(at(one, 0), at(self.parts, block, chunk, THREAD, 0), _SUMS, origin="sums")

            def added(i: Expr) -> Assign:
                value = Binary(Op.ADD, Load(owned, (chunk, i)), Load(one, (i,)))
                return Assign(at(owned, chunk, i), value, origin="sums")

            return together(load, unrolled("i", _SUMS, added))

        zero = self._over(lambda j, i: Assign(at(owned, j, i), real(0), origin="sums"), chunks)
        return together(
            unrolled("block", c.cluster, lambda block: unrolled("chunk", chunks, lambda chunk: send(block, chunk))),
            WaitBarrier(signal, ZERO, of_cluster=True),
            (Alloc(owned), Alloc(one)),
            zero,
            unrolled("chunk", chunks, lambda chunk: unrolled("block", c.cluster, lambda block: add(chunk, block))),
            self._add_groups(owned),
        )

    def _add_groups(self, held: Buffer) -> Body:
        """The sums of each warpgroup to shared memory."""

        def store(j: Expr, i: Expr) -> Move:
            row = j * _CORE_ROWS + self.lane % 4 * 2 + i % 2
            column = self._tile() * TILE + i // 2 * 8 + self.lane // 4
            return Move(at(self.sums, self.group_k, row, column), at(held, j, i), origin="sums")

        meet = TeamBarrier(_TEAM, self.config.consumers * GROUP_THREADS)
        return together(self._over(store, held.shape[0]), meet)

    def _finish(self) -> Body:
        c = self.config
        first_row = Var("first_row") + Var("rank") * c.owned_rows if c.cluster > 1 else Var("first_row")
        threads, column = c.consumers * GROUP_THREADS, Var("first_tile") * TILE
        place = first_row, column, c.vector, c.cluster > 1
        return SumsStore(self.problem, self.sums, c.owned_rows, c.columns, threads, *place).body()
