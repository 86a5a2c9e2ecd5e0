"""Calls of one kind whose tensors lie where those of an earlier call lay, as replays of a CUDA graph.

Steps on three streams are some thirty calls of the driver, which take the host longer than most products take the GPU;
a replay is one. Programs that call the same layers again and again find their tensors at the same addresses.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from tilewright import extras
from tilewright.distributed.pytorch.symmetric import Call, Program
from tilewright.frontend.pytorch.plain import LIBRARY

torch: Any = extras.require("torch", "Multiplying on several GPUs")

MOST = 64
"""Graphs that are kept for one kind of call, and addresses that were seen once."""


class Replays:
    """The calls of one program on a GPU, by its number."""

    def __init__(self, program: Program, device: int) -> None:
        self._program, self._device = program, device
        self._graphs: OrderedDict[tuple[int, ...], Any] = OrderedDict()
        self._callers: dict[int, Any] = {}
        self._pool: Any = None

    def run(self, call: Call) -> None:
        """Start a call: its steps, the first time that its tensors lie where they lie; then a graph of them."""
        if torch.cuda.is_current_stream_capturing():
            self._program.run(call)
            return
        place = (call.a.data_ptr(), *[x.data_ptr() for x in call.b], *[x.data_ptr() for x in call.results])
        if call.scales is not None:
            place += tuple([x.data_ptr() for x in call.scales.tensors])
        graphs = self._graphs
        if place not in graphs:
            graphs[place] = None
            if len(graphs) > MOST:
                graphs.popitem(last=False)
            self._program.run(call)
            return
        graph = graphs[place]
        if graph is None:
            graph = graphs[place] = self._recorded(call)
        graphs.move_to_end(place)
        caller, workspace = self._caller(), self._program.workspace
        workspace.begin(caller, capturing=False)
        graph.replay()
        workspace.finish(caller, capturing=False)

    def _caller(self) -> Any:
        """The current stream; making the object takes PyTorch longer than a launch."""
        address = LIBRARY.stream(self._device)
        found = self._callers.get(address)
        if found is None:
            found = self._callers[address] = torch.cuda.current_stream()
        return found

    def _recorded(self, call: Call) -> Any:
        """A graph of a call. Nothing waits for the GPU, so that no rank waits for another one.

        Graphs share the workspace of products, as they run one after the other.
        """
        if not any(self._graphs.values()):  # a pool ends with the last graph that uses it
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._program.workspace.recording):
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                self._program.run(call)
            finally:
                graph.capture_end()
        return graph
