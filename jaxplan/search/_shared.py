"""Arrays that several steps have in common, such as parameters and caches: paired by path, structure and shape.

An array of one step is that of another where, in this order,

1. the person says so;
2. both have the same path, shape and dtype: `params/up` of two steps;
3. the path of one is the end of the other's: `params/up` of an evaluation is `state/params/up` of a training step;
4. an argument of parameters has the keys, shapes and dtypes of parameters under another name, and of these alone:
   `model` of an evaluation is `state/params`.

Results take part as well: the cache that a prefill returns is the one that a decode step takes. A batch is not shared:
some step must keep the array from call to call (`jaxplan.ir.StepGraph.stored`).
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxplan.core._paths import keys, nearest
from jaxplan.errors import ArgumentError
from jaxplan.ir import StepGraph

Keys = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """An argument leaf, or a result.

    Attributes:
      step: name of its step.
      is_output: a result; ``position`` is then among the results.
      keys: its path, of an argument the name first.
      aval: shape and dtype.
      role: of an argument ``parameter``, ``state``, ``data``, or ``carried`` (data for all that its step tells, but
        returned with its shape); else ``result``, or ``successor`` of an argument, which decides its layout.
    """

    step: str
    is_output: bool
    position: int
    keys: Keys
    aval: tuple[Any, ...]
    role: str

    @property
    def path(self) -> str:
        """Such as ``params/up``; of a result, ``result/1/up``."""
        return "/".join(("result", *self.keys) if self.is_output else self.keys)

    @property
    def is_kept(self) -> bool:
        """Whether its step keeps it from call to call."""
        return self.role in ("parameter", "state")


def are_kept(leaves: Iterable[Leaf]) -> bool:
    """Whether one array at these leaves stays from call to call: some step keeps it, or carries on another's result."""
    roles = {leaf.role for leaf in leaves}
    return bool(roles & {"parameter", "state"}) or {"carried", "result"} <= roles


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """One array that several steps have, in order of the steps."""

    leaves: tuple[Leaf, ...]

    def of(self, step: str) -> tuple[Leaf, ...]:
        """The leaves that a step has of it."""
        return tuple(leaf for leaf in self.leaves if leaf.step == step)


def leaves_of(name: str, graph: StepGraph) -> tuple[Leaf, ...]:
    """The arguments and results of a step."""
    program = graph.program
    names = program.argument_names
    found, carried = [], {pair.input for pair in program.pairs}
    for i, (path, t) in enumerate(zip(program.in_paths, program.inputs, strict=True)):
        first, *rest = keys(path)
        is_number = path[1:2].isdigit() and int(first) < len(names)
        role = "parameter" if t in graph.batch.parameters else "state" if t in graph.state else "data"
        role = "carried" if role == "data" and i in carried else role
        found.append((False, i, (names[int(first)] if is_number else first, *rest), t, role))
    for o, (path, t) in enumerate(zip(program.out_paths, program.outputs, strict=True)):
        found.append((True, o, keys(path), t, "successor" if o in program.aliases else "result"))
    tensors = program.tensors
    return tuple(
        Leaf(
            step=name,
            is_output=is_output,
            position=position,
            keys=of,
            aval=(tensors[t].shape, tensors[t].dtype),
            role=role,
        )
        for is_output, position, of, t, role in found
    )


def find_shared(graphs: Mapping[str, StepGraph], said: Mapping[str, str] | None = None) -> tuple[Shared, ...]:
    """The arrays that at least two steps have, in order of the first step's arguments.

    Args:
      said: pairs that the person names, ``{"eval/params": "train/state/ema"}``: a step and the path of a subtree.

    Raises:
      ArgumentError: no two steps have an array in common, or ``said`` names arrays that do not fit.
    """
    leaves = {name: leaves_of(name, graph) for name, graph in graphs.items()}
    pairing = _Pairing(leaves)
    for one, other in (said or {}).items():
        pairing.join_said(one, other)
    for a, b in itertools.combinations(leaves, 2):
        pairing.join_equal_paths(a, b)
    for a, b in itertools.permutations(leaves, 2):
        pairing.join_ends(a, b)
    for a, b in itertools.permutations(leaves, 2):
        pairing.join_subtrees(a, b)
    found = pairing.classes()
    if not found:
        raise ArgumentError(_nothing_shared(leaves))
    return found


