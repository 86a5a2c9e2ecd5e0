"""The tree speaks the field's language: words that only this project would know do not come back.

Each pattern matches a private word, or the private sense of an ordinary one, and stands with what to write instead.
Names of files count as well.
"""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

WORDS = {
    # blocks and warps
    r"\b[Bb]locks? (that |which )?(stay|walk)|\b[Ss]taying\b|[Ll]et blocks stay|blocks_(that_)?stay": "persistent",
    r"\bwalks? (over|down|together|C\b)|\bwalking\(|\bstanding\(": "persistent; one tile per block; raster order",
    r"\b[Tt]ak(e|es|ing|en) (their )?turns\b|taking_turns|TAKING_TURNS|\bturns=": "ping-pong, alternate",
    r"\bmy_turn\b": "ordered barrier",
    r"\bturn\(s\)|\bturns of (the|that|a) (outer )?loop": "iterations",
    # layouts and operands
    r"\b(lies?|lie|laid|stored|read|C|A|B) by (rows|columns)\b|_by_(rows|columns)\b": "row-major, column-major",
    r"\bturned (first|tile|operand|on the way)\b|\b(is|are|be) turned\b|\bturns (tiles|elements|only)\b": (
        "transposed, swap-AB"
    ),
    r"\bmay_turn\b|\bturn_words\b|TurnWords": "transpose; quad shuffle transpose",
    r"\blanes_trade\b|\btraded\b|\btrade words\b|[Ll]anes trade": "quad shuffle transpose",
    r"\b[Cc]ut[ _]out\b|CutOut|cut_fragments|vectors around": "funnel-shift realignment",
    r"\b[Cc]opied[ _]first\b": "pre-packed, padded copy",
    r"\bthin_rows\b|\bThin\b|\bthin\.py\b|FEW_ROWS|\bfew rows\b": "skinny; GEMV",
    r"\bastride\b": "sector-misaligned",
    r"begin anywhere|\bodd rows\b": "unaligned leading dimension",
    # TMA and wgmma
    r"\b[Cc]opy engine\b|copy_engine|EngineStore": "TMA",
    r"\b[Ee]ngine_stores\b|\bby_engine\b|engine_store|_by_engine\b|BY_ENGINE": "TMA",
    r"\b[Tt]he engine\b": "TMA",
    r"\b[Mm]emory barriers?\b": "mbarrier",
    r"\b(Fence|Wait|Commit)Products\b|\b(fence|wait|commit)_products\b": "wgmma fence, wait_group, commit_group",
    r"\bBulk(Load|Store)\b|\bMultiplyShared\b|\bbulk_load(_of_stack|_multicast)?\(": "TMA load, TMA store, wgmma",
    r"\bgroups? of (the )?products\b|\bproducts under way\b": "wgmma groups",
    r"\bslots? of (a|the|its|that) ring\b|\brings? of (\w+ )?slots\b": "stages",
    r"\b[Ss]labs?\b|SLABS": "swizzle atoms",
    r"\bOverlap\(|\bearly start\b": "programmatic dependent launch (PDL)",
    # the epilogue
    r"\bgoes_in_parts\b|\b[Pp]arts of C\b|\bplaces (of|for) C\b": "epilogue subtiles, epilogue stages",
    r"\bsends C\b|\bhow C leaves\b|\bC leaves\b": "epilogue store",
    r"\b[Ll]anes (that )?(store|cut)\b": "per-thread stores",
    r"\bsums in a snake\b": "serpentine FMA order",
    # how many
    r"\bk in parts\b|\bparts of k\b": "split-K",
    r"\bown[_ ]problem\b|\bof a stack\b": "strided batched, grouped",
    # sentences
    r"\b[Ww]hat binds\b": "bottleneck, limiter",
    r"need not be there": "any known GPU",
    r"[Nn]obody can (tell|go on)": "unobservable; no warp can go on",
    r"registers that cost a block its place": "limits occupancy to one block per SM",
    r"(?<![Tt]here )\b(is|are) no (?!longer|more|less|larger|better|faster|smaller|such|other|room|slower|matter|wider"
    r"|worse|deeper|one|need|error|reason|way|place|product|sum|GPU|race|kernel)[a-z]+ (of|for|that|in)?\b": (
        "is not a ..."
    ),
}

WHERE = (
    "src",
    "tests",
    "docs",
    "examples",
    "benchmarks",
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
)
TEXTS = {".py", ".md", ".j2", ".js", ".html", ".css", ".toml", ".txt", ".cu", ".cpp", ".cuh"}
THIS = "tests/docs/test_words.py"

RECORDED = (
    "src/tilewright/winners/old_lines.py",  # reads the lines of older winner files
    "docs/library.md",  # names kernels as the records of their measurement do
)
"""Where former names are data."""


@cache
def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "--", *WHERE], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a checkout of git")
    return [name for name in listed.stdout.splitlines() if Path(name).suffix in TEXTS and name != THIS]


@cache
def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@cache
def all_texts() -> str:
    return "\n".join(f"{name}\n{text_of(name)}" for name in tracked() if name not in RECORDED)


def may_occur(word: str) -> bool:
    """Each alternative is looked for without the boundary that it begins with: six times as fast."""
    return any(re.search(one.removeprefix(r"\b"), all_texts()) for one in re.split(r"\|(?![^(]*\))", word))


@pytest.mark.parametrize("word", WORDS, ids=str)
def test_a_private_word_occurs_nowhere(word: str) -> None:
    pattern = re.compile(word)
    found = []
    for name in tracked() if may_occur(word) else ():
        if name in RECORDED:
            continue
        if pattern.search(name):
            found.append(f"{name}: the name of the file")
        if pattern.search(text_of(name)):
            lines = enumerate(text_of(name).splitlines(), 1)
            found += [f"{name}:{number}: {line.strip()[:100]}" for number, line in lines if pattern.search(line)]
    assert not found, f"write {WORDS[word]!r} instead:\n" + "\n".join(found)
