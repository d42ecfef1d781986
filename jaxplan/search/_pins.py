"""Pins of a person, resolved to conditions on the configurations of a step's groups (`jaxplan.ir.ClassLimit`)."""

from __future__ import annotations

import fnmatch
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from jax.sharding import PartitionSpec

from jaxplan.core import _compat
from jaxplan.core._paths import matches, nearest
from jaxplan.errors import ArgumentError, InfeasibleError
from jaxplan.frontend._pins import Forbid, Pin, Split
from jaxplan.ir import (
    STORED_KINDS,
    UNGROUPED,
    ClassLimit,
    Configuration,
    StepGraph,
    allowed_by,
    each_alone,
    enumerate_restricted,
    merged_dimensions,
)
from jaxplan.mesh import AxesNames, Topology, axes_of, named_axes
from jaxplan.plans._pinned import Pinned

Limits = tuple[tuple[ClassLimit, ...], ...]
"""Per group of a step, the conditions on its configurations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A tensor that a pin is about, and how people call it."""

    tensor: int
    path: str


def resolve_pins(
    pins: Sequence[Pin], graph: StepGraph, topology: Topology, axes: AxesNames | None = None
) -> Limits:
    """Conditions for every group.

    Args:
      axes: declared names of axes, see `jaxplan.mesh.named_axes`.

    Raises:
      ArgumentError: a pin that matches nothing, names an unknown axis, or does not fit the rank of an array.
      InfeasibleError: pins that no configuration meets; names those that conflict.
    """
    resolver = _Resolver(graph, topology, named_axes(axes, topology))
    for pin in pins:
        resolver.add(pin)
    limits = tuple(tuple(of) for of in resolver.limits)
    for v, of in enumerate(limits):
        if of and not configurations_within(graph, topology, v, of):
            raise _conflict(graph, topology, v, of)
    return limits


def is_about(pin: Pin, graph: StepGraph, topology: Topology, axes: AxesNames | None = None) -> bool:
    """Whether a pin is about anything in a step: pins of several steps need not be about each of them.

    Raises:
      ArgumentError: it is, and does not fit.
    """
    resolver = _Resolver(graph, topology, named_axes(axes, topology))
    try:
        resolver.add(pin)
    except UnmatchedPinError:
        return False
    return True


class UnmatchedPinError(ArgumentError):
    """A pin that is about nothing in a step."""


def pinned_arguments(pins: Sequence[Pin], limits: Limits, graph: StepGraph) -> tuple[Pinned, ...]:
    """The pins as a plan keeps them, with the paths of the arguments whose groups each limits."""
    program = graph.program
    groups = [graph.grouping.tensor_group[t] for t in program.inputs]
    sources = [{limit.source for limit in limits[v]} if v != UNGROUPED else set() for v in groups]
    return tuple(
        Pinned(
            text=str(pin),
            paths=tuple(path for path, of in zip(program.in_paths, sources, strict=True) if _is_of(pin, of)),
        )
        for pin in pins
    )


def _is_of(pin: Pin, sources: Iterable[str]) -> bool:
    return any(source == str(pin) or source.startswith(f"{pin} (") for source in sources)


def meets(limits: Limits, configurations: Sequence[Configuration], topology: Topology) -> bool:
    """Whether a configuration for each group meets all conditions."""
    sizes = [axis.size for axis in topology.axes]
    return all(allowed_by(of, config, sizes) for of, config in zip(limits, configurations, strict=True))


def configurations_within(
    graph: StepGraph, topology: Topology, v: int, limits: Sequence[ClassLimit]
) -> tuple[Configuration, ...]:
    sizes, levels = [axis.size for axis in topology.axes], [axis.level for axis in topology.axes]
    return enumerate_restricted(graph.spaces[v].classes, sizes, levels, limits, graph.named.front)