class _Pairing:
    """Classes of leaves that are one array; no class has two arguments, or two results, of one step."""

    def __init__(self, leaves: Mapping[str, Sequence[Leaf]]) -> None:
        self.leaves = leaves
        self._class: dict[Leaf, list[Leaf]] = {leaf: [leaf] for of in leaves.values() for leaf in of}
        self._said = set[Leaf]()

    def classes(self) -> tuple[Shared, ...]:
        """Those of several steps."""
        order = {leaf: n for n, leaf in enumerate(self._class)}
        found: dict[Leaf, Shared] = {}
        for members in self._class.values():
            ordered = tuple(sorted(members, key=order.__getitem__))
            is_said = not self._said.isdisjoint(ordered)
            if len({leaf.step for leaf in ordered}) > 1 and (is_said or are_kept(ordered)):
                found[ordered[0]] = Shared(leaves=ordered)
        return tuple(found.values())

    def has(self, leaf: Leaf, step: str) -> bool:
        """Whether a leaf is known to be one of a step's."""
        return any(other.step == step for other in self._class[leaf])

    def may_join(self, a: Leaf, b: Leaf) -> bool:
        """Whether two leaves can be one array, as far as shapes and what was joined before say."""
        if a.aval != b.aval or a.step == b.step or self._class[a] is self._class[b]:
            return False
        together = (*self._class[a], *self._class[b])
        kinds = [(leaf.step, leaf.is_output) for leaf in together]
        is_said = not self._said.isdisjoint((a, b))
        return len(set(kinds)) == len(kinds) and (is_said or are_kept(together))

    def join(self, a: Leaf, b: Leaf) -> None:
        if self.may_join(a, b):
            joined = self._class[a] + self._class[b]
            for leaf in joined:
                self._class[leaf] = joined

    def open(self, step: str, other: str, *, outputs: bool) -> list[Leaf]:
        """The leaves of a step without one of another: arguments, and new results where ``outputs``."""
        kinds = (False, outputs)
        return [
            leaf
            for leaf in self.leaves[step]
            if leaf.is_output in kinds and leaf.role != "successor" and not self.has(leaf, other)
        ]

    def join_said(self, one: str, other: str) -> None:
        """Two subtrees that a person names are one."""
        below, below_other = self._subtree(one), self._subtree(other)
        missing = [path for path in below if path not in below_other or below[path].aval != below_other[path].aval]
        if missing or len(below) != len(below_other):
            raise ArgumentError(
                f"shared has {one!r}: {other!r}, and they differ"
                f"{f' at {chr(47).join(missing[0]) or one}' if missing else ''}.\n"
                f"  given:    {len(below)} and {len(below_other)} arrays\n"
                "  expected: subtrees with the same keys, shapes and dtypes\n"
                "  fix:      name the parts that are the same arrays"
            )
        self._said.update(below.values(), below_other.values())
        for path, leaf in below.items():
            self.join(leaf, below_other[path])

    def _subtree(self, where: str) -> dict[Keys, Leaf]:
        """The leaves at ``step/path``, by the rest of their paths."""
        step, *prefix = where.split("/") if isinstance(where, str) else [""]
        found = {}
        for leaf in self.leaves.get(step, ()):
            own = ("result", *leaf.keys) if leaf.is_output else leaf.keys
            if own[: len(prefix)] == tuple(prefix):
                found[own[len(prefix) :]] = leaf
        if not found or not prefix:
            known = [f"{name}/{leaf.path}" for name, of in self.leaves.items() for leaf in of]
            raise ArgumentError(
                f"shared names {where!r}, which is no subtree of a step.\n"
                f"  expected: a step and a path; nearest: {', '.join(nearest(str(where), known) or known[:3])}"
            )
        return found

    def join_equal_paths(self, a: str, b: str) -> None:
        """Arguments of the same path are one array."""
        known = {leaf.keys: leaf for leaf in self.open(b, a, outputs=False)}
        for leaf in self.open(a, b, outputs=False):
            if leaf.keys in known:
                self.join(leaf, known[leaf.keys])

    def join_ends(self, a: str, b: str) -> None:
        """An argument whose path is the end of exactly one of the other step's is that."""
        by_end: dict[Keys, list[tuple[Leaf, ...]]] = defaultdict(list)
        for leaf in self.open(b, a, outputs=False):
            for start in range(1, len(leaf.keys)):
                by_end[leaf.keys[start:]].append((leaf,))
        for leaf in self.open(a, b, outputs=False):
            fitting = [theirs for theirs in by_end[leaf.keys] if self.may_join(leaf, *theirs)]
            for other in _one([leaf], fitting) or ():
                self.join(leaf, other)

    def join_subtrees(self, a: str, b: str) -> None:
        """The largest subtrees first: one of the same structure, if the other step has one alone, is the same."""
        places: dict[Any, list[tuple[Keys, tuple[Leaf, ...]]]] = defaultdict(list)
        for prefix, of in _subtrees(self.open(b, a, outputs=True)):
            places[_signature(of)].append((prefix, tuple(leaf for _, leaf in of)))
        trees = _subtrees(self.open(a, b, outputs=False))
        arguments = Counter(_signature(of) for prefix, of in trees if len(prefix) == 1)
        for prefix, of in trees:
            mine, signature = tuple(leaf for _, leaf in of), _signature(of)
            fitting = [
                theirs
                for place, theirs in places[signature]
                if (
                    _may_be_result(mine, prefix, place, arguments[signature])
                    if theirs[0].is_output
                    else _may_be_renamed(mine, theirs, prefix)
                )
                and all(map(self.may_join, mine, theirs))
            ]
            chosen = _one(mine, fitting)
            for leaf, other in zip(mine, chosen, strict=True) if chosen else ():
                self.join(leaf, other)


