"""A table of logical axis names that reproduces a plan, for the sharding metadata of Flax.

Flax names the dimensions of parameters (``nn.with_logical_partitioning``, ``nnx.with_partitioning``), and a table maps
each name to axes of the mesh: https://flax.readthedocs.io/en/latest/guides/parallel_training/flax_on_pjit.html . One
table serves all arrays, so it says less than a plan does.
"""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import PartitionSpec

from jaxplan.core._paths import keys, readable_path
from jaxplan.errors import ArgumentError

Axes = tuple[str, ...]
"""Mesh axes of one dimension, major to minor."""
_VALUE = ("value", "raw_value")
_NO_NAMES_MSG = (
    "there are no logical axis names in {where}.\n"
    "  expected: a tree of parameters with sharding metadata (nn.with_logical_partitioning, nnx.with_partitioning), or "
    "their specs, nn.get_partition_spec(variables) or nnx.get_partition_spec(state)\n"
    "  fix: plan.logical_axis_rules(nn.get_partition_spec(variables))"
)
_NO_MATCH_MSG = (
    "the parameter {path} with logical axes {names} is no argument of the step.\n"
    "  expected: a path that ends as one of {known}\n"
    "  likely cause: the names are of another model"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenRule:
    """An array that the table lays out otherwise than the plan.

    Attributes:
      path: of the argument.
      names: logical names of its dimensions; None where it has none.
      wanted: the plan's spec.
      given: the spec that the table gives.
    """

    path: str
    names: tuple[str | None, ...]
    wanted: PartitionSpec
    given: PartitionSpec

    def __str__(self) -> str:
        return f"{self.path} {self.names}: the plan has {self.wanted}, the table gives {self.given}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogicalAxisRules:
    """A table for ``flax.linen.logical_axis_rules`` or ``flax.nnx.logical_axis_rules``.

    Attributes:
      rules: (logical name, mesh axes or None), in the order in which Flax tries them.
      broken: arrays that they lay out otherwise than the plan, the largest first.
    """

    rules: tuple[tuple[str, str | Axes | None], ...]
    broken: tuple[BrokenRule, ...]

    def __str__(self) -> str:
        lines = [f"{name}: {axes}" for name, axes in self.rules]
        return "\n".join([*lines, *(f"broken: {rule}" for rule in self.broken)])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Named:
    path: str
    names: tuple[str | None, ...]
    wanted: tuple[Axes, ...]
    size: int


def logical_axis_rules(
    logical: Any, paths: Sequence[str], roles: Sequence[str], specs: Sequence[PartitionSpec], shapes: Sequence[Any]
) -> LogicalAxisRules:
    """The table that reproduces the specs of most bytes.

    Args:
      logical: see `logical_specs`.
      paths, roles, specs, shapes: of the arguments of the step.

    Raises:
      ArgumentError: there are no names, or they are of parameters that the step does not have.
    """
    named = _named(logical_specs(logical), paths, roles, specs, shapes)
    table = _best_table(named)
    broken = [
        BrokenRule(path=n.path, names=n.names, wanted=_spec(n.wanted), given=_spec(given))
        for n in sorted(named, key=lambda n: (-n.size, n.path))
        if (given := laid_out(n.names, table)) != n.wanted
    ]
    rules = tuple((name, _entry(axes)) for name, axes in table)
    return LogicalAxisRules(rules=rules, broken=tuple(broken))


def logical_specs(tree: Any) -> dict[str, PartitionSpec]:
    """Specs of logical names by key path, of a tree of specs or of parameters with sharding metadata.

    Raises:
      ArgumentError: it has neither.
    """
    found = _specs_in(tree)
    if not any(map(tuple, found.values())):
        raise ArgumentError(_NO_NAMES_MSG.format(where=f"a {type(tree).__name__}"))
    return found


def _specs_in(tree: Any) -> dict[str, PartitionSpec]:
    if "flax" in sys.modules and not any(isinstance(leaf, PartitionSpec) for leaf in _leaves(tree)):
        linen, nnx = importlib.import_module("flax.linen"), importlib.import_module("flax.nnx")
        is_linen = any(isinstance(x, linen.Partitioned) for x in _leaves(tree, linen.Partitioned))
        if isinstance(tree, nnx.Module):
            tree = nnx.state(tree)
        tree = linen.get_partition_spec(tree) if is_linen else nnx.get_partition_spec(tree)
    items, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: isinstance(x, PartitionSpec))
    return {jax.tree_util.keystr(path): spec for path, spec in items if isinstance(spec, PartitionSpec)}


