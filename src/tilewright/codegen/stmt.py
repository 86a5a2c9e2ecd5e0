"""Statements as CUDA C++: a node, a case, a line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tilewright.codegen.async_calls import async_call
from tilewright.codegen.conversions import access_type, cuda_format, vector
from tilewright.codegen.expr import CudaExpr, is_scalar, pointer_of
from tilewright.codegen.lines import WIDTH, Line
from tilewright.codegen.matrix_prelude import load_fragment_name, load_matrices_name, multiply_name, store_fragment_name
from tilewright.codegen.names import Names
from tilewright.codegen.prelude import COMBINES_UP, SHARES, STORE_WHERE, copy_async, load_streaming
from tilewright.codegen.unpack_prelude import unpack_name
from tilewright.dtypes import F32
from tilewright.ir.async_stmt import StoreAsync, StoreMatrices
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import ZERO, Fma, Load, Op, Ref
from tilewright.ir.stmt import (
    Alloc,
    Assign,
    Barrier,
    Body,
    CommitCopies,
    For,
    If,
    Let,
    LoadFragment,
    LoadMatrices,
    Move,
    MultiplyTiles,
    QuadTranspose,
    RoundPair,
    ShuffleAdd,
    Stmt,
    StoreFragment,
    SyncWarp,
    UnpackCodes,
    WaitCopies,
)
from tilewright.ir.visit import Path, exprs_of, moved_from, walk, walk_expr, written
from tilewright.isa.wmma import WMMA_POINTER_BYTES
from tilewright.layout.fragment import MATRIX_ROW_BYTES, WORD_BYTES


@dataclass(frozen=True, slots=True)
class Declarations:
    """moved: the `Alloc`s of a body that are not printed where they stand. first: the statement, by its index,
    that declares a buffer, and whether nothing writes it afterwards."""

    moved: frozenset[int]
    first: dict[int, tuple[Buffer, bool]]


def declarations(body: Body) -> Declarations:
    """Which statements of `body` declare the scalar they write: `float a; ... a = A[i];` -> `const float a = A[i];`."""
    moved: set[int] = set()
    first: dict[int, tuple[Buffer, bool]] = {}
    for index, stmt in enumerate(body):
        if not isinstance(stmt, Alloc) or not is_scalar(stmt.buffer):
            continue
        users = [i for i in range(index + 1, len(body)) if _mentions(body[i], stmt.buffer)]
        if users and _sets(body[users[0]], stmt.buffer) and not _reads(body[users[0]], stmt.buffer):
            moved.add(index)
            later = walk(body[users[0] + 1 :])
            first[users[0]] = (stmt.buffer, not any(_writes(s, stmt.buffer) for _, s in later))
    return Declarations(frozenset(moved), first)


def _mentions(stmt: Stmt, buffer: Buffer) -> bool:
    return any(_writes(inner, buffer) or _reads(inner, buffer) for _, inner in walk((stmt,)))


def _sets(stmt: Stmt, buffer: Buffer) -> bool:
    """Whether a statement can declare a scalar."""
    return isinstance(stmt, (Assign, Move)) and stmt.dst.buffer == buffer


def _writes(stmt: Stmt, buffer: Buffer) -> bool:
    return any(place.buffer == buffer for place in written(stmt))


def _reads(stmt: Stmt, buffer: Buffer) -> bool:
    if isinstance(stmt, Move) and stmt.src.buffer == buffer:
        return True
    return any(isinstance(part, Load) and part.buffer == buffer for expr in exprs_of(stmt) for part in walk_expr(expr))


class BodyPrinter:
    """Prints statements, inside the names that are visible where it stands."""

    def __init__(self, names: Names, expr: CudaExpr, body: Body, *, merge: bool = True) -> None:
        self._names = names
        self._merge = merge
        self._expr = expr
        self._alignments = vector_bytes(body)
        self._in_words = buffers_in_words(body)

    def body(self, body: Body, depth: int, path: Path = ()) -> list[Line]:
        """The statements of one scope; `path` leads to it."""
        declared = declarations(body)
        lines: list[Line] = []
        with self._names.scope():
            for index, stmt in enumerate(body):
                if index in declared.moved:
                    continue
                here = (*path, index)
                if index in declared.first:
                    printed = [self._declared(stmt, *declared.first[index], depth)]
                else:
                    printed = list(self._stmt(stmt, depth, here))
                printed = [line if line.path else replace(line, path=here) for line in printed]
                if lines and _is_paragraph(printed, lines):
                    lines.append(Line(0, ""))
                lines += printed
        return lines

    def array(self, buffer: Buffer) -> str:
        """`__align__(16) float A_tile[8][132]`: a declaration, aligned for the widest access to it."""
        name = self._names.bind_buffer(buffer)
        if buffer in self._in_words:
            words = buffer.shape[-1] * buffer.dtype.bytes // WORD_BYTES
            extents = "".join(f"[{extent}]" for extent in (*buffer.shape[:-1], words))
            return f"unsigned {name}{extents};"
        shape = "" if is_scalar(buffer) else "".join(f"[{extent}]" for extent in buffer.shape)
        aligned = max(self._alignments.get(buffer, 0), buffer.align_bytes)
        prefix = f"__align__({aligned}) " if aligned else ""
        return f"{prefix}{self._expr.element_type(buffer)} {name}{shape};"

    def view(self, buffer: Buffer, place: str) -> str:
        """`float (&A_tile)[8][132] = ...`: the array that lies at `place` in memory declared elsewhere."""
        name = self._names.bind_buffer(buffer)
        shape = "".join(f"[{extent}]" for extent in buffer.shape)
        element = self._expr.type(buffer.dtype)
        return f"{element} (&{name}){shape} = *reinterpret_cast<{element} (*){shape}>({place});"

    def _stmt(self, stmt: Stmt, depth: int, path: Path) -> Iterator[Line]:
        match stmt:
            case Let():
                yield self._let(stmt, depth)
            case For():
                yield from self._for(stmt, depth, path)
            case If():
                yield Line(depth, f"if ({self._expr(stmt.condition)}) {{")
                if stmt.rare:
                    yield Line(depth + 1, 'asm volatile("");', "a branch, not selects")
                yield from self.body(stmt.then, depth + 1, (*path, 0))
                if stmt.otherwise:
                    yield Line(depth, "} else {")
                    yield from self.body(stmt.otherwise, depth + 1, (*path, 1))
                yield Line(depth, "}")
            case Alloc():
                words = ", in words" if stmt.buffer in self._in_words else ""
                yield Line(depth, self.array(stmt.buffer), buffer_note(stmt.buffer) + words)
            case Move(asynchronous=True):
                yield Line(depth, self._copy_async(stmt))
            case Move():
                yield from self._move(stmt, depth)
            case Assign(value=Fma() as fma) if fma.dtype is F32 and _adds_to(fma, stmt.dst):
                # The compiler contracts this to one multiply-add: its -fmad=true is the default, and a test looks.
                yield Line(depth, f"{self._expr.place(stmt.dst)} += {self._expr.product(fma)};")
            case Assign():
                yield Line(depth, f"{self._expr.place(stmt.dst)} = {self._expr.assigned(stmt.dst.buffer, stmt.value)};")
            case Barrier():
                yield Line(depth, "__syncthreads();", stmt.note)
            case SyncWarp():
                yield Line(depth, "__syncwarp();", stmt.note)
            case CommitCopies():
                yield Line(depth, f"{self._expr.call('cp_async_commit_group')};")
            case WaitCopies():
                self._expr.used.add("cp_async_wait_group")
                yield Line(depth, f"cp_async_wait_group<{stmt.pending}>();")
            case RoundPair():
                places = (self._expr.place(place) for place in (stmt.first, stmt.second))
                yield Line(depth, f"{self._expr.call(cuda_format(stmt.dtype).round_pair, *places)};")
            case UnpackCodes():
                yield Line(depth, f"{self._on(unpack_name(stmt.codes, stmt.dst.buffer.dtype), stmt.dst, stmt.src)};")
            case LoadMatrices() | LoadFragment() | StoreFragment() | MultiplyTiles() | QuadTranspose():
                yield Line(depth, f"{self._collective(stmt)};")
            case ShuffleAdd():
                place = self._expr.place(stmt.place)
                if stmt.up:
                    yield Line(depth, f"{self._expr.call(COMBINES_UP[stmt.op], place, str(stmt.mask))};")
                    return
                if stmt.other is not None:
                    both = place, self._expr.place(stmt.other), str(stmt.mask)
                    yield Line(depth, f"{self._expr.call(SHARES[stmt.op], *both)};")
                    return
                other = f"__shfl_xor_sync(0xffffffffu, {place}, {stmt.mask})"
                combined = f"{place} += {other}" if stmt.op is Op.ADD else f"{place} = fmaxf({place}, {other})"
                yield Line(depth, f"{combined};")
            case _:
                yield Line(depth, f"{async_call(stmt, self._expr, self._address)};")

    def _collective(self, stmt: LoadMatrices | LoadFragment | StoreFragment | MultiplyTiles | QuadTranspose) -> str:
        """A call of the function around an instruction of the whole warp."""
        match stmt:
            case LoadMatrices():
                return self._on(load_matrices_name(stmt.count, stmt.transposed), stmt.dst, stmt.src)
            case LoadFragment():
                name = load_fragment_name(stmt.instruction, stmt.role, stmt.order)
                return self._on(name, stmt.dst, stmt.src, str(stmt.leading))
            case StoreFragment():
                name = store_fragment_name(stmt.instruction, stmt.order)
                return self._on(name, stmt.dst, stmt.src, str(stmt.leading))
            case MultiplyTiles():
                return self._on(multiply_name(stmt.instruction, stmt.orders), stmt.d, stmt.a, stmt.b)
            case QuadTranspose():
                return self._on("transpose_quad", stmt.place)

    def _on(self, function: str, *arguments: Ref | str) -> str:
        """A call with the addresses of places; a fragment is the array that its last index walks."""
        texts = [one if isinstance(one, str) else self._address(one) for one in arguments]
        return self._expr.call(function, *texts)

    def _address(self, ref: Ref) -> str:
        if ref.buffer.space is Space.REGISTER and ref.index[-1] == ZERO and not is_scalar(ref.buffer):
            return self._expr.place(Ref(ref.buffer, ref.index[:-1]))
        return f"&{self._expr.place(ref)}"

    def _let(self, stmt: Let, depth: int) -> Line:
        value = self._expr.integer(stmt.value)  # before its name exists
        if stmt.uniform:
            value = f"__shfl_sync(0xffffffffu, {value}, 0)"
        return Line(depth, f"const {stmt.value.dtype.cuda} {self._names.bind_var(stmt.name)} = {value};", stmt.note)

    def _for(self, stmt: For, depth: int, path: Path) -> Iterator[Line]:
        integer = stmt.extent.dtype.cuda
        extent = self._expr.bound(stmt.extent)  # before the variables of the loop exist
        starts = [self._expr(carried.start) for carried in stmt.carried]
        # What the loop carries stands in front of it, so it stays visible after it.
        counters = [self._names.bind_var(carried.name) for carried in stmt.carried]
        for carried, counter, start in zip(stmt.carried, counters, starts, strict=True):
            yield Line(depth, f"{carried.start.dtype.cuda} {counter} = {start};")
        with self._names.scope():
            var = self._names.bind_var(stmt.var)
            if stmt.unroll:
                yield Line(depth, "#pragma unroll")
            if stmt.rolled:
                yield Line(depth, "#pragma unroll 1")
            yield Line(depth, f"for ({integer} {var} = 0; {var} < {extent}; ++{var}) {{", stmt.note)
            body = self.body(stmt.body, depth + 1, path)
            yield from body
            if counters and body[-1].code == "}":
                yield Line(0, "")
            for carried, counter in zip(stmt.carried, counters, strict=True):
                yield Line(depth + 1, f"{counter} = {self._expr(carried.next)};")
            yield Line(depth, "}")

    def _copy_async(self, stmt: Move) -> str:
        """A copy that is only started here; how many bytes it reads is said where they may be fewer than all."""
        element_bytes = stmt.src.buffer.dtype.bytes
        size_bytes = stmt.width * element_bytes
        read = str(size_bytes) if stmt.valid is None else self._expr(stmt.valid * element_bytes)
        if stmt.guard is not None:
            read = self._expr.choose(stmt.guard, read, "0")
        sides = f"&{self._expr.place(stmt.dst)}", f"&{self._expr.place(stmt.src)}"
        if pointer_of(stmt.src.index[0])[0] is not None:
            sides = self._expr.stepped(stmt.dst), self._expr.stepped(stmt.src)
        partial = (read,) if stmt.guard is not None or stmt.valid is not None else ()
        return f"{self._expr.call(copy_async(size_bytes), *sides, *partial)};"

    def _move(self, stmt: Move, depth: int) -> Iterator[Line]:
        stored = f"{self._side(stmt, stmt.dst)} = {self._value(stmt)};"
        if stmt.guard is None or _is_load(stmt):
            yield Line(depth, stored)
            return
        if stmt.predicated:
            place, value = f"&{self._side(stmt, stmt.dst)}", self._value(stmt)
            yield Line(depth, f"{self._expr.call(STORE_WHERE, place, value, self._expr(stmt.guard))};")
            return
        line = Line(depth, f"if ({self._expr(stmt.guard)}) {stored}")
        if line.width <= WIDTH:
            yield line
        else:
            yield Line(depth, f"if ({self._expr(stmt.guard)}) {{")
            yield Line(depth + 1, stored)
            yield Line(depth, "}")

    def _value(self, stmt: Move) -> str:
        """What a move reads: the source, or zero where the guard of a load is false."""
        source = self._side(stmt, stmt.src)
        if stmt.streaming:
            guard = "true" if stmt.guard is None else self._expr(stmt.guard)
            return self._expr.call(load_streaming(access_type(stmt.src.buffer.dtype, stmt.width)), f"&{source}", guard)
        if stmt.guard is None or not _is_load(stmt):
            return source
        dtype = stmt.src.buffer.dtype
        zero = self._expr.zero(dtype) if stmt.width == 1 else f"{vector(dtype, stmt.width)[1]}{{}}"
        return self._expr.choose(stmt.guard, source, zero)

    def _side(self, stmt: Move, ref: Ref) -> str:
        place = self._expr.place(ref)
        if stmt.width == 1:
            apart = not self._merge and ref is stmt.src and ref.buffer.space is Space.SHARED and ref.buffer.dtype is F32
            return self._expr.call("apart", place) if apart else place
        return self._expr.call(vector(ref.buffer.dtype, stmt.width)[0], place)

    def _declared(self, stmt: Stmt, buffer: Buffer, final: bool, depth: int) -> Line:
        """The first value of a scalar, which declares it."""
        assert isinstance(stmt, (Assign, Move))
        value = self._value(stmt) if isinstance(stmt, Move) else self._expr.assigned(buffer, stmt.value)
        const = "const " if final else ""
        name = self._names.bind_buffer(buffer)
        return Line(depth, f"{const}{self._expr.element_type(buffer)} {name} = {value};", buffer_note(buffer))


def buffer_note(buffer: Buffer) -> str:
    """`(k, m): why it looks as it does`; a scalar has no axes to name."""
    axes = "" if is_scalar(buffer) or not buffer.axes else f"({', '.join(buffer.axes)})"
    return ": ".join(part for part in (axes, buffer.note) if part)


def buffers_in_words(body: Body) -> frozenset[Buffer]:
    """Fragments of 2-byte elements that only matrix instructions touch, as wholes: they are arrays of words.

    As arrays of elements the compiler keeps track of their halves, and may copy at the end of a loop what that carries
    on. Measured: H200, bf16, 4096^3, ampere/6: 273 us with 16 such copies beside 64 products, without them 265.
    """
    whole: set[Buffer] = set()
    parted: set[Buffer] = set()
    for _, stmt in walk(body):
        matrices = isinstance(stmt, (LoadMatrices, UnpackCodes)) or (
            isinstance(stmt, MultiplyTiles) and stmt.orders is None
        )
        for place in (*written(stmt), *moved_from(stmt)):
            (whole if matrices and place.index[-1] == ZERO else parted).add(place.buffer)
        for expr in exprs_of(stmt):
            parted.update(part.buffer for part in walk_expr(expr) if isinstance(part, Load))
    return frozenset(b for b in whole - parted if b.space is Space.REGISTER and b.dtype.bytes == 2)


def vector_bytes(body: Body) -> dict[Buffer, int]:
    """For each buffer that a vector access touches, the bytes of the widest."""
    widest: dict[Buffer, int] = {}
    for _, stmt in walk(body):
        for buffer, size_bytes in _wide_accesses(stmt):
            widest[buffer] = max(widest.get(buffer, 0), size_bytes)
    return widest


def _wide_accesses(stmt: Stmt) -> Iterator[tuple[Buffer, int]]:
    match stmt:
        case Move() if stmt.width > 1:
            for buffer in (stmt.dst.buffer, stmt.src.buffer):
                yield buffer, stmt.width * buffer.dtype.bytes
        case LoadMatrices():
            yield stmt.src.buffer, MATRIX_ROW_BYTES
            yield stmt.dst.buffer, WORD_BYTES
        case LoadFragment():
            yield stmt.src.buffer, WMMA_POINTER_BYTES
            yield stmt.dst.buffer, WORD_BYTES
        case StoreFragment():
            yield stmt.dst.buffer, WMMA_POINTER_BYTES
            yield stmt.src.buffer, WORD_BYTES
        case StoreAsync():
            for buffer in (stmt.dst.buffer, stmt.src.buffer):
                yield buffer, stmt.count * buffer.dtype.bytes
        case StoreMatrices():
            yield stmt.dst.buffer, MATRIX_ROW_BYTES
            yield stmt.src.buffer, WORD_BYTES
        case UnpackCodes():
            yield stmt.dst.buffer, WORD_BYTES
        case MultiplyTiles():
            for place in (stmt.d, stmt.a, stmt.b):
                yield place.buffer, WORD_BYTES
        case _:
            pass


def _adds_to(fma: Fma, place: Ref) -> bool:
    return isinstance(fma.c, Load) and Ref(fma.c.buffer, fma.c.index) == place


def _is_load(stmt: Move) -> bool:
    return stmt.dst.buffer.space is Space.REGISTER


def _is_paragraph(printed: list[Line], above: list[Line]) -> bool:
    """Whether an empty line should stand between a statement and what is above it: around every block."""
    return len(printed) > 1 or above[-1].code == "}"
