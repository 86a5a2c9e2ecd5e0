"""Products whose rows of A arrive shard by shard while their kernel runs, on a GPU of PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tilewright import extras
from tilewright.errors import LaunchError
from tilewright.frontend.compute import refuse_host_memory, views_of
from tilewright.frontend.options import Options
from tilewright.frontend.pytorch.plain import LIBRARY
from tilewright.frontend.requests import checked, requests_of
from tilewright.planning.dispatch import dispatcher
from tilewright.planning.plan import Place, Plan
from tilewright.planning.stack import Shards

torch: Any = extras.require("torch", "Multiplying on several GPUs")


class ArrivingProducts:
    """`a @ b` of several b, whose kernels wait for the rows of each rank.

    starts: the first row of each rank. rows: of all. flags: the address of the flags that are waited for, one a rank;
    that of the own rank is always set.
    """

    def __init__(self, starts: Sequence[int], rows: int, rank: int, flags: int, options: Options, device: Any) -> None:
        self._shards, self._flags, self._options = Shards(len(starts), starts[rank]), flags, options
        self._bounds = torch.tensor([*starts, rows], dtype=torch.int32, device=device)
        self._raised = torch.ones(len(starts), dtype=torch.int32, device=device)
        self._plans: dict[int, Plan] = {}

    def start(self, number: int, a: Any, b: Any, out: Any, stream: int, *, waits: bool = True) -> None:
        """Start `out = a @ b` on a stream, by its address. number: of b; all calls with one number look alike. a:
        memory of all rows. waits: for rows to arrive; else whatever lies there is multiplied.

        Raises LaunchError where no kernel waits for such rows, the first time of a number.
        """
        plan = self._plans.get(number)
        if plan is None:
            plan = self._plans[number] = self._planned(a, b, out)
        places: dict[int, int] = {
            Place.A: a.data_ptr(),
            Place.B: b.data_ptr(),
            Place.OUT: out.data_ptr(),
            Place.SHARD_STARTS: self._bounds.data_ptr(),
            Place.SHARD_FLAGS: self._flags if waits else self._raised.data_ptr(),
        }
        plan.run(stream, [places.get(place, 0) for place in range(max(places) + 1)])

    def _planned(self, a: Any, b: Any, out: Any) -> Plan:
        views = views_of(LIBRARY, a, b, out)
        pieces = requests_of(views, *checked(views, self._options), self._options)
        plain = len(pieces) == 1 and pieces[0].is_at_start and not pieces[0].swapped
        if not plain or pieces[0].request.algorithm is not None:
            raise LaunchError(
                f"A product of {tuple(a.shape)} by {tuple(b.shape)} that is more than one launch cannot wait for rows.",
                hint="multiply the rows of each shard when they have arrived.",
            )
        request = replace(pieces[0].request, shards=self._shards, without_workspace=True)
        return dispatcher(refuse_host_memory(LIBRARY, views)).plan(request)
