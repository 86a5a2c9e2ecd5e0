"""The exported project compiles, refuses bad calls, chooses the right kernel and, on a GPU, gives the right result."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from exports import HERE, KINDS, Project, compiled, needs, project, ran

from tilewright.export import bundle, write
from tilewright.export.chosen import of_rung
from tilewright.ladders import find_rung
from tilewright.problem.formats import format_options
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.runtime.driver import open_gpu
from tilewright.units import resident_blocks

ALIGNED = 1 << 20
"""An address that nobody reads."""


def answers(project: Project, built: Path, calls: dict[str, dict[str, Any]]) -> dict[str, str]:
    """What a C program is told that makes these calls, where launches are only recorded."""
    needs("gcc")
    prefix = project.name.upper()
    lines = [f'#include <stdio.h>\n#include <stdint.h>\n#include "{project.name}.h"\nint main(void) {{']
    lines += [
        f'    printf("> {what}\\n"); puts({project.name}_error({call(project, **given)}));'
        for what, given in calls.items()
    ]
    source = built / "calls.c"
    source.write_text("\n".join([*lines, f"    return {prefix}_OK;\n}}\n"]))
    include = [f"-I{project.folder}", f"-I{cuda(built) / 'include'}"]
    library = cuda(built) / "lib64"
    program, recorder = built / "calls", built / "recorder.so"
    links = [built / f"lib{project.name}.a", f"-L{library}", "-lcudart", "-lstdc++"]
    ran("gcc", "-Wall", "-Werror", "-std=c11", *include, source, "-o", program, *links)
    ran("gcc", "-shared", "-fPIC", "-D_GNU_SOURCE", *include, HERE / "recorder.c", "-o", recorder, "-ldl")
    environment = os.environ | {"LD_PRELOAD": str(recorder), "LD_LIBRARY_PATH": str(library)}
    said = ran(program, env=environment)
    return {block.partition("\n")[0]: block.partition("\n")[2] for block in said.split("> ")[1:]}


def cuda(built: Path) -> Path:
    """The toolkit that CMake found."""
    cached = (built / "CMakeCache.txt").read_text()
    found = re.search(r"^CMAKE_CUDA_COMPILER:\w+=(.*)/bin/nvcc$", cached, re.MULTILINE)
    toolkit = Path(found[1]) if found else Path("/nowhere")
    for folder in (toolkit, Path("/usr/local/cuda")):
        if (folder / "include" / "cuda_runtime_api.h").is_file() and (folder / "lib64").is_dir():
            return folder
    pytest.skip("the toolkit's headers are not where nvcc is")


def call(project: Project, **changed: Any) -> str:
    given: dict[str, Any] = dict.fromkeys("ABC", ALIGNED) | dict.fromkeys(("M", "N", "K"), 1024)
    given |= dict.fromkeys(("lda", "ldb", "ldc"), 1024) | {"bias": ALIGNED, "residual": ALIGNED} | changed
    is_ampere = project.kind == "ampere"
    pointers = [*"ABC", *(("bias", "residual") if is_ampere else ())]
    values = [f"(void*)(intptr_t){given[name]}" for name in pointers]
    values += [f"{given[name]}LL" for name in ("M", "N", "K", "lda", "ldb", "ldc")]
    values += ["1024"] if is_ampere else []
    return f"{project.name}(0, {', '.join(values)}, 1.0f, 0.0f)"


@pytest.mark.slow
def test_bad_calls_are_refused_before_anything_is_launched(exported: Project, built: Path) -> None:
    said = answers(
        exported,
        built,
        {
            "a": {"M": -1},
            "b": {"K": 1 << 40},
            "c": {"lda": 1023},
            "d": {"ldc": 1 << 40},
            "e": {"B": 0},
            "g": {"A": ALIGNED + 1},
            "f": {"N": 0, "C": 0},
        },
    )
    size = "a size is negative, or larger than the kernels count"
    rows = "a leading dimension is shorter than its row or column"
    expected = {"a": size, "b": size, "c": rows, "d": rows, "e": "a matrix has no address", "f": "no error"}
    assert "multiple" in said.pop("g")
    assert {what: text.strip() for what, text in said.items()} == expected


@pytest.mark.slow
def test_a_call_goes_to_the_kernel_whose_needs_it_meets(exported: Project, built: Path) -> None:
    odd = exported.kind != "hopper"
    far = {"M": 1 << 20, "lda": 1 << 12, "ldc": 1 << 12}
    calls = {
        "whole": {"N": 768},
        "edges": {"M": 1000, "K": 1000},
        "far": far,
        "address": {"A": ALIGNED + 4},
        "rows": {"ldb": 1025},
        "ends": {"N": 1001},
    }
    said = answers(exported, built, calls)
    reached = {what: re.findall(r"launch \S*?_(exact|edges|any)\S* grid", text) for what, text in said.items()}
    unaligned = ["any"] if odd else []
    assert reached == {
        "whole": ["exact"], "edges": ["edges"], "far": ["any"], "address": unaligned, "rows": unaligned,
        "ends": ["edges"] if odd else [],
    }  # fmt: skip
    if not odd:  # and TMA would write behind rows of C that end inside a piece of 16 bytes
        assert "multiples of 16 bytes, and N of 8" in said["rows"] == said["ends"]


@pytest.mark.slow
def test_a_launch_is_the_one_described(exported: Project, built: Path) -> None:
    kernel = exported.description["kernels"][-1]
    said = answers(exported, built, {"far": {"M": 1 << 20, "lda": 1 << 12, "ldc": 1 << 12}})["far"]
    found = re.search(r"grid (\d+) (\d+) (\d+) block (\d+) shared (\d+) attributes (\d+)", said)
    assert found
    *grid, threads, shared, attributes = (int(number) for number in found.groups())
    described = [eval(text.replace("/", "//"), {"M": 1 << 20, "N": 1024, "K": 1024}) for text in kernel["grid"]]
    if kernel["most_blocks"]:
        most = eval(kernel["most_blocks"].replace("/", "//"), {"multiprocessors": 132})
        described[0] = resident_blocks(described[0], most, kernel["cluster"][0], equal=kernel["equal_rounds"])
    assert grid == described
    assert (threads, shared) == (kernel["block"][0], kernel["dynamic_shared_bytes"])
    assert attributes == int(kernel["programmatic_stream_serialization"])


@pytest.mark.slow
def test_each_kernel_is_started_with_as_many_blocks_as_it_wants(tmp_path: Path, cache: CubinCache) -> None:
    """Of one project some kernels are persistent; blocks of the others have a tile each."""
    gemm = find_rung("ampere/full").gemm(4096, 4096, 4096, **format_options("f16"))
    chosen = of_rung(find_rung("ampere/full"), gemm)
    made = bundle(gemm, chosen.schedule, ["sm_80"], origin="ampere/full", anywhere=chosen.anywhere)
    write(made, tmp_path, cache=cache)
    exported = Project("persistent", made.name, tmp_path)
    assert [bool(kernel["most_blocks"]) for kernel in exported.description["kernels"]] == [True, True, False]
    large = {"M": 4096, "N": 4096, "lda": 4096, "ldb": 4096, "ldc": 4096}
    calls = {"whole": large, "edges": {**large, "M": 4000, "K": 1000}, "any": {**large, "B": ALIGNED + 2}, "small": {}}
    said = answers(exported, compiled(exported), calls)
    started = {what: re.findall(r"_(exact|edges|any)\S* grid (\d+) 1 1", text)[0] for what, text in said.items()}
    assert started == {
        "whole": ("exact", "128"),
        "edges": ("edges", "128"),
        "any": ("any", "512"),
        "small": ("exact", "32"),
    }


@pytest.mark.slow
def test_tensor_maps_hold_what_was_passed(exported: Project, built: Path) -> None:
    if exported.kind != "hopper":
        pytest.skip("only TMA needs maps")
    said = answers(exported, built, {"one": {"M": 512, "K": 768, "lda": 800, "A": 4096}})["one"]
    boxes = [p["tensor_map"]["box"] for p in exported.description["kernels"][0]["parameters"] if "tensor_map" in p]
    inner, outer = boxes[0]
    assert f"at 4096: 768 x 512, 1600 bytes apart, box {inner} x {outer}" in said.splitlines()[0]
    assert len(said.strip().splitlines()) == len(boxes) + 2


@pytest.mark.slow
def test_programs_say_that_there_is_no_gpu(built: Path) -> None:
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "-1"}
    assert "Skipped" in ran("ctest", "--test-dir", built, env=environment)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_the_example_and_the_check_end_well(kind: str, tmp_path: Path, cache: CubinCache) -> None:
    here = open_gpu().arch
    if kind == "hopper" and here != KINDS[kind]["arch"]:
        pytest.skip(f"wgmma needs {KINDS[kind]['arch']}, and this GPU is {here}")
    built = compiled(project(kind, tmp_path / kind, cache, arch=here))
    said = ran("ctest", "--test-dir", built, "--output-on-failure", "--verbose")
    assert "Skipped" not in said and "WRONG" not in said


def test_the_texts_that_a_launch_is_made_of_are_as_read(exported: Project, golden: Callable[[str, str], None]) -> None:
    host = (exported.folder / f"{exported.name}.cu").read_text().partition("the host's part")[2]
    golden(f"export/{exported.kind}.h", (exported.folder / f"{exported.name}.h").read_text())
    golden(f"export/{exported.kind}_host.cu", host.lstrip())
