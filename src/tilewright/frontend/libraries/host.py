"""NumPy arrays, which lie in host memory."""

from __future__ import annotations

from typing import Any

from tilewright.frontend.libraries.views import View, format_named


class HostArrays:
    """The library of `numpy.ndarray`: copied to a GPU and back where there is one, else multiplied by NumPy."""

    name = "NumPy"
    writes_in_place = True

    def view(self, array: Any) -> View:
        dtype = format_named(array.dtype.name, array)
        step = array.itemsize
        return View(array.ctypes.data, array.shape, tuple(s // step for s in array.strides), dtype, None)
