"""The command line: arguments and printing. One file a command; what is computed comes from the layers below.

Importing this package loads neither NumPy nor CUDA, so that `tilewright --help` answers at once.
"""

import sys
from collections.abc import Sequence
from time import monotonic

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line (None: that of this process); the exit code."""
    began = monotonic()  # a command finds it as `context.obj`: importing the command is part of its budget
    words = sys.argv[1:] if arguments is None else arguments
    if "tune" in words[:1] and not {"--list", "--help"} & {*words}:
        from tilewright.tuner.processes import begin_server

        begin_server()
    from tilewright.cli.entry import run

    return run(arguments, began)
