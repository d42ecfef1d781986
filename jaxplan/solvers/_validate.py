"""Checks of the arguments of `Problem`, one clear error each; conversions that keep identity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxplan.core._interner import Memo
from jaxplan.errors import ProblemError
from jaxplan.solvers._edge import Edge

# Entries that are looked at before two arrays are compared in full.
_SAMPLE_ENTRIES = 64


class Arrays:
    """Converts arrays once per object; arrays of equal content come out as one object, the first of them."""

    def __init__(self) -> None:
        self._converted = Memo()
        self._alike: dict[tuple[Any, ...], list[np.ndarray]] = {}
        self._checked = Memo()
        self._zeros: dict[int, np.ndarray] = {}

    def no_memory(self, size: int) -> np.ndarray:
        return self._zeros.setdefault(size, np.zeros(size, np.int64))

    def node_time(self, array: Any, name: str) -> np.ndarray:
        time = self._convert(array, "f8", f"time of node {name}")
        if time.ndim != 1:
            raise ProblemError(f"time of node {name} has shape {time.shape}, expected (configurations,)")
        if not time.size:
            raise ProblemError(f"node {name} has no configuration: its times are empty; give it at least one")
        self._check_time(time, f"time of node {name}")
        return time

    def node_memory(self, array: Any, time: np.ndarray, name: str) -> np.ndarray:
        memory = self._convert(array, "i8", f"memory of node {name}")
        if memory.shape != time.shape:
            raise ProblemError(f"memory of node {name} has shape {memory.shape}, its time has {time.shape}")
        return memory

    def edge(self, edge: Any, index: int, sizes: tuple[int, ...], names: Sequence[str]) -> Edge:
        """Return entry `index` of the given edges as an `Edge`."""
        fields = (edge.source, edge.target, edge.time, edge.memory) if isinstance(edge, Edge) else tuple(edge)
        if len(fields) not in (3, 4):
            raise ProblemError(
                f"edge {index} has {len(fields)} entries, expected (u, v, time) or (u, v, time, memory)"
            )
        source, target = int(fields[0]), int(fields[1])
        if not (0 <= source < len(sizes) and 0 <= target < len(sizes)) or source == target:
            raise ProblemError(
                f"edge {index} joins nodes {source} and {target}; expected two, both below {len(sizes)}"
                " and different (costs of one node alone belong into its own arrays)"
            )
        where = f"edge {index} ({names[source]} to {names[target]})"
        time = self._convert(fields[2], "f8", f"time of {where}")
        shape = (sizes[source], sizes[target])
        if time.ndim not in (2, 3) or time.shape[:2] != shape or not time.size:
            raise ProblemError(
                f"time of {where} has shape {time.shape}, expected {shape} or (*{shape}, choices)"
            )
        self._check_time(time, f"time of {where}")
        memory = fields[3] if len(fields) == 4 else None
        if memory is not None:
            memory = self._convert(memory, "i8", f"memory of {where}")
        if memory is not None and memory.shape != time.shape:
            raise ProblemError(f"memory of {where} has shape {memory.shape}, its time has {time.shape}")
        return Edge(source=source, target=target, time=time, memory=memory)

    def _convert(self, array: Any, kind: str, what: str) -> np.ndarray:
        key = (self._converted.number(array), kind)
        if key not in self._converted:
            given = np.asarray(array)
            if given.dtype.kind not in "iuf":
                raise ProblemError(f"{what} has dtype {given.dtype}, expected numbers")
            converted = given.astype(np.dtype(kind), copy=False) if kind == "f8" else _as_bytes(given, what)
            self._converted[key] = self._first_equal(converted)
        return self._converted[key]

    def _first_equal(self, array: np.ndarray) -> np.ndarray:
        """Return the first array seen of the same content."""
        step = max(1, array.size // _SAMPLE_ENTRIES)
        sample = array[(slice(None, None, step),)] if array.ndim == 1 else array.ravel(order="K")[::step]
        known = self._alike.setdefault((array.dtype, array.shape, sample.tobytes()), [])
        for other in known:
            if other is array or np.array_equal(other, array):
                return other
        known.append(array)
        return array

    def _check_time(self, time: np.ndarray, what: str) -> None:
        key = self._checked.number(time)
        if key in self._checked:
            return
        if np.isnan(time).any():
            raise ProblemError(f"{what} holds NaN; mark forbidden entries with infinity")
        if np.isneginf(time).any():
            raise ProblemError(f"{what} holds minus infinity; expected seconds")
        if np.isposinf(time).all():
            raise ProblemError(f"{what} is infinite everywhere, so nothing can be chosen; make one finite")
        self._checked[key] = what


def _as_bytes(given: np.ndarray, what: str) -> np.ndarray:
    """Return whole bytes as int64, the same object where it is one already."""
    if given.dtype.kind != "f":
        return given.astype(np.int64, copy=False)
    if not np.isfinite(given).all() or (given != np.rint(given)).any():
        raise ProblemError(f"{what} holds fractions, NaN or infinity; expected whole bytes")
    return given.astype(np.int64)


def node_names(names: Sequence[str] | None, num_nodes: int) -> tuple[str, ...]:
    """Return one name for each node."""
    if not num_nodes:
        raise ProblemError("the problem has no node; give at least one array of times")
    if names is None:
        return tuple(str(node) for node in range(num_nodes))
    if len(names) != num_nodes:
        raise ProblemError(f"{len(names)} names for {num_nodes} nodes; expected one each")
    return tuple(names)


def same_length(num_memories: int, num_nodes: int) -> None:
    if num_memories != num_nodes:
        raise ProblemError(f"{num_memories} memories for {num_nodes} nodes; expected one each, or None")


def assignment_range(
    assignment: Sequence[int],
    choices: Sequence[int] | None,
    *,
    names: Sequence[str],
    sizes: Sequence[int],
    edges: Sequence[Edge],
) -> None:
    """Check one configuration for each node and, where given, one choice for each edge.

    Args:
      names, sizes: name and number of configurations of each node.
    """
    if len(assignment) != len(sizes):
        raise ProblemError(f"assignment has {len(assignment)} entries for {len(sizes)} nodes")
    for node, (label, size) in enumerate(zip(assignment, sizes)):
        if not 0 <= label < size:
            raise ProblemError(
                f"configuration {label} of node {names[node]} is out of range, it has {size}"
            )
    if choices is None:
        return
    if len(choices) != len(edges):
        raise ProblemError(f"{len(choices)} choices for {len(edges)} edges")
    for index, (choice, edge) in enumerate(zip(choices, edges)):
        if not 0 <= choice < edge.num_choices:
            raise ProblemError(f"choice {choice} of edge {index} is out of range")