def _may_be_renamed(mine: Sequence[Leaf], theirs: Sequence[Leaf], prefix: Keys) -> bool:
    """Whether an argument of several arrays may be a subtree of other arguments: parameters alone have other names.

    Slots of two optimizers are as much alike as one tree under two names.
    """
    are_parameters = all(leaf.role == "parameter" for leaf in (*mine, *theirs))
    return len(mine) > 1 and len(prefix) == 1 and are_parameters


def _may_be_result(mine: Sequence[Leaf], prefix: Keys, place: Keys, num_arguments: int) -> bool:
    """Whether state may be a result of the other step: a whole argument with no other of its kind, or by its key."""
    is_alone = len(prefix) == 1 and num_arguments == 1
    is_named = len(prefix) > 1 and place[-1:] == prefix[-1:]
    return all(leaf.role in ("state", "carried") for leaf in mine) and (is_alone or is_named)


def _one(mine: Sequence[Leaf], fitting: Sequence[tuple[Leaf, ...]]) -> tuple[Leaf, ...] | None:
    """The only subtree, or the only one of the same roles; None where several fit."""
    alike = [theirs for theirs in fitting if [leaf.role for leaf in theirs] == [leaf.role for leaf in mine]]
    for found in (alike, fitting):
        if found:
            return found[0] if len(found) == 1 else None
    return None


def _subtrees(leaves: Iterable[Leaf]) -> list[tuple[Keys, list[tuple[Keys, Leaf]]]]:
    """(prefix, (rest of the path, leaf) of each leaf below it), those of most leaves first, then short prefixes."""
    found: dict[tuple[bool, Keys], list[tuple[Keys, Leaf]]] = defaultdict(list)
    for leaf in leaves:
        for end in range(not leaf.is_output, len(leaf.keys) + 1):
            found[leaf.is_output, leaf.keys[:end]].append((leaf.keys[end:], leaf))
    trees = [(prefix, sorted(of, key=lambda item: item[0])) for (_, prefix), of in found.items()]
    return sorted(trees, key=lambda tree: (-len(tree[1]), len(tree[0])))


def _signature(of: Sequence[tuple[Keys, Leaf]]) -> Any:
    """Keys below the prefix, shapes and dtypes."""
    return tuple((rest, leaf.aval) for rest, leaf in of)


def _nothing_shared(leaves: Mapping[str, Sequence[Leaf]]) -> str:
    given = "; ".join(
        f"{name} has {', '.join(dict.fromkeys(leaf.keys[0] for leaf in of if not leaf.is_output)) or 'no arguments'}"
        for name, of in leaves.items()
    )
    return (
        "the steps have no array in common that one of them keeps from call to call.\n"
        f"  given:        {given}\n"
        "  expected:     parameters, caches or statistics of the same shape, dtype and path in two steps\n"
        "  likely cause: the same arrays have other names and another structure in the other step\n"
        '  fix:          shared={"eval/weights": "train/state/params"} names them'
    )