@dataclass(slots=True, eq=False)
class _Resolver:
    """Collects the conditions of one pin after another."""

    graph: StepGraph
    topology: Topology
    axes: Mapping[str, tuple[int, ...]]
    limits: list[list[ClassLimit]] = field(init=False)
    leaves: list[_Place] = field(init=False)
    hints: list[_Place] = field(init=False)

    @property
    def merged(self) -> dict[tuple[int, int], tuple[tuple[int, int], ...]]:
        """Parts of the dimensions that merge several (`jaxplan.ir.merged_dimensions`)."""
        graph = self.graph
        return graph.derive("merged", None, lambda: merged_dimensions(graph.program, graph.rules, graph.named))

    def __post_init__(self) -> None:
        program = self.graph.program
        self.limits = [[] for _ in self.graph.spaces]
        self.leaves = [
            _Place(tensor=t, path=path) for path, t in zip(program.readable_in_paths, program.inputs)
        ]
        self.hints = [
            _Place(tensor=eqn.results[0], path=eqn.params["name"])
            for eqn in program.equations
            if eqn.name == "name" and isinstance(eqn.params.get("name"), str)
        ]

    def add(self, pin: Pin) -> None:
        if not pin.pattern:
            return _FAMILIES[pin.wish](self, str(pin))
        leaves = [place for place in self.leaves if matches(place.path, pin.pattern)]
        hints = [place for place in self.hints if fnmatch.fnmatchcase(place.path, pin.pattern)]
        dimensions = self._called(pin.pattern)
        if isinstance(pin.wish, Split):
            if dimensions:
                return self._split_dimensions(pin, pin.wish, dimensions)
            raise self._unmatched(pin, "the name of a dimension", self._names(), _DIMENSION_FIX)
        places = [*leaves, *hints]
        if places:
            for place in places:
                self._pin_tensor(pin, place)
        elif dimensions and (isinstance(pin.wish, Forbid) or pin.wish == "whole"):
            self._forbid_dimensions(pin, dimensions)
        elif dimensions:
            raise ArgumentError(
                f"pin {pin} is for arrays, and {pin.pattern!r} is a dimension.\n"
                "  expected: jaxplan.Split(parts), jaxplan.Forbid(*axes) or 'whole'\n"
                f"  fix: {pin.pattern!r}: jaxplan.Split(8), or the path of an array (docs/steering.md)"
            )
        else:
            known = [place.path for place in (*self.leaves, *self.hints)]
            if isinstance(pin.wish, Forbid) or pin.wish == "whole":
                known += self._names()
            expected = "a path of an argument, the name of a hint or of a dimension"
            raise self._unmatched(pin, expected, known, _PATH_FIX)

    def _called(self, pattern: str) -> tuple[int, ...]:
        """The named dimensions of a name, or of a dimension of arguments such as ``block_*/up.1``."""
        found = set(self.graph.named.called(pattern))
        path, _, d = pattern.rpartition(".")
        if path and d.isdecimal():
            of = self.graph.named.of
            nodes = [(place.tensor, int(d)) for place in self.leaves if matches(place.path, path)]
            found |= {of[node] for node in nodes if node in of}
        return tuple(sorted(found))

    def _names(self) -> list[str]:
        named = self.graph.named
        return [*(of.name for of in named.dimensions), *named.names_at.values()]

    def _unmatched(self, pin: Pin, expected: str, known: Iterable[str], fix: str) -> UnmatchedPinError:
        known = list(dict.fromkeys(known))
        close = nearest(pin.pattern, known) or known[:5]
        return UnmatchedPinError(
            f"pin {pin.pattern!r} matches nothing in the step.\n"
            f"  expected: {expected}; nearest: {', '.join(close) or 'none'}\n"
            f"  fix: {fix} (docs/steering.md)"
        )

    def _limit(self, v: int, classes: Iterable[int], source: str, **condition) -> None:
        found = frozenset(classes)
        if found:
            self.limits[v].append(ClassLimit(classes=found, source=source, **condition))

    def _pin_tensor(self, pin: Pin, place: _Place) -> None:
        v = self.graph.grouping.tensor_group[place.tensor]
        shape = self.graph.program.tensors[place.tensor].shape
        dims = ((),) * len(shape)
        if v != UNGROUPED:
            dims = self.graph.spaces[v].tensor_dims.get(place.tensor, dims)
        every, source = list(itertools.chain(*dims)), f"{pin} ({place.path})"
        wish = pin.wish
        if isinstance(wish, PartitionSpec):
            self._pin_spec(pin, place, v, dims)
        elif wish == "whole" or (isinstance(wish, Forbid) and not wish.axes):
            self._limit(v, every, source, axes=())
        elif isinstance(wish, Forbid):
            self._limit(v, every, source, among=self._others(wish, str(pin)))
        elif not every:
            raise ArgumentError(
                f"pin {pin} wants {place.path} split, and none of its dimensions {shape} can be: they have size 1, or "
                "an operator that holds them needs them whole"
            )
        else:
            self._limit(v, every, source, is_split=True)

    def _pin_spec(self, pin: Pin, place: _Place, v: int, dims: Sequence[Sequence[int]]) -> None:
        shape = self.graph.program.tensors[place.tensor].shape
        spec = pin.wish
        if len(spec) > len(shape):
            raise ArgumentError(
                f"pin {pin} has {len(spec)} entries, and {place.path} has {len(shape)} dimensions, {shape}"
            )
        named = [entry for entry in spec if entry is not None and entry is not PartitionSpec.UNCONSTRAINED]
        used = [name for entry in named for name in ((entry,) if isinstance(entry, str) else entry)]
        if len(set(axes_of(used, self.axes, f"pin {pin}"))) < len(axes_of(used, self.axes, f"pin {pin}")):
            raise ArgumentError(f"pin {pin} splits two dimensions of {place.path} by the same devices")
        for d, entry in enumerate((*spec, *[None] * (len(shape) - len(spec)))):
            if entry is PartitionSpec.UNCONSTRAINED:
                continue
            names = () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)
            axes = axes_of(names, self.axes, f"pin {pin}")
            parts = math.prod(self.topology.axes[a].size for a in axes)
            if axes and (not dims[d] or shape[d] % parts):
                why = f"{shape[d]} does not divide by {parts}" if shape[d] % parts else "an operator needs it whole"
                raise ArgumentError(
                    f"pin {pin} splits dimension {d} of {place.path}, of shape {shape}, into {parts} parts: {why}"
                )
            self._limit(v, dims[d], f"{pin} ({place.path})", axes=axes)

    def _others(self, wish: Forbid, given: str) -> frozenset[int]:
        """The atomic axes that are not forbidden."""
        names = [name for name in wish.axes if name != "node" or name in self.axes]  # of one node, none is across nodes
        forbidden = axes_of(names, self.axes, f"pin {given}")
        return frozenset(range(len(self.topology.axes))) - frozenset(forbidden)

    def _split_dimensions(self, pin: Pin, wish: Split, dimensions: Sequence[int]) -> None:
        inside = None if wish.within is None else self._inside(wish.within, pin)
        found = False
        for v in self._computing():
            for k in dimensions:
                classes = [c for c, of in enumerate(self.graph.spaces[v].classes) if of.named_dimension == k]
                found = found or bool(classes)
                self._limit(v, classes, str(pin), parts=wish.parts)
                if inside is not None:
                    self._limit(v, classes, str(pin), among=inside)
        if not found:
            sizes = ", ".join(str(self.graph.named.dimensions[k].size) for k in dimensions)
            raise ArgumentError(
                f"pin {pin}: no operator that computes with this dimension (size {sizes}) can be split along it"
            )

    def _inside(self, level: str, pin: Pin) -> frozenset[int]:
        """The axes inside of one unit of a level: inside of a node, those of its devices."""
        numbers = {of.name: n for n, of in enumerate(self.topology.levels)}
        if level not in ("node", "device", *numbers):
            raise ArgumentError(
                f"pin {pin}: {self.topology.name} has no level {level!r}; expected one of {', '.join(numbers)}"
            )
        outermost = numbers.get(level, -1)
        return frozenset(a for a, axis in enumerate(self.topology.axes) if axis.level > outermost)

    def _forbid_dimensions(self, pin: Pin, dimensions: Sequence[int]) -> None:
        among = frozenset[int]()
        if isinstance(pin.wish, Forbid) and pin.wish.axes:
            among = self._others(pin.wish, str(pin))
        for v, space in enumerate(self.graph.spaces):
            classes = [c for c, of in enumerate(space.classes) if of.named_dimension in dimensions]
            self._limit(v, classes, str(pin), among=among)
            for c, span in self._spans(v, dimensions):
                if c not in classes:
                    self._limit(v, [c], str(pin), among=among, span=span)

    def _spans(self, v: int, dimensions: Collection[int]) -> dict[tuple[int, tuple[int, int]], None]:
        """Classes that merge one of the dimensions behind another, and between how many parts they split it."""
        found: dict[tuple[int, tuple[int, int]], None] = {}
        merged = self.merged
        for t, dims in self.graph.spaces[v].tensor_dims.items():
            for d, classes in enumerate(dims):
                before = 1
                for k, size in merged.get((t, d), ()):
                    if k in dimensions:
                        found.update(dict.fromkeys((c, (before, before * size)) for c in classes))
                    before *= size
        return found

    def _computing(self) -> list[int]:
        """Groups that compute with examples or contract: not those that only keep, cast or update parameters."""
        batch, graph = self.graph.named.batch, self.graph
        return [
            group.index
            for group in graph.grouping.groups
            if group.kind not in STORED_KINDS
            and (
                group.kind == "contraction"
                or any(of.named_dimension in batch for of in graph.spaces[group.index].classes)
            )
        ]

    def _others_than_batch(self, v: int) -> list[int]:
        """Classes of a group that are dimensions other than the batch."""
        classes = self.graph.spaces[v].classes
        return [c for c, of in enumerate(classes) if of.sizes and of.named_dimension not in self.graph.named.batch]

    def only_batch(self, source: str) -> None:
        """Of computed values only the batch is split."""
        for v in self._computing():
            self._limit(v, self._others_than_batch(v), source, axes=())

    def stored_whole(self, source: str) -> None:
        """Everything that is stored is whole."""
        for group in self.graph.grouping.groups:
            if group.kind in STORED_KINDS:
                self._limit(group.index, range(len(self.graph.spaces[group.index].classes)), source, axes=())

    def tensor_inside(self, source: str) -> None:
        """No dimension but the batch is split across nodes."""
        outermost = max((n for n, level in enumerate(self.topology.levels) if level.name == "node"), default=-1)
        inside = frozenset(a for a, axis in enumerate(self.topology.axes) if axis.level > outermost)
        for v in self._computing():
            self._limit(v, self._others_than_batch(v), source, among=inside)


