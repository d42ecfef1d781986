"""Two plans of one step: their differences, and where the time and the memory went."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from jaxplan.core._units import format_bytes, format_seconds
from jaxplan.errors import ArgumentError, PlanMismatchError
from jaxplan.plans._plan_data import PlanData
from jaxplan.plans._priced import Edge, priced_plan
from jaxplan.plans._rows import LeafRow, collective_rows, fold_numbers, group_split, leaf_rows
from jaxplan.plans._why import signed_bytes, signed_seconds

_LEAST_SECONDS = 1e-9
"""Collectives that differ by less are left out of the text: sums of scalars that the compiler combines with others."""
_MOST_ROWS = 16
_ARGUMENTS = ("in_paths", "in_avals", "out_paths")
_FORMS = ("microbatches", "recomputed_loops", "sort_blocks", "sequences")
"""Ways to run a step that are programs of their own."""
_OTHER_PROGRAM_MSG = (
    "the two plans are of different programs: {one} and {other}.\n"
    "  expected: two plans of one step on the same shapes\n"
    "  likely cause: the step or its arguments changed between the two\n"
    "  fix: plan again with jaxplan.plan"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Something that is ``before`` in one plan and ``after`` in the other, for ``count`` things of one name."""

    what: str
    count: int
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """Seconds, or bytes, in one plan and the other."""

    what: str
    before: float
    after: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """From one plan to another.

    Attributes:
      before, after: the summaries.
      seconds: compute, communication, hidden, the link to the host, and their total.
      num_bytes: parts of the peak, and the total.
      collectives: seconds by kind and devices.
      leaves: arguments that are laid out otherwise, layers folded.
      operators: groups of operators that are split otherwise; empty where the two run in other forms (micro-batches,
        blocks recomputed), or the program is not known.
      edges: seconds of each transfer that is in one of them alone, the longest first.
      compares_operators: whether the operators of both could be compared.
    """

    before: str
    after: str
    seconds: tuple[Amount, ...]
    num_bytes: tuple[Amount, ...]
    collectives: tuple[Amount, ...]
    leaves: tuple[Change, ...]
    operators: tuple[Change, ...]
    edges: tuple[Amount, ...]
    compares_operators: bool

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        lines = [f"from  {self.before}", f"to    {self.after}"]
        lines += ["time", *_amounts(self.seconds, format_seconds, signed_seconds)]
        lines += ["memory", *_amounts(self.num_bytes, format_bytes, lambda size: signed_bytes(int(size)))]
        for title, amounts in (("collectives", self.collectives), ("transfers", self.edges)):
            noticeable = [of for of in amounts if abs(of.after - of.before) >= _LEAST_SECONDS]
            if noticeable:
                lines += [title, *_amounts(noticeable[:_MOST_ROWS], format_seconds, signed_seconds)]
        for title, changes in (("arguments", self.leaves), ("operators", self.operators)):
            if changes:
                lines += [f"{title} that are split otherwise", *_changes(changes)]
        if not self.leaves and not self.operators:
            lines.append("the same layouts" if self.compares_operators else "arguments have the same layouts")
        return "\n".join(lines)


def diff(plan: PlanData, other: PlanData) -> Difference:
    """The differences from ``plan`` to ``other``.

    Raises:
      ArgumentError: ``other`` is no plan.
      PlanMismatchError: the plans are of different programs.
    """
    if not hasattr(other, "input_shardings"):
        raise ArgumentError(f"diff got a {type(other).__name__}; expected another plan of the same step")
    if not _are_of_one_step(plan, other):
        raise PlanMismatchError(
            _OTHER_PROGRAM_MSG.format(one=plan.fingerprint[:12], other=other.fingerprint[:12])
        )
    return Difference(
        before=f"{plan.name} on {plan.topology.name}: {plan.summary}",
        after=f"{other.name} on {other.topology.name}: {other.summary}",
        seconds=_seconds(plan, other),
        num_bytes=_both(
            {**plan.memory_parts, **_on_host(plan), "peak": plan.memory_bytes},
            {**other.memory_parts, **_on_host(other), "peak": other.memory_bytes},
        ),
        collectives=_both(*[_by_collective(p) for p in (plan, other)]),
        leaves=_changed_leaves(leaf_rows(plan), leaf_rows(other)),
        operators=_changed_operators(plan, other),
        edges=_changed_edges(plan, other),
        compares_operators=_run_alike(plan, other),
    )


def _are_of_one_step(plan: PlanData, other: PlanData) -> bool:
    """Whether the programs are the same, or both are forms of a step with these arguments and results."""
    if plan.fingerprint == other.fingerprint:
        return True
    places, forms = (
        [tuple(getattr(p, name) for name in names) for p in (plan, other)] for names in (_ARGUMENTS, _FORMS)
    )
    return places[0] == places[1] and forms[0] != forms[1]


