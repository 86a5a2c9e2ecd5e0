"""Calls of the library that `sanitize.py` has watched: FP8 with scales, quantising, functions, gated layers, groups,
weights of few bits. Small problems with edges in all dimensions, beside float64.

PyTorch's allocator is told to keep no memory, so that what a kernel reads or writes outside of a tensor is found.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import tilewright as tw
from tilewright import extras
from tilewright.frontend.ragged import spans_of

ops: Any = tw.ops
ROWS = (3, 0, 130, 77, 64, 1)
"""Of groups; the last rows belong to none."""

NO_ENDS = (-7, 40, 30, 60, 200, 2**31 - 1)
"""Offsets that are negative, do not ascend, and are too large: rows 0 .. 40, 60 .. 200 and the last are in groups."""

MOST_DISTANCE = 2e-2
"""Of a result in bf16 from float64; of codes with the scales that were found for them, twice the half of the last place
of e4m3, over the root of three."""

MOST_OF_CODES = 4e-2


def watched_calls(share: int, shares: int) -> Iterator[tuple[str, float]]:
    """Each call of a share, and how far its result is from that in float64, over what is allowed."""
    os.environ.setdefault("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
    torch = extras.require("torch", "Watching calls")
    torch.set_num_threads(1)  # processes share the host
    torch.manual_seed(0)
    with torch.no_grad():
        for name, call, allowed in islice(_Calls(torch).each(), share, None, shares):
            found, expected = call()
            apart = (_wide(found) - expected).norm() / expected.norm()
            yield name, float(apart) / allowed


Call = Callable[[], tuple[Any, Any]]


class _Calls:
    """Operands, drawn on the host, and calls, of a PyTorch."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch

    def each(self) -> Iterator[tuple[str, Call, float]]:
        yield from self._scaled()
        yield from self._functions()
        yield from self._groups()
        yield from self._coded()

    def drawn(self, *shape: int) -> Any:
        return self.torch.randn(*shape).bfloat16().cuda()

    def codes(self, *shape: int) -> Any:
        return self.torch.randn(*shape).to(self.torch.float8_e4m3fn).cuda()

    def factors(self, *shape: int) -> Any:
        return (self.torch.rand(*shape) + 0.5).cuda()

    def _scaled(self) -> Iterator[tuple[str, Call, float]]:
        m, n, k = 301, 328, 1104
        a, b, bias = self.codes(m, k), self.codes(n, k).T, self.drawn(n)
        one, of_rows, of_columns = self.factors(1), self.factors(m, 1), self.factors(1, n)

        def product(x: Any, y: Any, left: Any, right: Any, **options: Any) -> Call:
            wide = _wide(x) * _wide(left), _wide(y) * _wide(right)
            more = _wide(options["bias"]) if "bias" in options else 0.0
            return lambda: (tw.scaled_matmul(x, y, left, right, **options), wide[0] @ wide[1] + more)

        for fast in (False, True):
            options = {"fast_accumulation": fast}
            yield f"tensors, fast {fast}", product(a, b, one, one, **options), MOST_DISTANCE
            yield f"rows, fast {fast}", product(a, b, of_rows, of_columns, bias=bias, **options), MOST_DISTANCE
        yield "b transposed before", product(a, b.contiguous(), of_rows, of_columns), MOST_DISTANCE
        yield "k padded before", product(a[:, :1001], b[:1001], one, one), MOST_DISTANCE
        yield "e4m3 out", product(a, b, one * 1e-2, one, out_dtype="e4m3"), MOST_OF_CODES
        yield from self._blocks()

    def _blocks(self) -> Iterator[tuple[str, Call, float]]:
        m, n, depth = 300, 328, 9
        k = 128 * depth - 48
        a, b = self.codes(m, k), self.codes(n, k).T
        for side in (1, 128):
            for lie in ("k", "side"):  # in memory: those of a side by TMA, those of k by a warp
                of_a = self.factors(depth, m).T if lie == "side" else self.factors(m, depth)
                of_b = self.factors(depth, -(-n // side))

                def call(side: int = side, of_a: Any = of_a, of_b: Any = of_b) -> tuple[Any, Any]:
                    found = tw.scaled_matmul(a, b, of_a, of_b)
                    left = _wide(a) * _wide(of_a).repeat_interleave(128, 1)[:, :k]
                    right = _wide(b) * _wide(of_b).repeat_interleave(128, 0)[:k].repeat_interleave(side, 1)[:, :n]
                    return found, left @ right

                yield f"blocks of 1 x 128 by 128 x {side}, {lie}", call, MOST_DISTANCE
        for kind in ("row", "tensor", "1x128"):

            def quantised(kind: Any = kind) -> tuple[Any, Any]:
                x = self.drawn(m, k)
                codes, scales = tw.quantize(x, scales=kind)
                wide = _wide(scales)
                wide = wide.repeat_interleave(128, 1)[:, :k] if kind == "1x128" else wide
                return _wide(codes) * wide, _wide(x)

            yield f"quantize {kind}", quantised, MOST_OF_CODES

    def _functions(self) -> Iterator[tuple[str, Call, float]]:
        torch, (m, n, k) = self.torch, (301, 384, 520)
        x, w, up, residual = self.drawn(m, k), self.drawn(n, k), self.drawn(n, k), self.drawn(m, n)
        exact, one = _wide(x) @ _wide(w).T, self.factors(1)
        codes, silu = (self.codes(m, 528), self.codes(n, 528)), torch.nn.functional.silu
        of_codes = silu((_wide(codes[0]) @ _wide(codes[1]).T) * _wide(one) ** 2)

        def quantised() -> tuple[Any, Any]:
            found, scales = tw.scaled_matmul(codes[0], codes[1].T, one, one, epilogue=_quantised_silu)
            return _wide(found) * _wide(scales).repeat_interleave(128, 1), of_codes

        yield "gated", lambda: (tw.linear_gated(x, w, up), silu(exact) * (_wide(x) @ _wide(up).T)), MOST_DISTANCE
        yield (
            "residual and folds",
            lambda: (_normed(tw, x, w, residual), (exact + _wide(residual)).square().sum(1, keepdim=True)),
            MOST_DISTANCE,
        )
        yield "codes of blocks", quantised, MOST_OF_CODES
        given = {"epilogue": _dropped, "operands": {"seed": 3}}
        yield "dropout", lambda: (tw.linear(x, w, **given) == 0, _is_dropped(m, n, x.device)), MOST_DISTANCE

    def _groups(self) -> Iterator[tuple[str, Call, float]]:
        torch, tokens, n, k, room = self.torch, sum(ROWS) + 8, 328, 784, 40
        ends = torch.tensor(ROWS).cumsum(0).int().cuda()
        of_row = torch.repeat_interleave(torch.arange(len(ROWS)), torch.tensor(ROWS))
        used, count = len(of_row), len(ROWS)
        a, b = self.drawn(tokens, k), self.drawn(count, n, k).mT
        left, right = self.codes(tokens, k), self.codes(count, n, k).mT
        taken = torch.randint(0, tokens, (tokens,))
        places = taken.int().cuda()
        of_a, of_b, depth = self.factors(tokens), self.factors(count, n), -(-k // 128)
        of_blocks = self.factors(tokens, depth), self.factors(count, depth, -(-n // 128))
        counts = torch.tensor([0, 3, room, 17, 1, 50]).int().cuda()
        roomy, weights = self.drawn(count, room, k), self.factors(tokens // 2, 2)
        pairs = torch.randperm(2 * (tokens // 2)).reshape(-1, 2)

        def rows(x: Any, y: Any) -> Any:
            return torch.stack([one @ y[group] for one, group in zip(x[:used], of_row.tolist(), strict=True)])

        def blocks() -> tuple[Any, Any]:
            of_b = _wide(of_blocks[1]).repeat_interleave(128, 1)[:, :k].repeat_interleave(128, 2)[..., :n]
            exact = rows(_wide(left) * _wide(of_blocks[0]).repeat_interleave(128, 1)[:, :k], _wide(right) * of_b)
            return tw.scaled_grouped_matmul(left, right, *of_blocks, offsets=ends)[:used], exact

        def counted() -> tuple[Any, Any]:
            kept = torch.arange(room) < counts.cpu().unsqueeze(1)
            found = tw.grouped_matmul(roomy, b, counts=counts)
            return found.cpu()[kept], (_wide(roomy) @ _wide(b))[kept]

        wide = _wide(b)
        scaled = rows(_wide(left) * _wide(of_a)[:, None], _wide(right) * _wide(of_b)[:, None])
        gradient = torch.stack([_wide(a)[of].T @ _wide(a)[of] for of in self._masks(of_row, count, tokens)])
        yield "groups", lambda: (tw.grouped_matmul(a, b, offsets=ends)[:used], rows(_wide(a), wide)), MOST_DISTANCE
        yield (
            "gathered rows",
            lambda: (
                tw.grouped_matmul(a, b, offsets=ends, rows=places)[:used],
                rows(_wide(a)[taken], wide),
            ),
            MOST_DISTANCE,
        )
        yield "gradients of groups", lambda: (tw.grouped_matmul(a.T, a, offsets=ends), gradient), MOST_DISTANCE
        for fast in (False, True):
            given = {"offsets": ends, "fast_accumulation": fast}
            call = lambda given=given: (tw.scaled_grouped_matmul(left, right, of_a, of_b, **given)[:used], scaled)  # noqa: E731
            yield f"groups of FP8, fast {fast}", call, MOST_DISTANCE
        yield "groups with scales of blocks", blocks, MOST_DISTANCE
        for fp8 in (False, True):

            def ends_that_are_none(fp8: bool = fp8) -> tuple[Any, Any]:
                told = torch.tensor(NO_ENDS).int().cuda()
                given = (left, right, of_a, of_b) if fp8 else (a, b)
                found = (tw.scaled_grouped_matmul if fp8 else tw.grouped_matmul)(*given, offsets=told)
                first, second = _wide(given[0]), _wide(given[1])
                if fp8:
                    first, second = first * _wide(of_a)[:, None], second * _wide(of_b)[:, None]
                spans = list(enumerate(spans_of(NO_ENDS, tokens)))
                exact = [first[span] @ second[group] for group, span in spans]
                return torch.cat([found[span] for _, span in spans]), torch.cat(exact)

            yield f"offsets that do not ascend, FP8 {fp8}", ends_that_are_none, MOST_DISTANCE
        yield "groups with counts", counted, MOST_DISTANCE
        combined = (_wide(a)[pairs] * _wide(weights)[..., None]).sum(1)
        yield "combined rows", lambda: (tw.combine_rows(a, pairs.int().cuda(), weights), combined), MOST_DISTANCE

    def _masks(self, of_row: Any, count: int, tokens: int) -> list[Any]:
        padded = self.torch.full((tokens,), -1)
        padded[: len(of_row)] = of_row
        return [padded == group for group in range(count)]

    def _coded(self) -> Iterator[tuple[str, Call, float]]:
        n, k = 520, 1024
        weight = self.drawn(k, n)
        for bits, group in ((4, 128), (8, 64), (4, "column")):
            coded = tw.quantize_weight(weight, bits=bits, group=group)
            for m in (1, 16, 61):
                x = self.drawn(m, k)
                exact, allowed = _wide(x) @ _wide(weight), 0.3 if bits == 4 else 6e-2
                call = lambda x=x, coded=coded, exact=exact: (tw.matmul(x, coded), exact)  # noqa: E731
                yield f"weights of {bits} bits, {group}, {m} rows", call, allowed


def _wide(x: Any) -> Any:
    """The same in host memory, where no tool watches what is done with it."""
    return x.cpu().double()


def _quantised_silu(acc: Any) -> Any:
    return ops.quantized(ops.silu(acc))


def _with_residual(acc: Any, residual: Any) -> Any:
    total = acc + residual
    return total, ops.row_sum_of_squares(total)


def _normed(tw: Any, x: Any, w: Any, residual: Any) -> Any:
    return tw.linear(x, w, epilogue=_with_residual, operands={"residual": residual})[1]


def _dropped(acc: Any, seed: Any) -> Any:
    return ops.dropout(acc, 0.25, seed)


def _is_dropped(m: int, n: int, device: Any) -> Any:
    from tilewright.frontend.pytorch.functions import uniform_tensor

    return (uniform_tensor(3, 0, (m, n), device) < 0.25).double().cpu()
