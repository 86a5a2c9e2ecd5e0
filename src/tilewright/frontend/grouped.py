"""`grouped_matmul`: products of different shapes in one launch, as a mixture of experts needs them.

Sizes and addresses of the problems are rows of a table on the GPU; blocks along z have a problem each, and the grid is
as large as the largest one's. One kernel serves all, chosen for their work together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import starmap
from typing import Any

import numpy as np

from tilewright.dtypes import DType
from tilewright.errors import CompileError, LaunchError, LoweringError, ProblemError, ScheduleError
from tilewright.frontend.calls import matmul
from tilewright.frontend.choices import Alignment
from tilewright.frontend.dispatch import Dispatcher, dispatcher
from tilewright.frontend.layouts import Layout, layouts_of
from tilewright.frontend.libraries import DTypeError, HostArrays, View, library_of
from tilewright.frontend.options import Options, options_of, result_format
from tilewright.frontend.shapes import NeedsCopy, ShapeError, product_of