def _run_alike(plan: PlanData, other: PlanData) -> bool:
    """Whether the two have the same groups of operators, and they are known."""
    is_known = plan.graph is not None and other.graph is not None
    one, two = ((p.fingerprint, p.remat, p.topology.name) for p in (plan, other))
    return is_known and one == two


def _on_host(plan: PlanData) -> dict[str, int]:
    return {"on the host": plan.host_bytes} if plan.host_bytes else {}


def _seconds(plan: PlanData, other: PlanData) -> tuple[Amount, ...]:
    rows = [
        Amount(what=what, before=getattr(plan, name), after=getattr(other, name))
        for what, name in (
            ("compute", "compute_seconds"),
            ("communication", "communication_seconds"),
            ("hidden", "hidden_seconds"),
            ("link to the host", "host_seconds"),
            ("step", "time_seconds"),
        )
    ]
    return tuple(row for row in rows if row.before or row.after)


def _both(before: dict[str, float], after: dict[str, float]) -> tuple[Amount, ...]:
    """Amounts of two tables by name, equal ones left out; bytes the largest first, their peak last."""
    names = list(dict.fromkeys([*before, *after]))
    if "peak" in names:
        largest = {name: max(before.get(name, 0), after.get(name, 0)) for name in names}
        names = [*sorted((name for name in names if name != "peak"), key=lambda name: -largest[name]), "peak"]
    rows = [Amount(what=name, before=before.get(name, 0), after=after.get(name, 0)) for name in names]
    return tuple(row for row in rows if row.before != row.after or row.what == "peak")


def _by_collective(plan: PlanData) -> dict[str, float]:
    return {f"{row.kind} over {row.num_devices} ({' '.join(row.axes)})": row.seconds for row in collective_rows(plan)}


def _changed_leaves(before: Sequence[LeafRow], after: Sequence[LeafRow]) -> tuple[Change, ...]:
    """Leaves by position: the two plans may have been read with and without the step, which names the paths."""
    pairs = (
        (one if "/" in one.path and not one.path[0].isdigit() else two, *_told_apart(one, two))
        for one, two in zip(before, after, strict=True)
        if (one.spec, one.split) != (two.spec, two.split)
    )
    return _folded((fold_numbers(leaf.path), old, new) for leaf, old, new in pairs)


def _told_apart(one: LeafRow, two: LeafRow) -> tuple[str, str]:
    """How an array is split in two plans: in words, and where these are equal with the specs that differ."""
    if one.split != two.split:
        return one.split, two.split
    return f"{one.split} {one.spec}", f"{two.split} {two.spec}"


def _changed_operators(plan: PlanData, other: PlanData) -> tuple[Change, ...]:
    graph = plan.graph
    if graph is None or not _run_alike(plan, other):
        return ()
    found = []
    for group, one, two in zip(graph.grouping.groups, plan.configurations, other.configurations, strict=True):
        if one != two:
            old, new = (group_split(graph, plan.topology, group.index, config) for config in (one, two))
            found.append((group.kind, old, new if new != old else f"{new}, by other axes"))
    return _folded(found)


def _folded(rows: Iterable[tuple[str, str, str]]) -> tuple[Change, ...]:
    counts: dict[tuple[str, str, str], int] = defaultdict(int)
    for row in rows:
        counts[row] += 1
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return tuple(Change(what=w, count=n, before=old, after=new) for (w, old, new), n in ordered)


def _changed_edges(plan: PlanData, other: PlanData) -> tuple[Amount, ...]:
    if plan.graph is None or other.graph is None:
        return ()
    tables = [_edge_seconds(priced_plan(p).edges) for p in (plan, other)]
    rows = _both(*tables)
    return tuple(sorted(rows, key=lambda row: (-abs(row.after - row.before), row.what)))


def _edge_seconds(edges: Sequence[Edge]) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for edge in edges:
        place = f" at {edge.source}" if edge.source else ""
        found[f"{' + '.join(edge.kinds)} of {edge.tensor}{place}"] += edge.seconds
    return dict(found)


def _amounts(rows: Sequence[Amount], show: Any, signed: Any) -> list[str]:
    width = max(len(row.what) for row in rows)
    return [
        f"  {row.what:<{width}}  {show(row.before):>10} -> {show(row.after):>10}  {signed(row.after - row.before)}"
        for row in rows
    ]


def _changes(rows: Sequence[Change]) -> list[str]:
    lines = [f"  {row.count:>4} x {row.what}: {row.before} -> {row.after}" for row in rows[:_MOST_ROWS]]
    left = sum(row.count for row in rows[_MOST_ROWS:])
    return lines + ([f"  and {left} more"] if left else [])
