"""Matrices in .npy files: read with care, written whole or not at all."""

from __future__ import annotations

import os
from math import prod
from pathlib import Path
from typing import BinaryIO

from numpy.lib import format as npy

from tilewright.dtypes import Array
from tilewright.errors import ProblemError
from tilewright.files import check_ordinary, write_whole


def load_matrix(name: str, path: Path) -> Array:
    """The array in a .npy file, in this machine's byte order. Raises ProblemError for anything else.

    name: A, B or C, for messages. Nothing that needs pickle is read: it could run code.
    """
    check_ordinary(path)
    try:
        with path.open("rb") as file:
            _check_whole(name, path, file)
            file.seek(0)
            array: Array = npy.read_array(file, allow_pickle=False)
    except FileNotFoundError:
        raise ProblemError(f"There is no file {str(path)!r} to read {name} from.") from None
    except (ValueError, EOFError) as error:
        raise ProblemError(
            f"{str(path)!r} is no .npy file: {str(error).partition(chr(10))[0]}.",
            hint=f"numpy.save({str(path)!r}, {name}) writes one.",
        ) from None
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _check_whole(name: str, path: Path, file: BinaryIO) -> None:
    """Refuse Python objects, and a file shorter than its header says, before any memory is taken for it."""
    version = npy.read_magic(file)
    if version == (1, 0):
        shape, _, dtype = npy.read_array_header_1_0(file)
    else:
        shape, _, dtype = npy.read_array_header_2_0(file)
    if dtype.hasobject:
        raise ProblemError(
            f"{name} in {str(path)!r} holds Python objects, not numbers.",
            note="reading them could run code, so it is refused.",
            hint=f"numpy.save({str(path)!r}, numpy.asarray({name}, dtype='float32')).",
        )
    expected = prod(shape) * dtype.itemsize
    there = os.fstat(file.fileno()).st_size - file.tell()
    if there < expected:
        size = " x ".join(str(extent) for extent in shape)
        raise ProblemError(
            f"{str(path)!r} is cut short: {size} {dtype.name} take {expected} bytes, and {there} are there.",
            hint="write or copy it again.",
        )


def save_matrix(path: Path, matrix: Array) -> None:
    """The matrix as a .npy file, whole or not at all. Raises TilewrightError where it cannot be written."""
    write_whole(path, lambda file: npy.write_array(file, matrix, allow_pickle=False))