def _leaves(tree: Any, kind: Any = PartitionSpec) -> list[Any]:
    return jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, kind))


def _named(
    logical: Mapping[str, PartitionSpec], paths: Any, roles: Any, specs: Any, shapes: Any
) -> list[_Named]:
    known = [_parts(path) for path in paths]
    found = []
    for path, spec in logical.items():
        parts, rank_of = _parts(path), [len(shape) for shape in shapes]
        common = [_common_end(parts, other) if len(spec) <= rank_of[i] else 0 for i, other in enumerate(known)]
        most = max(common, default=0)
        alike = [i for i, length in enumerate(common) if length == most]
        if not most:
            text = ", ".join(readable_path(p) for p in paths[:3])
            raise ArgumentError(_NO_MATCH_MSG.format(path=path, names=tuple(spec), known=text))
        for i in [i for i in alike if roles[i] == "parameter"] or alike:
            names = (*spec, *(None,) * (rank_of[i] - len(spec)))
            wanted = tuple(map(_axes, (*specs[i], *(None,) * (rank_of[i] - len(specs[i])))))
            size = math.prod(shapes[i])
            found.append(_Named(path=readable_path(paths[i]), names=names, wanted=wanted, size=size))
    return found


def _parts(path: str) -> tuple[str, ...]:
    parts = keys(path)
    return parts[:-1] if parts and parts[-1] in _VALUE else parts


def _common_end(a: Sequence[str], b: Sequence[str]) -> int:
    length = 0
    while length < min(len(a), len(b)) and a[-1 - length] == b[-1 - length]:
        length += 1
    return length


_Table = tuple[tuple[str, Axes], ...]


def _best_table(named: Sequence[_Named]) -> _Table:
    """Each name as most bytes want it; then names are changed one at a time, and moved, as long as that gains."""
    votes: dict[str, dict[Axes, int]] = {}
    for n in named:
        for name, axes in zip(n.names, n.wanted, strict=True):
            if isinstance(name, str):
                of = votes.setdefault(name, {})
                of[axes] = of.get(axes, 0) + n.size
    table: _Table = tuple((name, max(of, key=lambda axes: (of[axes], axes))) for name, of in sorted(votes.items()))
    gained = True
    while gained:
        best = max(_neighbours(table, votes), key=lambda t: _reproduced(t, named), default=table)
        gained = _reproduced(best, named) > _reproduced(table, named)
        table = best if gained else table
    return table


def _neighbours(table: _Table, votes: Mapping[str, Mapping[Axes, int]]) -> list[_Table]:
    found: list[_Table] = []
    for i, (name, _) in enumerate(table):
        rest = table[:i] + table[i + 1 :]
        for axes in votes[name]:
            found += [(*rest[:j], (name, axes), *rest[j:]) for j in sorted({i, 0, len(rest)})]
    return found


def _reproduced(table: _Table, named: Sequence[_Named]) -> int:
    return sum(n.size for n in named if laid_out(n.names, table) == n.wanted)


def laid_out(names: Sequence[str | None], table: _Table) -> tuple[Axes, ...]:
    """The axes of each dimension by a table, as `flax.linen.logical_to_mesh_axes` has them.

    A rule is left out where one of its axes splits another dimension already.

    Example:
      >>> laid_out(("embed", "mlp"), (("mlp", ("gpu0",)), ("embed", ("gpu0",))))
      ((), ('gpu0',))
    """
    result: list[Axes] = [()] * len(names)
    used: set[str] = set()
    for name, axes in table:
        if name in names and used.isdisjoint(axes):
            result[names.index(name)] = axes
            used |= set(axes)
    return tuple(result)


def _axes(entry: Any) -> Axes:
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)


def _entry(axes: Axes) -> str | Axes | None:
    return None if not axes else axes[0] if len(axes) == 1 else axes


def _spec(dims: Sequence[Axes]) -> PartitionSpec:
    return PartitionSpec(*map(_entry, dims))
