"""Whatever a schedule calls its loops, the text compiles and means the same."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import cuda_on_cpu
import handmade_kernels as handmade
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.codegen import print_cuda
from tilewright.codegen.names import RESERVED, Names, identifier
from tilewright.dtypes import F32
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import Expr, Var
from tilewright.ir.kernel import BUILTINS, Kernel
from tilewright.ir.stmt import Body, For, If, Let, Stmt
from tilewright.ir.verify import PARAMETERS
from tilewright.ir.visit import map_exprs, rebuild, sub_exprs
from tilewright.ladders import find_rung
from tilewright.problem import Gemm
from tilewright.runtime.nvrtc import compile_cuda
from tilewright.toolchain import build

WANTED = {
    "thread": "new",
    "m_thread": "m.thread",
    "n_thread": "m_thread",
    "k_tile": "A",  # a parameter
    "k": "sum",  # a buffer
    "m": "as_float4",  # a function of the prelude
    "n": "fmaf",
    "part": "8",
    "row": "k-tile",
    "col": "__col",
    "m_block": "m thread",
    "n_block": "signed",
}


def renamed(kernel: Kernel, wanted: dict[str, str]) -> Kernel:
    """The kernel with other names for its loops and integers."""

    def expression(expr: Expr) -> Expr:
        if isinstance(expr, Var):
            return replace(expr, name=wanted.get(expr.name, expr.name))
        return rebuild(expr, tuple(expression(part) for part in sub_exprs(expr)))

    def statement(stmt: Stmt) -> Stmt:
        stmt = map_exprs(stmt, expression)
        match stmt:
            case Let():
                return replace(stmt, name=wanted.get(stmt.name, stmt.name))
            case For():
                return replace(stmt, var=wanted.get(stmt.var, stmt.var), body=every(stmt.body))
            case If():
                return replace(stmt, then=every(stmt.then), otherwise=every(stmt.otherwise))
            case _:
                return stmt

    def every(body: Body) -> Body:
        return tuple(statement(stmt) for stmt in body)

    return replace(kernel, body=every(kernel.body))


def test_awkward_names_compile() -> None:
    source = print_cuda(renamed(handmade.vectorized(), WANTED))
    assert compile_cuda(source, "sm_80").resources.stack_bytes == 0
    for line in (
        "const int new_2 = threadIdx.x;",
        "const int m_thread = new_2 / 16;",
        "const int m_thread_2 = new_2 % 16;",
        "for (int A_2 = 0; A_2 < K / 8; ++A_2) {",
        "sum[as_float4_2][fmaf_2] += A_frag[as_float4_2] * B_frag[fmaf_2];",
    ):
        assert line in source.text


@pytest.mark.skipif(cuda_on_cpu.GXX is None, reason="needs g++")
def test_awkward_names_change_nothing(tmp_path: Path) -> None:
    kernel = renamed(handmade.vectorized(), WANTED)
    program = cuda_on_cpu.build(kernel, print_cuda(kernel), tmp_path)
    assert program.verdict(kernel.gemm.resized(67, 64, 24)).ok


@given(st.lists(st.text(max_size=12) | st.sampled_from(sorted(RESERVED)), unique=True, max_size=12))
def test_no_two_visible_names_are_one(names: list[str]) -> None:
    visible = Names(handmade.naive())
    bound = [visible.bind_var(name) for name in names if name not in (*BUILTINS, *PARAMETERS)]
    bound += [visible.bind_buffer(Buffer(name, Space.REGISTER, F32, ())) for name in names]
    assert len(set(bound)) == len(bound)
    assert not set(bound) & {*RESERVED, *PARAMETERS, "A", "B", "C", "naive"}
    assert all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) for name in bound)


@pytest.mark.parametrize("name", ["m", "m_in", "A_tile", "x2", "_k"])
def test_a_good_name_is_kept(name: str) -> None:
    assert identifier(name) == name


def test_a_name_is_free_again_after_its_scope() -> None:
    names = Names(handmade.naive())
    with names.scope():
        assert names.bind_var("k") == "k"
        with names.scope():
            assert names.bind_var("k") == "k_2"
            assert names.var("k") == "k_2"
        assert names.var("k") == "k"
    assert names.bind_var("k") == "k"


def test_a_kernel_called_main_compiles() -> None:
    """A name that CUDA keeps for the host's program."""
    source = build(Gemm(64, 64, 64), find_rung("worklog/1"), name="main").source
    assert source.entry == "main_2"
    assert compile_cuda(source, "sm_80").image
