"""Donate only buffers that nothing else reads: copies are donated in place of those that are shared.

XLA refuses a buffer that one execution is given twice and donated once, on the devices where that is so and not on the
others. Two arrays may hold one buffer although they are two objects: `jax.device_put` of an array from one device to
several keeps the buffer of that device.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxplan.core import _compat
from jaxplan.core._interner import Watched, addresses, distinct
from jaxplan.core._log import logger
from jaxplan.partition._host_values import put

_MOST_PATHS = 4
_SHARED_MSG = (
    "donated arguments that were passed twice or share a buffer with another argument ({count}): {pairs}. Copies were "
    "donated in their place, and the arrays themselves were kept"
)

Span = tuple[Any, int, int]
"""Device, first byte and end of a buffer."""


class DonatedBuffers:
    """The donated arguments of a planned step, told apart from all that could share their memory.

    Looking at buffers takes long next to a call. An output of the last call has buffers of its own, and what that
    call read and did not donate cannot share them: such arguments, known by weak references, are not looked at.

    Attributes:
      paths: key paths of all arguments.
      donated: positions of those that are donated.
      watched: positions of the others that could share their buffers.
    """

    def __init__(self, paths: Sequence[str], donated: Sequence[bool], local_types: Sequence[Any]) -> None:
        """`local_types`: per argument, shape and dtype of its part on one device, and so of its buffers."""
        self.paths = tuple(paths)
        self.donated = tuple(i for i, is_donated in enumerate(donated) if is_donated)
        self._types = tuple(local_types)
        self._donated_types = {local_types[i] for i in self.donated}
        self.watched = tuple(
            j
            for j, is_donated in enumerate(donated)
            if not is_donated and local_types[j] in self._donated_types
        )
        self._outputs = Watched()
        self._kept = Watched()
        self._has_told = False
        self._lock = threading.Lock()

    def own(self, given: Sequence[Any], placed: Sequence[Any]) -> list[Any]:
        """The placed arguments, with copies of donated ones that share memory.

        Args:
          given: the arguments as the caller has them: arrays, NumPy arrays or numbers.
          placed: the same where the plan wants them.
        """
        if self._is_passed_on(given, placed):
            return list(placed)
        placed = unaliased(given, placed, self.donated)
        in_place = [i for i in self.donated if placed[i] is given[i]]
        compared = self._to_compare(in_place, given, placed)
        shared = _shared([(i, array) for i in compared for array in (given[i], placed[i])], in_place)
        if shared:
            self._tell(shared)
        for i in shared:
            placed[i] = put(jnp.copy(placed[i]), placed[i].sharding)
        return placed

    def remember(self, placed: Sequence[Any], results: Iterable[Any]) -> None:
        """Take note of a call: the arrays that it kept and returned."""
        if self.donated:
            self._outputs = Watched(results)
            self._kept = Watched(placed[j] for j in self.watched)

    def _is_passed_on(self, given: Sequence[Any], placed: Sequence[Any]) -> bool:
        """Whether nothing was moved, and all that could share memory came out of the last call or was kept by it."""
        if not all(map(operator.is_, given, placed)) or len(distinct(placed)) < len(placed):
            return False
        outputs, kept = self._outputs, self._kept
        return all(placed[i] in outputs for i in self.donated) and all(
            placed[j] in outputs or placed[j] in kept for j in self.watched
        )

    def _to_compare(self, in_place: Sequence[int], given: Sequence[Any], placed: Sequence[Any]) -> list[int]:
        """Arguments whose buffers have to be looked at; none in a loop that passes on its results."""
        if not in_place:
            return []
        outputs, kept = self._outputs, self._kept
        donated = set(addresses(placed[i] for i in in_place))
        is_known = len(donated) == len(in_place) and all(placed[i] in outputs for i in in_place)
        if not is_known or sum(number in donated for number in addresses(given)) > len(donated):
            return list(range(len(placed)))
        new = [
            j for j in self.watched if placed[j] not in outputs and placed[j] not in kept
        ]
        moved = [j for j, array in enumerate(given) if placed[j] is not array]
        new += [j for j in moved if _local_type(given[j]) in self._donated_types]
        types = {self._types[j] for j in new} | {_local_type(given[j]) for j in new}
        return sorted({*new, *(i for i in in_place if self._types[i] in types)}) if new else []

    def _tell(self, shared: dict[int, int]) -> None:
        with self._lock:
            if self._has_told:
                return
            self._has_told = True
        pairs = [f"{self.paths[i]} with {self.paths[j]}" for i, j in list(shared.items())[:_MOST_PATHS]]
        if len(shared) > len(pairs):
            pairs.append(f"and {len(shared) - len(pairs)} more")
        logger.warning(_SHARED_MSG.format(count=len(shared), pairs=", ".join(pairs)))


def unaliased(given: Sequence[Any], placed: Sequence[Any], which: Iterable[int]) -> list[Any]:
    """Placed arguments that share no memory with the caller's array where placing it was to give another one."""
    placed = list(placed)
    for i in which:
        if placed[i] is given[i] or not _overlap(spans(given[i]), spans(placed[i])):
            continue
        source = given[i]
        copy = jnp.copy(source) if isinstance(source, jax.Array) else np.array(source)
        placed[i] = put(copy, placed[i].sharding)
    return placed


def spans(array: Any) -> list[Span]:
    """Memory of an array on the devices of this process; of a NumPy array, on any device."""
    if isinstance(array, np.ndarray):
        first, end = np.lib.array_utils.byte_bounds(array)
        return [(None, first, end)] if array.size else []
    if not isinstance(array, jax.Array):
        return []
    return _compat.buffer_spans(array)


def _shared(arrays: Iterable[tuple[int, Any]], which: Iterable[int]) -> dict[int, int]:
    """Those of the positions that share memory with another position, and which.

    Args:
      arrays: (position, array) pairs, of a position more than one where it was placed.
      which: positions that are asked about.
    """
    held = sorted((str(device), first, end, i) for i, array in arrays for device, first, end in spans(array))
    groups: list[set[int]] = []
    last_device, last_end = "", 0
    for device, first, end, i in held:
        if not groups or device != last_device or first >= last_end:
            groups.append(set())
            last_device, last_end = device, end
        groups[-1].add(i)
        last_end = max(last_end, end)
    wanted, shared = set(which), {}
    for group in groups:
        for i in sorted(wanted & group if len(group) > 1 else ()):
            shared.setdefault(i, min(group - {i}))
    return dict(sorted(shared.items()))


def _overlap(some: Sequence[Span], others: Sequence[Span]) -> bool:
    return any(
        a[1] < b[2] and b[1] < a[2] and (a[0] == b[0] or a[0] is None or b[0] is None)
        for a in some
        for b in others
    )


def _local_type(array: Any) -> Any:
    """Shape and dtype of an array's part on one device; None where it is on none."""
    return (array.sharding.shard_shape(array.shape), array.dtype) if isinstance(array, jax.Array) else None
