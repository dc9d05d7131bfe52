"""CUDA graphs of steps: captured once, replayed whenever such a step runs."""

from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

import torch


class GraphName(NamedTuple):
    """What a graph computes: a decode step; the layers of a flat step, or its logits and draws; the layers of a step
    with chunks of prompts; or draws from changed distributions, without and with top-k."""

    kind: Literal["decode", "flat", "outputs", "prompt", "shaped", "shaped with k"]
    rows: int  # of a step with prompts: tokens
    changed: frozenset[int] = frozenset()  # groups of matrices that adapters change


class Graphs:
    """On a CPU, `compute` runs whenever a graph is replayed."""

    def __init__(self, device: torch.device, compute: Callable[[GraphName], None]) -> None:
        self._device = device
        self._compute = compute
        self._captured: dict[GraphName, torch.cuda.CUDAGraph] = {}

    def __contains__(self, name: GraphName) -> bool:
        return name in self._captured

    def clear(self) -> None:
        self._captured.clear()

    def drop_changed(self) -> None:
        """Drop the graphs of steps with adapters."""
        self._captured = {name: graph for name, graph in self._captured.items() if not name.changed}

    def capture(self, name: GraphName, stream: torch.cuda.Stream) -> None:
        self._compute(name)  # compiles the kernels
        self._capture(name, stream, None)

    def capture_together(self, names: Iterable[GraphName], stream: torch.cuda.Stream) -> None:
        """Capture graphs that use the same memory, the largest first. Their kernels must have been compiled."""
        pool = torch.cuda.graph_pool_handle()
        for name in names:
            self._capture(name, stream, pool)

    def _capture(self, name: GraphName, stream: torch.cuda.Stream, pool: Any) -> None:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=stream):
            self._compute(name)
        self._captured[name] = graph

    def replay(self, name: GraphName) -> None:
        if self._device.type == "cuda":
            self._captured[name].replay()
        else:
            self._compute(name)