def _data(resolver: _Resolver, source: str) -> None:
    resolver.only_batch(source)
    resolver.stored_whole(source)


_PATH_FIX = "a pattern such as 'block_*/kernel'; leading parts of a path may be left out"
_DIMENSION_FIX = "a name that plan.explain() prints, or a dimension of an argument such as 'block_*/up.1'"

_FAMILIES: Mapping[str, Callable[[_Resolver, str], None]] = {
    "data": _data,
    "fsdp": _Resolver.only_batch,
    "tensor inside a node": _Resolver.tensor_inside,
}


def _conflict(graph: StepGraph, topology: Topology, v: int, limits: Sequence[ClassLimit]) -> InfeasibleError:
    """The error for a group that no configuration is left for, with the fewest pins that rule all of them out."""
    for source, alone in each_alone(limits):
        if not configurations_within(graph, topology, v, alone):
            where, sizes = _where(graph, v, alone), _sizes(graph, v, alone)
            return InfeasibleError(_ALONE_MSG.format(pin=source, where=where, sizes=sizes))
    kept = dict(each_alone(limits))
    for source in list(kept):
        rest = [limit for other, of in kept.items() if other != source for limit in of]
        if not configurations_within(graph, topology, v, rest):
            del kept[source]
    pins = "\n".join(f"    {source}" for source in kept)
    where = _where(graph, v, limits)
    return InfeasibleError(_CONFLICT_MSG.format(pins=pins, where=where, devices=topology.num_devices))


