"""The statements of a GEMV kernel; see `gemv.py` for what they do together."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.dtypes import F32, I32, I64
from tilewright.ir.async_stmt import L2Prefetch, StartNextGrid, WaitPreviousGrid
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import ZERO, Binary, Cast, Const, Expr, Fma, Load, Op, Ref, Var, binary, both, real
from tilewright.ir.expr import ceil_div as ceil_div_of
from tilewright.ir.finish import as_f32, store_finished
from tilewright.ir.kernel import BATCH, PART_OF_K, SIZES, Kernel, Variant, step_of
from tilewright.ir.stmt import Alloc, Assign, Barrier, Body, For, Let, Move, ShuffleAdd
from tilewright.ir.work import Problems, SplitK
from tilewright.kernels.gemv import GemvConfig
from tilewright.kernels.gemv_space import ASKED_BYTES, STAGE_UNROLL, blocks_by_registers
from tilewright.kernels.skinny import few_order, is_k_major, long_of, short_of
from tilewright.kernels.statements import (
    BLOCK,
    THREAD,
    WARP_LANES,
    at,
    below,
    element_of,
    least,
    registers,
    times,
    together,
    unrolled,
    verified,
)
from tilewright.problem.gemm import Dim, Gemm, OperandName
from tilewright.problem.values import AddedName
from tilewright.units import ceil_div

_QUAD = 4
"""Floats of the widest access to shared memory."""


class GemvBody:
    """The statements of a thread. few, sums: the shared buffers. long_dim: the dimension that blocks share out."""

    def __init__(self, config: GemvConfig, gemm: Gemm, *, batched: bool, early: bool) -> None:
        self.config = config
        self.gemm = gemm
        self._batched = batched
        self._early = early
        self.k_major = is_k_major(gemm)
        self.long, self.short = long_of(gemm), short_of(gemm)
        self.long_dim: Dim = "n" if self.long == "B" else "m"
        self.many, self.few_rows = (SIZES["n"], SIZES["m"]) if self.long == "B" else (SIZES["m"], SIZES["n"])
        c, k_major = config, self.k_major
        self.vectors = c.outputs
        self.each = 1 if k_major else c.width  # outputs of a vector
        self.batch_k = c.batch_k(k_major=k_major)
        self.block_outputs = c.outputs_of_block(k_major=k_major)
        dtype = gemm.dtype
        shape, axes = ((c.rows, c.chunk), ("row", "k")) if k_major else ((c.chunk, c.pitch), ("k", "row"))
        self.few = Buffer("few", Space.SHARED, F32, shape, axes, "the skinny operand, in f32")
        self.sums = Buffer("sums", Space.SHARED, F32, (c.warps_k, c.rows, self.block_outputs), ("warp_k", "row", "out"))
        self.sums_of_row = self.vectors * self.each
        self.acc = registers("acc", F32, c.rows, self.sums_of_row)
        self.ring = registers("ring", dtype, c.steps, self.vectors, c.width, note="loads in flight")
        self.lane_k, self.first_out = Var("lane_k"), Var("first_out")
        self.warp_k: Expr = Var("warp_k") if c.warps_k > 1 else ZERO
        self.k_begin: Expr = Var("k_begin") if c.split_k > 1 else ZERO
        self.k_length, self.k_vectors = Var("k_length"), Var("k_vectors")

    # -- where things lie ---------------------------------------------------------------------------------------------

    def _operand(self, name: OperandName, output: Expr, k: Expr) -> Ref:
        """An element of A or B. output: its row of A or column of B."""
        operand = self.gemm.operand(name)
        line, column = (output, k) if operand.contiguous == "k" else (k, output)
        return self._element(name, times(line, operand.leading, near=self.config.near) + column)

    def _element(self, name: OperandName | AddedName, offset: Expr) -> Ref:
        """An element of the matrix of this block's problem, or of its partial sums."""
        base: Expr | None = None
        if self._batched and not self.gemm.operand(name).is_vector:
            base = times(Var("blockIdx.z"), step_of(name), near=False)
        elif name == "C" and self.config.split_k > 1:
            matrix = Binary(Op.MUL, Cast(I64, Var("blockIdx.y")), SIZES["m"])
            base = Binary(Op.MUL, matrix, Var(self.gemm.operand("C").leading, I32))
        return element_of(name, self.gemm.operand(name).dtype, offset, base)

    def _output(self, vector: Expr) -> Expr:
        """The first output of a lane's vector."""
        return self.first_out + vector * (self.config.lanes_out * self.each)

    def _k_of(self, step: Expr) -> Expr:
        """The first k of a lane in a step of the block, from k_begin on. step: of the block's whole range."""
        c = self.config
        lanes = (step * c.warps_k + self.warp_k) * c.lanes_k + self.lane_k
        return lanes * c.width if self.k_major else lanes

    # -- the parts of the kernel --------------------------------------------------------------------------------------

    def body(self) -> Body:
        c = self.config

        def clear(r: Expr) -> Body:
            return unrolled("o", self.sums_of_row, lambda o: Assign(at(self.acc, r, o), real(0), origin="acc"))

        return together(
            self._coordinates(),
            self._begin(),
            Alloc(self.acc),
            unrolled("r", c.rows, clear),
            Alloc(self.ring),
            unrolled("u", c.steps, lambda u: self._load(ZERO, u)),
            self._chunks(),
            self._tail() if self.k_major and not c.whole_k and c.width > 1 else (),
            self._add_lanes(),
            self._finish(),
        )

    def _coordinates(self) -> Body:
        c = self.config
        warp, lane = Var("warp"), Var("lane")
        split = c.split_k > 1
        length: Expr = least(PART_OF_K, SIZES["k"] - self.k_begin) if split else SIZES["k"]
        whole = self.k_length if not self.k_major or c.whole_k else self.k_length // c.width * c.width
        own = warp // c.warps_k * (c.lanes_out * self.vectors) + lane % c.lanes_out
        return together(
            Let("warp", THREAD // WARP_LANES),
            Let("lane", THREAD % WARP_LANES),
            Let("lane_k", lane // c.lanes_out),
            Let("warp_k", warp % c.warps_k) if c.warps_k > 1 else (),
            Let("own_out", own * self.each, note="this lane's first among the outputs of the block"),
            Let("first_out", BLOCK * self.block_outputs + Var("own_out")),
            Let("k_begin", Var("blockIdx.y") * PART_OF_K) if split else (),
            Let("k_length", length),
            Let("k_vectors", whole, note="products of an output that come in whole loads"),
            Let("batches", ceil_div_of(self.k_length, self.batch_k)),
        )

    def _begin(self) -> Body:
        """The wait for the kernel before, where this one starts under it; first the L2 is asked for the first loads."""
        if not self._early:
            return ()
        return together(StartNextGrid(), unrolled("u", self._asked_steps, self._ask), WaitPreviousGrid())

    @property
    def _asked_steps(self) -> int:
        step_bytes = self.vectors * self.config.width * self.gemm.dtype.bytes * self.config.threads
        return min(self.config.steps, max(1, ASKED_BYTES // step_bytes))

    def _source(self, k: Expr, vector: Expr) -> tuple[Ref, Expr]:
        """What a lane loads, and whether it is there: not behind the end of k or of the outputs."""
        output = self._output(vector)
        guard = both(below(k, self.k_vectors), below(output, self.many))
        return self._operand(self.long, output, self.k_begin + k), guard

    def _ask(self, step: Expr) -> Body:
        k = self._k_of(step)
        return unrolled("v", self.vectors, lambda v: L2Prefetch(*self._source(k, v), origin=self.long))

    def _load(self, batch: Expr, step: Expr) -> Body:
        """The loads of a step of a batch into the ring, or zeros."""
        k = self._k_of(batch * self.config.steps + step)

        def one(vector: Expr) -> Move:
            place, guard = self._source(k, vector)
            return Move(
                at(self.ring, step, vector, ZERO), place, self.config.width, guard, origin=self.long, streaming=True
            )

        return unrolled("v", self.vectors, one)

    def _chunks(self) -> Body:
        c = self.config
        in_chunk = c.chunk // self.batch_k
        first = Var("chunk") * in_chunk  # batch of the chunk
        batch = For(
            "k_batch",
            least(Const(in_chunk), Var("batches") - first),
            together(unrolled("u", c.steps, lambda u: self._step(first, u))),
        )
        return (
            For(
                "chunk",
                ceil_div_of(Var("batches"), in_chunk),
                together(
                    Barrier(note="the chunk before is used up"),
                    self._stage(),
                    Barrier(note="this chunk is complete"),
                    batch,
                ),
            ),
        )

    def _stage(self) -> Body:
        """The skinny operand of a chunk, to shared memory in f32; zeros behind what comes in whole loads."""
        c, few_width = self.config, self.config.few_width
        pieces = c.rows * c.chunk // (c.threads * few_width)
        together_ = min(pieces, STAGE_UNROLL)
        fetched = registers("fetched", self.gemm.dtype, together_, few_width)
        in_f32 = registers("in_f32", F32, few_width)

        def place(i: Expr) -> tuple[Expr, Expr]:
            """The row, and k from the chunk's first on."""
            rounds: Expr = Var("round") if pieces > together_ else ZERO
            number = (rounds * together_ + i) * c.threads + THREAD
            if few_order(self.gemm) == "k":
                return number // (c.chunk // few_width), number % (c.chunk // few_width) * few_width
            return number % c.rows, number // c.rows

        def load(i: Expr) -> Move:
            row, k = place(i)
            local = Var("chunk") * c.chunk + k
            guard = both(below(row, self.few_rows), below(local, self.k_vectors))
            source = self._operand(self.short, row, self.k_begin + local)
            return Move(at(fetched, i, ZERO), source, few_width, guard, origin=self.short)

        def store(i: Expr) -> Body:
            row, k = place(i)
            convert = unrolled("e", few_width, lambda e: Assign(at(in_f32, e), as_f32(Load(fetched, (i, e)))))
            if self.k_major:
                put: Body = (
                    Move(at(self.few, row, self._place_in_chunk(k)), at(in_f32, ZERO), few_width, origin="few"),
                )
            else:
                put = unrolled("e", few_width, lambda e: Move(at(self.few, k + e, row), at(in_f32, e), 1, origin="few"))
            return together(Alloc(in_f32), convert, put)

        body = together(Alloc(fetched), unrolled("i", together_, load), unrolled("i", together_, store))
        return (For("round", Const(pieces // together_), body),) if pieces > together_ else body

    def _place_in_chunk(self, k: Expr) -> Expr:
        """Where k lies in a row of the chunk: of 8 neighbours the first halves of all lanes, then the second ones, so
        that lanes read neighbouring 16 bytes."""
        c = self.config
        if c.width <= _QUAD:
            return k
        block = c.lanes_k * c.width
        within = k % block
        halves = within // _QUAD % (c.width // _QUAD) * (block * _QUAD // c.width)
        return k // block * block + halves + within // c.width * _QUAD + k % _QUAD

    def _step(self, first: Expr, step: Expr) -> Body:
        """The products of a step, and the loads of the same step of the next batch."""
        c = self.config
        local = (Var("k_batch") * c.steps + step) * c.warps_k + self.warp_k  # of a warp's lanes together
        value = registers("value", F32, self.vectors, c.width)
        convert: Body = ()
        if self.gemm.dtype is not F32:
            convert = together(
                Alloc(value),
                unrolled(
                    "v", self.vectors, lambda v: unrolled("e", c.width, lambda e: self._convert(value, step, v, e))
                ),
            )

        def held(v: Expr, e: Expr) -> Expr:
            return Load(self.ring, (step, v, e)) if self.gemm.dtype is F32 else Load(value, (v, e))

        products = self._products_along(local, held) if self.k_major else self._products_across(local, held)
        return together(convert, products, self._load(first + Var("k_batch") + 1, step))

    def _convert(self, value: Buffer, step: Expr, v: Expr, e: Expr) -> Assign:
        return Assign(at(value, v, e), as_f32(Load(self.ring, (step, v, e))), origin=self.long)

    def _products_along(self, local: Expr, held: Callable[[Expr, Expr], Expr]) -> Body:
        """K-major: `width` neighbours of k of each few row, times as many of each output."""
        c = self.config
        factor = registers("factor", F32, c.width)
        quad = min(c.width, _QUAD)
        block = c.lanes_k * c.width
        first = local * block + self.lane_k * quad

        def row(r: Expr) -> Body:
            def load(h: Expr) -> Move:
                place = at(self.few, r, first + h * (block * quad // c.width))
                return Move(at(factor, h * quad), place, quad, origin="few")

            def products(v: Expr) -> Body:
                return unrolled("e", c.width, lambda e: self._fma(r, v, Load(factor, (e,)), held(v, e)))

            return together(Alloc(factor), unrolled("h", c.width // quad, load), unrolled("v", self.vectors, products))

        return unrolled("r", c.rows, row)

    def _products_across(self, local: Expr, held: Callable[[Expr, Expr], Expr]) -> Body:
        """MN-major: each few row at one k, times `width` neighbouring outputs."""
        c = self.config
        factor = registers("factor", F32, c.rows)
        quad = min(c.rows, _QUAD)
        k = local * c.lanes_k + self.lane_k

        def load(h: Expr) -> Move:
            return Move(at(factor, h * quad), at(self.few, k, h * quad), quad, origin="few")

        def row(r: Expr) -> Body:
            def products(v: Expr) -> Body:
                return unrolled("e", c.width, lambda e: self._fma(r, v * c.width + e, Load(factor, (r,)), held(v, e)))

            return unrolled("v", self.vectors, products)

        return together(Alloc(factor), unrolled("h", c.rows // quad, load), unrolled("r", c.rows, row))

    def _fma(self, row: Expr, output: Expr, factor: Expr, value: Expr) -> Assign:
        total = Load(self.acc, (row, output))
        return Assign(at(self.acc, row, output), Fma(factor, value, total), origin="acc")

    def _tail(self) -> Body:
        """K-major, where K is not a multiple of `width`: a product a lane, of the last few."""
        c = self.config
        k = self.k_vectors + self.lane_k
        there = both(below(k, self.k_length), below(self.warp_k, 1))
        last, factor = registers("last", self.gemm.dtype, self.vectors), registers("last_few", self.gemm.dtype, c.rows)

        def load_long(v: Expr) -> Move:
            output = self._output(v)
            place = self._operand(self.long, output, self.k_begin + k)
            return Move(at(last, v), place, 1, both(there, below(output, self.many)), origin=self.long)

        def load_few(r: Expr) -> Move:
            place = self._operand(self.short, r, self.k_begin + k)
            return Move(at(factor, r), place, 1, both(there, below(r, self.few_rows)), origin=self.short)

        def products(r: Expr) -> Body:
            one = lambda v: self._fma(r, v, as_f32(Load(factor, (r,))), as_f32(Load(last, (v,))))  # noqa: E731
            return unrolled("v", self.vectors, one)

        return together(
            (Alloc(last), Alloc(factor)),
            unrolled("v", self.vectors, load_long),
            unrolled("r", c.rows, load_few),
            unrolled("r", c.rows, products),
        )

    def _add_lanes(self) -> Body:
        """The sums of the lanes of a warp, then of each warp to shared memory."""
        c = self.config
        masks = [mask for mask in (16, 8, 4, 2, 1) if mask >= c.lanes_out]
        quad = min(self.each, _QUAD)

        def shuffles(r: Expr) -> Body:
            def one(o: Expr) -> Body:
                return together(*(ShuffleAdd(at(self.acc, r, o), mask, origin="acc") for mask in masks))

            return unrolled("o", self.sums_of_row, one) if masks else ()

        def store(r: Expr) -> Body:
            def of_vector(v: Expr) -> Body:
                def piece(h: Expr) -> Move:
                    own = Var("own_out") + v * (c.lanes_out * self.each) + h * quad
                    source = at(self.acc, r, v * self.each + h * quad)
                    return Move(at(self.sums, self.warp_k, r, own), source, quad, below(self.lane_k, 1), origin="sums")

                return unrolled("h", self.each // quad, piece)

            return unrolled("v", self.vectors, of_vector)

        return together(
            unrolled("r", c.rows, shuffles),
            unrolled("r", c.rows, store),
            Barrier(note="the sums of all warps are there"),
        )

    def _finish(self) -> Body:
        """Sums of the warps in their order, and C."""
        c = self.config
        outputs = c.rows * self.block_outputs
        number, row, output = Var("number"), Var("row"), Var("output")
        total, part = registers("total", F32, 1), registers("part", F32, c.warps_k)
        inside = both(below(row, self.few_rows), below(output, self.many))
        rounds = ceil_div(outputs, c.threads)
        there = below(number, outputs) if outputs % c.threads else None

        def load(w: Expr) -> Move:
            place = at(self.sums, w, row, number % self.block_outputs)
            return Move(at(part, w), place, 1, there, origin="sums")

        def add(w: Expr) -> Assign:
            return Assign(at(total, ZERO), Binary(Op.ADD, Load(total, (ZERO,)), Load(part, (w + 1,))), origin="sums")

        def one(i: Expr) -> Body:
            return together(
                Let("number", THREAD + i * c.threads),
                Let("row", number // self.block_outputs),
                Let("output", BLOCK * self.block_outputs + number % self.block_outputs),
                (Alloc(total), Alloc(part)),
                unrolled("w", c.warps_k, load),
                Assign(at(total, ZERO), Load(part, (ZERO,)), origin="sums"),
                unrolled("w", c.warps_k - 1, add) if c.warps_k > 1 else (),
                store_finished(
                    self.gemm.epilogue,
                    self.gemm.out,
                    lambda _: Load(total, (ZERO,)),
                    self._place,
                    guard=both(inside, there),
                ),
            )

        return unrolled("i", rounds, one) if rounds > 1 else one(ZERO)

    def _place(self, name: str) -> Ref:
        """The element of C, or of what the epilogue reads beside it, that belongs to this thread's output."""
        row, output = Var("row"), Var("output")
        m: Expr = row if self.long == "B" else output
        n: Expr = output if self.long == "B" else row
        operand = next(one for one in self.gemm.matrices if one.name == name)
        if operand.is_vector:
            at_one = ZERO if operand.is_single else n if operand.contiguous == "n" else m
            return self._element(operand.name, at_one)
        line, column = (m, n) if operand.contiguous == "n" else (n, m)
        return self._element(operand.name, times(line, operand.leading, near=self.config.near) + column)


def gemv_kernel(c: GemvConfig, gemm: Gemm, *, problems: Problems = Problems.ONE, early: bool = False) -> Kernel:
    """The kernel for the formats, orders and epilogue of a problem; sizes are arguments. early: it starts under the
    kernel before it (programmatic dependent launch).

    Where k is split, C of the problem is the workspace: f32, row-major, with alpha 1, beta 0 and no epilogue.
    """
    k_major = is_k_major(gemm)
    body = GemvBody(c, gemm, batched=problems is Problems.STRIDED, early=early)
    split = c.split_k > 1
    blocks_k = binary(Op.DIV, SIZES["k"] + PART_OF_K - 1, PART_OF_K) if split else Const(1)
    outputs = c.outputs_of_block(k_major=k_major)
    tile: dict[Dim, int] = {"m": c.rows, "n": c.rows, "k": c.width if k_major else 1}
    tile[body.long_dim] = outputs
    exact: frozenset[Dim] = frozenset(("k",) if k_major and c.whole_k and c.width > 1 else ())
    shape = f"{c.rows}x{c.width}_{c.outputs}x{c.steps}_{c.lanes_k}_{c.warps_k}of{c.warps}"
    ends = f"{c.chunk}{'_split' if split else ''}{'_early' if early else ''}"
    return verified(
        Kernel(
            f"gemv_{'k' if k_major else 'mn'}_{gemm.dtype.name}_{shape}_{ends}",
            gemm,
            Variant(exact, c.width * gemm.dtype.bytes, c.near, result_bytes=1),
            (
                ceil_div_of(SIZES[body.long_dim], outputs),
                blocks_k,
                BATCH if problems is Problems.STRIDED else Const(1),
            ),
            (c.threads, 1, 1),
            (body.few, body.sums),
            body.body(),
            tile,
            split_k=SplitK.PARTIALS if split else SplitK.NONE,
            problems=problems,
            blocks=blocks_by_registers(c, gemm),
            overlapped=early,
        )
    )
