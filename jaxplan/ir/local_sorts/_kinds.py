"""Kinds of values between a sort of rows and its inverse, and the equations that relate them to other values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Sort:
    """A sort of rows by an integer key, such as the expert that a token is sent to.

    Attributes:
      place: positions of the loops around it, and its own among the equations there.
      num_rows: number of rows.
    """

    place: tuple[int, ...]
    num_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Values in sorted order: each of its own row alone. ``dim``: the dimension along the rows."""

    sort: Sort
    dim: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Index:
    """Positions of rows, or values computed from them.

    Attributes:
      is_order: whether there is one for each sorted row, of its place before the sort; else one for each row before
        the sort, of its place after it.
      table: the value of each position, in the shape of the array.
    """

    sort: Sort
    is_order: bool
    table: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Numbers of rows of each key, ``num_groups`` of them."""

    sort: Sort
    num_groups: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Known:
    """Values that stood in a known order after the sort, written to the places of the rows before it.

    JAX numbers the rows that a scatter writes, to know which of two with one place was the last.

    Attributes:
      dim: along the rows.
      table: the values after the sort.
    """

    sort: Sort
    dim: int
    table: np.ndarray


Kind = Rows | Index | Counts | Known


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A stack of the results of the trips of a loop."""

    of: Kind

    @property
    def sort(self) -> Sort:
        return self.of.sort


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLookUp:
    """A look-up of whole rows: one index for each, along one dimension of the operand.

    Attributes:
      dim: of the operand; ``result_dim``: along the indices, of the result (the updates of a scatter).
    """

    dim: int
    result_dim: int

    @classmethod
    def of_gather(cls, eqn: Any) -> RowLookUp | None:
        """Of a ``gather``; None where it is something else."""
        operand, indices = (v.aval.shape for v in eqn.invars)
        numbers, result = eqn.params["dimension_numbers"], eqn.outvars[0].aval.shape
        dims, sizes = numbers.collapsed_slice_dims, eqn.params["slice_sizes"]
        if tuple(numbers.start_index_map) != tuple(dims) or numbers.operand_batching_dims:
            return None
        return cls._of(operand, indices, dims, sizes, numbers.offset_dims, result)

    @classmethod
    def of_scatter(cls, eqn: Any) -> RowLookUp | None:
        """Of a ``scatter`` or ``scatter-add``; None where it is something else."""
        operand, indices, updates = (v.aval.shape for v in eqn.invars)
        numbers = eqn.params["dimension_numbers"]
        dims = numbers.inserted_window_dims
        if tuple(numbers.scatter_dims_to_operand_dims) != tuple(dims) or numbers.operand_batching_dims:
            return None
        window = iter(updates[axis] for axis in numbers.update_window_dims)
        sizes = [1 if axis in dims else next(window) for axis in range(len(operand))]
        return cls._of(operand, indices, dims, sizes, numbers.update_window_dims, updates)

    @classmethod
    def _of(cls, operand: Any, indices: Any, dims: Any, sizes: Any, windows: Any, result: Any) -> RowLookUp | None:
        is_whole = all(size == (1 if axis in dims else operand[axis]) for axis, size in enumerate(sizes))
        if len(dims) != 1 or len(indices) != 2 or indices[1] != 1 or not is_whole:
            return None
        (result_dim,) = set(range(len(result))) - set(windows)
        return cls(dim=dims[0], result_dim=result_dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class SortRows:
    """The sort itself."""

    sort: Sort


@dataclass(frozen=True, slots=True, kw_only=True)
class Invert:
    """The place of each row after the sort: by a sort of the places before it, or by a scatter to these."""

    sort: Sort


@dataclass(frozen=True, slots=True, kw_only=True)
class SameIndex:
    """Arithmetic on positions: they stay as they are, and its result is told by `Index.table`."""

    operand: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveRows:
    """Rows taken, or added or written, into sorted order or back; ``copies``: sorted rows for each other row."""

    look_up: RowLookUp
    copies: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RaggedDot:
    """A ragged dot of sorted rows; ``counts``: number of the value that counts them."""

    counts: int


Step = SortRows | Invert | SameIndex | MoveRows | RaggedDot