_ALONE_MSG = (
    "no plan meets the pin {pin}: {where} cannot be split so.\n"
    "  likely cause: sizes that do not divide ({sizes}), or more parts than there are devices\n"
    "  fix: another number of parts, or padding of that dimension"
)
_CONFLICT_MSG = (
    "no plan meets these pins together:\n{pins}\n"
    "  where: {where}, on {devices} devices\n"
    "  likely cause: two of them ask for the same devices, or for more parts than there are devices\n"
    "  fix: drop or relax one of them"
)


def _where(graph: StepGraph, v: int, limits: Sequence[ClassLimit]) -> str:
    """A group as people know it: an argument, or the line of its first operator with a limited dimension."""
    group = graph.grouping.groups[v]
    if group.inputs and not group.equations:
        position = graph.program.inputs.index(group.inputs[0])
        return f"the argument {graph.program.readable_in_paths[position]}"
    limited, dims = {c for limit in limits for c in limit.classes}, graph.spaces[v].tensor_dims
    concerned = (
        e for e in group.equations
        if any(limited.intersection(of) for t in graph.program.equations[e].results for of in dims.get(t, ()))
    )  # fmt: skip
    eqn = graph.program.equations[next(concerned, group.equations[0])]
    line = _compat.eqn_source_line(eqn.origin)
    return f"the operator {eqn.name}" + (f" at {line}" if line else "")


def _sizes(graph: StepGraph, v: int, limits: Sequence[ClassLimit]) -> str:
    sizes: dict[int, None] = defaultdict(None)
    for limit in limits:
        for c in limit.classes:
            sizes.update(dict.fromkeys(graph.spaces[v].classes[c].sizes))
    return ", ".join(map(str, sizes))
