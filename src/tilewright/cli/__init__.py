"""The command line: arguments and printing. One file a command; what is computed comes from the layers below.

Importing this package loads neither NumPy nor CUDA, so that `tilewright --help` answers at once.
"""

from tilewright.cli.main import main

__all__ = ["main"]
