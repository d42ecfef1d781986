"""Bytes that swapping moves between a GPU and the host by least recent use, as Tofu's baseline does (section 6.1).

Arrays go in and out whole, operator by operator in program order; arrays with a copy on the host are dropped, not
written again; those that no later operator reads are freed. An elementwise operator writes in place of an operand
that it reads last.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from jaxplan.ir import StepGraph

_VIEWS = frozenset(
    {
        "reshape",
        "squeeze",
        "expand_dims",
        "broadcast_in_dim",
        "stop_gradient",
        "copy",
        "transpose",
        "pjit",
        "jit",
    }
)
"""Their results are read in place."""


def swapped_bytes(graph: StepGraph, num_bytes: Sequence[float], limit_bytes: float) -> float:
    """Bytes moved in one step, both ways together.

    Args:
      num_bytes: of every tensor of the program, as its batch has them.
      limit_bytes: memory of the GPU.
    """
    return _Swapping(graph, num_bytes, limit_bytes).run()


class _Swapping:
    def __init__(self, graph: StepGraph, num_bytes: Sequence[float], limit_bytes: float) -> None:
        self.program, self.sizes, self.limit = graph.program, num_bytes, limit_bytes
        self.root = list(range(len(graph.program.tensors)))
        self.last: dict[int, int] = {}
        for eqn in self.program.equations:
            if eqn.name in _VIEWS and eqn.operands and len(eqn.results) == 1:
                self.root[eqn.results[0]] = self.root[eqn.operands[0]]
            for t in eqn.operands:
                self.last[self.root[t]] = eqn.index
        for t in self.program.outputs:
            self.last[self.root[t]] = len(self.program.equations)
        self.resident: OrderedDict[int, float] = OrderedDict()
        self.on_host = {t.index for t in self.program.tensors if t.kind == "input"}
        self.used = self.moved = 0.0
        for t in self.program.inputs:  # left there by the step before
            if self.used + num_bytes[t] <= limit_bytes:
                self.resident[t] = num_bytes[t]
                self.used += num_bytes[t]

    def run(self) -> float:
        for eqn in self.program.equations:
            if eqn.name in _VIEWS:
                continue
            operands = {
                self.root[t] for t in eqn.operands if self.program.tensors[t].kind in ("input", "computed")
            }
            results = {self.root[t] for t in eqn.results}
            busy = operands | results
            for t in operands:
                self._hold(t, busy, is_new=False)
            dying = [t for t in operands if self.last.get(t) == eqn.index]
            in_place = min(
                (t for t in dying if t in self.resident), key=lambda t: -self.sizes[t], default=None
            )
            sizes = [self.sizes[t] for t in results]
            if (
                in_place is not None
                and len(sizes) == 1
                and sizes[0] == self.sizes[in_place]
                and "dot" not in eqn.name
            ):
                self._free(in_place)
            for t in results:
                self._hold(t, busy, is_new=True)
            for t in (*dying, *(t for t in results if t not in self.last)):
                self._free(t)
        return self.moved

    def _hold(self, tensor: int, busy: set[int], *, is_new: bool) -> None:
        """Make it the most recently used; fetch it where the host has it alone, and make room first."""
        if tensor in self.resident:
            self.resident.move_to_end(tensor)
            return
        size = self.sizes[tensor]
        for victim in [t for t in self.resident if t not in busy]:
            if self.used + size <= self.limit:
                break
            if victim not in self.on_host:
                self.moved += self.sizes[victim]
                self.on_host.add(victim)
            self._free(victim)
        self.resident[tensor] = size
        self.used += size
        if not is_new:
            self.moved += size

    def _free(self, tensor: int) -> None:
        self.used -= self.resident.pop(tensor, 0.0)
