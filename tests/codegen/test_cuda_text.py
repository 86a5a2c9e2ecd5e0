"""The emitted text: whole texts as goldens, and that every supported architecture compiles them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import handmade_kernels as handmade
import pytest

from tilewright.codegen import print_cuda
from tilewright.codegen.lines import WIDTH
from tilewright.dtypes import BF16, F16
from tilewright.ir.kernel import Kernel
from tilewright.runtime.nvrtc import compile_cuda, compile_ptx

KERNELS = {
    "naive": handmade.naive(),
    "naive_bf16": handmade.naive(BF16),
    "shared_tiles": handmade.shared_tiles(),
    "shared_tiles_f16": handmade.shared_tiles(F16),
    "ring": handmade.ring(),
    "ring_dynamic": handmade.ring(slots=7),
    "vectorized": handmade.vectorized(),
    "vectorized_f16": handmade.vectorized(F16),
    "vectorized_bf16": handmade.vectorized(BF16),
}


@pytest.mark.parametrize("name", ["naive", "shared_tiles", "ring", "ring_dynamic", "vectorized", "vectorized_f16"])
def test_the_whole_text(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"cuda/{name}.cu", print_cuda(KERNELS[name]).text)


@pytest.mark.parametrize("name", KERNELS)
def test_a_text_is_narrow_plain_and_needs_no_header(name: str) -> None:
    text = print_cuda(KERNELS[name]).text
    assert "#include" not in text
    assert text.isascii()
    lines = text.split("\n")
    assert all(line == line.rstrip() for line in lines)
    in_kernel = lines[lines.index("{") :]  # inline PTX above is not cut
    assert max(map(len, in_kernel)) <= WIDTH
    assert "\n\n\n" not in text


@pytest.mark.cross_section("name", "arch", every=6)
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a", "sm_120"])
@pytest.mark.parametrize("name", KERNELS)
def test_every_architecture_compiles_it(name: str, arch: str) -> None:
    if name.startswith("ring") and arch == "sm_75":
        pytest.skip("asynchronous copies begin with sm_80")
    source = print_cuda(KERNELS[name])
    cubin = compile_cuda(source, arch)
    static_bytes = KERNELS[name].shared_bytes - source.dynamic_shared_bytes
    assert "warning" not in cubin.log
    # Register arrays stay in registers: all their indices are known after unrolling.
    assert (cubin.resources.stack_bytes, cubin.resources.spill_store_bytes) == (0, 0)
    assert cubin.resources.shared_bytes == static_bytes


def ptx_counts(kernel: Kernel, *instructions: str) -> list[int]:
    ptx = compile_ptx(print_cuda(kernel), "sm_80")
    return [len(re.findall(rf"\s{re.escape(i)}[.\w]*\s", ptx)) for i in instructions]


def test_a_sum_of_products_is_always_a_fused_multiply_add() -> None:
    """`sum += a * b` relies on contraction, so not one addition of floats may be left."""
    for kernel in (handmade.vectorized(), handmade.vectorized(F16), handmade.shared_tiles(), handmade.naive()):
        fused, added, added_rounded = ptx_counts(kernel, "fma.rn.f32", "add.f32", "add.rn.f32")
        assert (added, added_rounded) == (0, 0)
        assert fused > 0
    # Unrolled: 8 steps of 8 x 4 in the loop; 8 x 4 of beta * C, which the compiler writes twice (beta 0 and not).
    assert ptx_counts(handmade.vectorized(), "fma.rn.f32") == [8 * 32 + 2 * 32]


def test_a_vector_access_is_one_instruction() -> None:
    kernel = handmade.vectorized()
    # 8 steps of two pieces of A_frag and one of B_frag; one vector of A and one of B from global memory.
    assert ptx_counts(kernel, "ld.shared.v4", "ld.global.nc.v4", "st.shared.v4") == [24, 2, 1]
    # The row of C is stored whole, and nothing that is asked for as a vector is taken apart.
    assert ptx_counts(kernel, "ld.shared.f32", "st.global.f32") == [0, 0]
    assert ptx_counts(handmade.vectorized(F16), "ld.shared.v2", "ld.global.nc.v4", "ld.shared.u16") == [24, 2, 0]


def test_what_a_launcher_must_know() -> None:
    kernel = handmade.vectorized()
    source = print_cuda(kernel)
    assert source.entry == "vectorized"
    assert source.threads_per_block == 128
    assert source.parameters == kernel.parameters
    assert source.dynamic_shared_bytes == 0


def test_shared_memory_above_48_kib_is_sized_at_launch() -> None:
    source = print_cuda(handmade.ring(slots=7))
    assert source.dynamic_shared_bytes == 7 * 2 * 32 * 32 * 4
    assert "extern __shared__ __align__(128) unsigned char shared_memory[];" in source.text


def test_the_header_says_where_the_kernel_comes_from() -> None:
    kernel = replace(handmade.vectorized(), heading=("Schedule(", "    Split('m', 64),", ")"))
    head = print_cuda(kernel).text.split("\n\n")[0]
    assert "//     Schedule(\n//         Split('m', 64),\n//     )\n" in head
    assert "assumes  N, K multiples of 64, 8\n" in head
    assert "block (128, 1, 1)\n//              4224 bytes of shared memory" in head


def test_the_prelude_holds_only_what_is_used() -> None:
    assert "__device__" not in print_cuda(handmade.naive()).text
    text = print_cuda(handmade.naive(BF16)).text
    assert re.findall(r"(\w+)\(\w+ \w+\) \{", text) == ["float_from_bf16", "bf16_from_float"]
