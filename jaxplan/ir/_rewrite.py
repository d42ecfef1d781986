"""Rewrites of a program: equations are put in front of others, replaced or left out, and all are numbered again."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from jaxplan.ir._dead_code import remove_dead
from jaxplan.ir._program import REGION_IN, Equation, Program, Region, Tensor


@functools.cache
def reshape_params(shape: tuple[int, ...], new: tuple[int, ...]) -> tuple[Any, Mapping[str, Any]]:
    """The primitive and parameters of a reshape."""
    array = jax.ShapeDtypeStruct(shape, np.float32)
    (eqn,) = jax.make_jaxpr(lambda x: jax.lax.reshape(x, new))(array).jaxpr.eqns
    return eqn.primitive, eqn.params


@dataclass(kw_only=True)
class Rewrite:
    """The changes so far.

    Attributes:
      tensors: with those that are added.
      before: equation -> equations that are put in front of it, each in the region that it names.
      renamed: tensor -> the equal one that is read in its place.
      instead: equation -> the one in its place, None for none.
    """

    program: Program
    tensors: list[Tensor] = field(init=False)
    before: dict[int, list[Equation]] = field(default_factory=lambda: defaultdict(list))
    renamed: dict[int, int] = field(default_factory=dict)
    instead: dict[int, Equation | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tensors = list(self.program.tensors)

    def add(self, like: int, shape: tuple[int, ...], trips: int) -> int:
        """A new tensor of the dtype of another."""
        index, tensor = len(self.tensors), self.tensors[like]
        self.tensors.append(
            Tensor(
                index=index,
                shape=shape,
                dtype=tensor.dtype,
                itemsize=tensor.itemsize,
                kind="computed",
                trips=trips,
            )
        )
        return index

    def reshaped(self, eqn: Equation, source: int, shape: tuple[int, ...], region: int) -> tuple[Equation, int]:
        """The reshape of an array, like another equation but in a region of its own, and its result."""
        result = self.add(source, shape, self.tensors[source].trips)
        primitive, params = reshape_params(self.tensors[source].shape, shape)
        changes = {"operands": (source,), "results": (result,), "region": region}
        return dataclasses.replace(eqn, primitive=primitive, params=params, **changes), result

    def done(self, name: str) -> Program:
        """The program, without equations that nothing reads any more; ``name`` tells its fingerprint from others."""
        equations: list[Equation] = []
        places: list[int] = []
        ends: list[int] = []
        begins: dict[tuple[int, int], int] = {}  # equation and depth of its region -> start of the body before it
        entries: dict[int, list[int]] = defaultdict(list)
        for eqn in self.program.equations:
            ends.append(len(equations))
            for added in sorted(self.before.get(eqn.index, ()), key=lambda added: self._depth(added.region)):
                if added.name == REGION_IN:
                    entries[added.params["region"]].append(len(equations))
                begins.setdefault((eqn.index, self._depth(added.region)), len(equations))
                equations.append(added.at(len(equations), added.operands, added.results))
            places.append(len(equations))
            kept = self.instead.get(eqn.index, eqn)
            if kept is not None:
                operands = tuple([self.renamed.get(t, t) for t in kept.operands])
                equations.append(kept.at(len(equations), operands, kept.results))
        ends.append(len(equations))
        regions = [
            dataclasses.replace(
                region,
                start=places[region.start],
                stop=ends[region.stop],
                entries=_entries(region, places, entries[region.index]),
                exits=tuple(places[e] for e in region.exits),
                ranges=tuple(
                    (begins.get((first, self._depth(region.index)), places[first]), ends[last])
                    for first, last in region.ranges
                ),
            )
            for region in self.program.regions
        ]
        kept_equations, kept_regions = remove_dead(equations, self.program.outputs, regions)
        return dataclasses.replace(
            self.program,
            tensors=tuple(self.tensors),
            equations=kept_equations,
            regions=kept_regions,
            fingerprint=hashlib.sha256(f"{self.program.fingerprint} {name}".encode()).hexdigest(),
        )

    def _depth(self, region: int) -> int:
        """Number of regions around an equation of a region."""
        return 0 if region < 0 else 1 + self._depth(self.program.regions[region].parent)


def _entries(region: Region, places: list[int], added: list[int]) -> tuple[tuple[int, ...], ...]:
    """Entries at their new places, and behind those of the first body the added ones."""
    bodies = [tuple(places[e] for e in body) for body in region.entries]
    return ((*bodies[0], *added), *bodies[1:])
