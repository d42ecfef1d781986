"""Batches of a plan: parts that each process loads become arrays over the devices of all, a few of them ahead."""

from __future__ import annotations

import collections
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxplan.core._processes import exchange, spans_processes
from jaxplan.errors import ArgumentError, ProcessError
from jaxplan.partition._host_memory import in_shardings
from jaxplan.partition._host_values import check_equal, put

if TYPE_CHECKING:
    from jaxplan.partition._plan_like import PlanLike

_UNEVEN_MSG = (
    "batch{path} has shape {given} in process {process}, and the plan takes {expected}.\n"
    "  expected:     {part}, or the whole in every process\n"
    "  likely cause: the last batch of a data set is smaller than the others\n"
    "  fix:          leave it out (drop_remainder=True), or fill it up with rows that the loss does not count; a step "
    "under @jaxplan.auto can also be called with the smaller batch as one global array, and is planned for it"
)
_STRUCTURE_MSG = (
    "the batch has another structure than the one that the plan was made for.\n"
    "  given:    {given}\n"
    "  expected: {expected}\n"
    "  fix:      give what the step takes as its batch; where it takes several arguments, a tuple of them"
)
_ENDED_MSG = (
    "the batches of process {ended} end after {count}, and those of process {other} do not.\n"
    "  expected:     as many batches in every process\n"
    "  likely cause: a data set that the processes share unevenly\n"
    "  fix:          leave out what is over (drop_remainder=True), or stop after a number of steps"
)


