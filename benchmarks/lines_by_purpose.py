"""What asked for the lines of src: each line by the commit that wrote it, commits by what they served.

    python benchmarks/lines_by_purpose.py

`git blame -w -M -C -C` follows lines that moved. lines_by_purpose.json lists the commits since 0fdc654, the tree before
the redesign, of which src still has five lines or more, by purpose; the others are small. It takes some minutes, and
the whole history.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
BEFORE, SMALL = "before the redesign", "small commits since"


def git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def main() -> None:
    told = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    purpose = {commit[:8]: BEFORE for commit in git("rev-list", "0fdc654")}
    purpose |= {commit: name for name, commits in told.items() for commit in commits.split()}

    def lines_of(file: str) -> Counter[str]:
        writers = (
            line.split(maxsplit=1)[0].lstrip("^") for line in git("blame", "-s", "-l", "-w", "-M", "-C", "-C", file)
        )
        return Counter(purpose.get(writer[:8], SMALL) for writer in writers)

    with ThreadPoolExecutor() as pool:
        found = sum(pool.map(lines_of, git("ls-files", "src/*.py")), Counter[str]())
    for name, lines in found.most_common():
        print(f"{lines:7,}  {name}")
    print(f"{sum(found.values()):7,}  in all")


if __name__ == "__main__":
    main()
