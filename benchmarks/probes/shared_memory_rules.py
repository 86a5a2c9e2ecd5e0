"""What shared memory, L1 and cp.async cost on this GPU, settled with micro-kernels.

    python benchmarks/probes/shared_memory_rules.py --check      no GPU: compile, disassemble, count instructions
    python benchmarks/probes/shared_memory_rules.py --measure    on the GPU: writes shared_memory_rules.json to --out

One launch is one warp, one access pattern, 16 accesses by one unrolled instruction; its counters, less those of a
launch without the accesses, give wavefronts an access. Three witnesses are laid beside each hypothesis of
`access_patterns`: hardware counters, the counts that instrumented code derives from the addresses (the Source page
of Nsight Compute), and the clock of 16 warps doing the same.

`--measure` starts this file again: with `--time` for the clocks, and under ncu with `--run`, which makes the
launches of one group in the order that `launches` documents (pattern by pattern, the baselines first) until its
deadline, and writes that order to a file. Nothing here changes the GPU's settings.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1] / "src")]

import access_patterns as ap  # noqa: E402
from shared_memory.accesses import GLOBAL_BYTES, POOL_BYTES, REPEAT, accesses  # noqa: E402
from shared_memory.clocks import time_all  # noqa: E402
from shared_memory.launches import GROUPS, launches, run  # noqa: E402
from shared_memory.machine_code import check_sass, compile_cubin, cuda_text  # noqa: E402
from shared_memory.measuring import measure  # noqa: E402


def check(cubin_path: Path | None = None) -> None:
    """No GPU: hypotheses against the golden vectors, offsets against the buffers, machine code as intended."""
    ap.check_golden()
    for group in GROUPS:
        for launch in launches(group):
            limit = GLOBAL_BYTES if launch.kernel.startswith("global") else POOL_BYTES
            last = max(offset or 0 for offset in launch.offsets)
            assert last + 16 + 128 * REPEAT <= limit, f"{launch.kernel}, {launch.pattern}: offset {last}"
    image = compile_cubin(cuda_text()) if cubin_path is None else cubin_path.read_bytes()
    wrong = check_sass(image)
    print(f"{len(accesses())} accesses, launches:", {group: len(launches(group)) for group in GROUPS})
    print("\n".join(wrong) or "machine code as intended")
    if wrong:
        raise SystemExit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group(required=True)
    for name in ("check", "measure", "run", "time", "print-cuda"):
        mode.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--budget-s", type=float, default=75, help="of --measure: seconds in all")
    parser.add_argument("--out", type=Path, default=Path("build/probes"))
    parser.add_argument("--group", choices=GROUPS, default="shared", help="of --run")
    parser.add_argument("--cubin", type=Path)
    parser.add_argument("--order", type=Path, default=Path("order.json"), help="file that --run or --time writes")
    parser.add_argument("--deadline-s", type=float, default=60, help="of --run: make no launch after")
    given = parser.parse_args()
    if given.print_cuda:
        print(cuda_text())
    elif given.check:
        check(given.cubin)
    elif given.measure:
        measure(given.budget_s, given.out)
    elif given.run:
        run(given.cubin, given.group, given.deadline_s, given.order)
    else:
        time_all(given.cubin, given.order)


if __name__ == "__main__":
    main()