class Batches:
    """Makes global arrays of the parts of a batch that the processes have.

    A part has the planned shape but for one dimension, which is as many times shorter as there are processes; parts
    follow each other in the order of processes. A leaf of the planned shape is the same in all of them.
    """

    def __init__(self, plan: PlanLike, mesh: Mesh) -> None:
        program = plan.require_program().program
        self._mesh = mesh
        self._processes = sorted({device.process_index for device in mesh.devices.flat})
        self._is_shared = spans_processes(mesh.devices.flat)
        self._arguments = batch_arguments(plan)
        self._shapes = [program.tensors[t].shape for t in program.inputs]
        self._shardings = in_shardings(plan, mesh)

    def place(self, part: Any) -> Any:
        """The batch as the step takes it: one argument, or a tuple of several.

        Raises:
          ArgumentError: a part has a shape that it cannot have; where several processes run, in all of them.
          ProcessError: a leaf of the planned shape has other values in another process.
        """
        return self._placed(part, self._problem(part))

    def ahead(self, parts: Iterable[Any], prefetch: int) -> Iterator[Any]:
        """`place` for each of some parts, ``prefetch`` of them ahead of the one that is used.

        Raises:
          ArgumentError: as `place`, once the batches before that part have been used.
          ProcessError: the parts of one process end before those of another; in every process.
        """
        if not isinstance(parts, Iterable) and not hasattr(parts, "__getitem__"):
            raise ArgumentError(f"batches is given {parts!r}; expected an iterable of batches, such as a data loader")
        ready: collections.deque[Any] = collections.deque()
        refused: ArgumentError | None = None
        for part in self._same_number(parts):
            try:
                ready.append(self.place(part))
            except ArgumentError as error:
                refused = error
                break
            if len(ready) > prefetch:
                yield ready.popleft()
        yield from ready
        if refused is not None:
            raise refused

    def _same_number(self, parts: Iterable[Any]) -> Iterator[Any]:
        end, parts = object(), iter(parts)
        for count in range(1 << 62):
            part = next(parts, end)
            if self._is_shared:
                found = [of["ended"] for of in exchange("the batches", {"ended": part is end})]
                if len(set(found)) > 1:
                    ended, other = found.index(True), found.index(False)
                    raise ProcessError(_ENDED_MSG.format(ended=ended, other=other, count=count))
            if part is end:
                return
            yield part

    def _leaves(self, part: Any) -> Iterator[tuple[str, int, Any]]:
        """(Path below the batch, position among the arguments, value) of each leaf."""
        several = len(self._arguments) > 1
        given = list(part) if several and isinstance(part, tuple | list) else [part]
        expected = [tree for _, tree in self._arguments]
        trees = [jax.tree.structure(value) for value in given]
        if trees != expected:
            shown = [trees, expected] if several else [trees[0], expected[0]]
            raise ArgumentError(_STRUCTURE_MSG.format(given=shown[0], expected=shown[1]))
        for number, ((start, _), value) in enumerate(zip(self._arguments, given)):
            for i, (path, leaf) in enumerate(jax.tree_util.tree_flatten_with_path(value)[0]):
                before = f"[{number}]" if several else ""
                yield before + jax.tree_util.keystr(path), start + i, leaf

    def _problem(self, part: Any) -> str | None:
        """The error of the first leaf that has a wrong shape, if any."""
        try:
            for path, position, leaf in self._leaves(part):
                self._split_dimension(path, np.shape(leaf), self._shapes[position])
        except ArgumentError as error:
            return str(error)
        return None

    def _placed(self, part: Any, problem: str | None) -> Any:
        if self._is_shared:
            errors = [of["error"] for of in exchange("a batch", {"error": problem})]
            problem = next((error for error in errors if error is not None), None)
        if problem is not None:
            raise ArgumentError(problem)
        leaves = list(self._leaves(part))
        whole = {path: leaf for path, i, leaf in leaves if np.shape(leaf) == self._shapes[i]}
        if self._is_shared and whole:
            check_equal("a batch", whole)
        placed = [self._placed_leaf(path, i, leaf) for path, i, leaf in leaves]
        found, done = [], 0
        for _, tree in self._arguments:
            found.append(tree.unflatten(placed[done : done + tree.num_leaves]))
            done += tree.num_leaves
        return found[0] if len(found) == 1 else tuple(found)

    def _split_dimension(self, path: str, shape: Sequence[int], planned: Sequence[int]) -> int | None:
        """The dimension that the processes share; None: the leaf is whole."""
        count = len(self._processes)
        if tuple(shape) == tuple(planned):
            return None
        differs = [d for d, (a, b) in enumerate(zip(shape, planned)) if a != b]
        if len(shape) == len(planned) and len(differs) == 1 and shape[differs[0]] * count == planned[differs[0]]:
            return differs[0]
        part = "that shape"
        if planned and planned[0] % count == 0 and count > 1:
            part = f"a part of shape {(planned[0] // count, *planned[1:])} in each of {count} processes"
        raise ArgumentError(
            _UNEVEN_MSG.format(
                path=path, given=tuple(shape), expected=tuple(planned), part=part, process=jax.process_index()
            )
        )

    def _placed_leaf(self, path: str, position: int, leaf: Any) -> Any:
        planned, sharding = self._shapes[position], self._shardings[position]
        dimension = self._split_dimension(path, np.shape(leaf), planned)
        if dimension is None:
            return put(leaf, sharding)
        shift = self._processes.index(jax.process_index()) * leaf.shape[dimension]
        owned = sharding if _keeps_parts(sharding, planned, dimension) else self._by_process(dimension)
        local = np.asarray(leaf)

        def own(index: Any) -> np.ndarray:
            along = index[dimension]
            start, stop, _ = along.indices(planned[dimension])
            return local[(*index[:dimension], slice(start - shift, stop - shift), *index[dimension + 1 :])]

        array = jax.make_array_from_callback(planned, owned, own, dtype=jax.typeof(leaf).dtype)
        return array if owned is sharding else jax.device_put(array, sharding)

    def _by_process(self, dimension: int) -> NamedSharding:
        """A dimension split over the processes, each part whole on the devices of its process."""
        devices = self._mesh.devices.reshape(len(self._processes), -1)
        mesh = Mesh(devices, ("process", "device"))
        return NamedSharding(mesh, PartitionSpec(*(None,) * dimension, "process"))


@functools.lru_cache(maxsize=256)
def _keeps_parts(sharding: NamedSharding, shape: tuple[int, ...], dimension: int) -> bool:
    """Whether each device holds nothing but of its own process's part of a dimension."""
    processes = sorted({device.process_index for device in sharding.device_set})
    size = shape[dimension] // len(processes)
    for device, index in sharding.devices_indices_map(shape).items():
        start, stop, _ = index[dimension].indices(shape[dimension])
        first = processes.index(device.process_index) * size
        if start < first or stop > first + size:
            return False
    return True


def batch_arguments(plan: PlanLike) -> list[tuple[int, Any]]:
    """Position of the first leaf, and tree, of each argument that holds neither state nor parameters."""
    graph = plan.require_program()
    is_stored, found, start = [t in graph.stored for t in graph.program.inputs], [], 0
    for arguments in graph.program.in_tree.children():
        for tree in arguments.children():
            stop = start + tree.num_leaves
            if stop > start and not any(is_stored[start:stop]):
                found.append((start, tree))
            start = stop
    return found
