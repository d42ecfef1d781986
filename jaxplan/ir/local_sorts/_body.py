"""A jaxpr with the kinds and constants of its values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxplan.ir.local_sorts._kinds import Kind, Sort, Stack, Step
from jaxplan.ir.local_sorts._tables import is_uniform
from jaxplan.ir.microbatch._pairs import Paired


@dataclass(slots=True, eq=False)
class Body:
    """A jaxpr, calls inlined, with the kinds of its values.

    Attributes:
      place: positions of the equations around it.
      kinds: of values between a sort and its inverse.
      constants: values that are known.
      sources: value -> the one that has the same elements in the same order; itself where it is not among them.
      keys: sort -> the source of its keys, and that of the sorted keys.
      alike: value -> dimensions along which all its elements are the same.
      steps: position of an equation that runs in blocks -> how.
      inner: position of a loop or checkpoint -> its body.
    """

    flat: Paired
    place: tuple[int, ...] = ()
    kinds: dict[int, Kind | Stack] = field(default_factory=dict)
    constants: dict[int, np.ndarray] = field(default_factory=dict)
    sources: dict[int, Any] = field(default_factory=dict)
    keys: dict[Sort, tuple[Any, Any]] = field(default_factory=dict)
    alike: dict[int, frozenset[int]] = field(default_factory=dict)
    steps: dict[int, Step] = field(default_factory=dict)
    inner: dict[int, Body] = field(default_factory=dict)

    @property
    def is_changed(self) -> bool:
        return bool(self.steps or self.kinds or any(body.is_changed for body in self.inner.values()))

    def kind(self, atom: Any) -> Kind | Stack | None:
        return self.kinds.get(atom) if isinstance(atom, int) else None

    def constant(self, atom: Any) -> np.ndarray | None:
        return self.constants.get(atom) if isinstance(atom, int) else known_value(atom.val)

    def source(self, atom: Any) -> Any:
        return self.sources.get(atom, atom) if isinstance(atom, int) else atom

    def alike_dims(self, atom: Any) -> frozenset[int]:
        return self.alike.get(atom, frozenset()) if isinstance(atom, int) else frozenset()

    def is_alike(self, atom: Any, dim: int) -> bool:
        """Whether all elements of a value along a dimension are the same."""
        known = self.constant(atom)
        return (known is not None and is_uniform(known, dim)) or dim in self.alike_dims(atom)


def known_value(value: Any) -> np.ndarray | None:
    """A literal or constant as an array; None where it is on a device."""
    return np.asarray(value) if isinstance(value, np.ndarray | np.generic | int | float | bool) else None
