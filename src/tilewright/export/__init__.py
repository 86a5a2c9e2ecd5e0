"""Kernels for users who ship C++: CUDA source with a C launcher, a CMake project, cubins and what they need.

Nothing in it is written by hand for one kernel: what a launch needs is read from the `Kernel`, and templates say how it
is put.
"""

from tilewright.export.bundle import Bundle, Exported, bundle
from tilewright.export.project import Written, write

__all__ = ["Bundle", "Exported", "Written", "bundle", "write"]
