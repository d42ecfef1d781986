"""Why an argument is laid out so: the deciding group, the price of other layouts, the largest cost behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxplan.core import _compat
from jaxplan.core._paths import matches, nearest
from jaxplan.core._units import format_bytes, format_seconds
from jaxplan.cost import tiny_groups
from jaxplan.errors import ArgumentError
from jaxplan.ir import UNGROUPED, StepGraph
from jaxplan.plans._plan_data import PlanData
from jaxplan.plans._priced import Alternative, Edge, PricedPlan
from jaxplan.plans._rows import LeafRow, fold_leaves, group_split, leaf_rows, short_source

_MOST_ALTERNATIVES = 8
_MOST_LEAVES = 12
_TINY = "its size: arrays this small are whole in every plan (at most 16,384 elements, and 1/16 of the largest)"
_NO_LEAF_MSG = (
    "{pattern!r} matches no argument of the step.\n"
    "  expected: a path such as {example!r}, or a pattern of it; leading parts may be left out\n"
    "  likely cause: a misspelt name{near}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Other:
    """Another layout of the group that decides, all else as it is; differences to the plan."""

    split: str
    seconds: float
    compute_seconds: float
    communication_seconds: float
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """The reasons for the layout of one argument.

    Attributes:
      leaf: the argument.
      group: the operators that are laid out together with it: kind, number, and the source line of the first.
      split: of the group, by named dimension.
      together: other arguments in the group.
      others: alternatives, the fastest first.
      edges: transfers of this argument.
      forced: why there is no alternative, or which cost keeps the layout; one sentence.
      pins: the pins that limit it.
    """

    leaf: LeafRow
    group: str
    split: str
    together: tuple[str, ...]
    others: tuple[Other, ...]
    edges: tuple[Edge, ...]
    forced: str
    pins: tuple[str, ...] = ()


def find_leaves(plan: PlanData, pattern: str) -> tuple[LeafRow, ...]:
    """The arguments that a pattern selects (`jaxplan.core._paths.matches`).

    Raises:
      ArgumentError: none.
    """
    rows = leaf_rows(plan)
    found = tuple(row for row in rows if matches(row.path, pattern))
    if not found:
        paths = [row.path for row in rows]
        near = nearest(pattern, [*paths, *("/".join(path.split("/")[1:]) for path in paths)])
        near_text = f"\n  fix: did you mean {' or '.join(map(repr, near))}?" if near else ""
        example = paths[0] if paths else "params"
        raise ArgumentError(_NO_LEAF_MSG.format(pattern=pattern, example=example, near=near_text))
    return found


def why(plan: PlanData, leaf: LeafRow) -> Why:
    """Price the alternatives of one argument's layout; needs the program.

    Raises:
      PlanMismatchError: the plan was loaded without its step.
    """
    graph = plan.require_program()
    position = leaf_rows(plan).index(leaf)
    tensor = graph.program.inputs[position]
    group = graph.grouping.tensor_group[tensor]
    if group == UNGROUPED:
        return Why(
            leaf=leaf, group="no group", split="whole", together=(), others=(), edges=(),
            forced="it is a scalar, which every device has",
        )  # fmt: skip
    overlap = plan.overlapped
    priced = PricedPlan(graph, plan.topology, plan.configurations, plan.repeated, group, overlap)
    others = priced.alternatives()
    rows = leaf_rows(plan)
    places = {t: i for i, t in enumerate(graph.program.inputs)}
    members = [rows[places[t]].path for t in graph.grouping.groups[group].inputs if t != tensor and t in places]
    return Why(
        leaf=leaf,
        group=_describe_group(graph, group),
        split=group_split(graph, plan.topology, group, plan.configurations[group]),
        together=tuple(members),
        others=tuple(_other(plan, graph, group, other) for other in others),
        edges=tuple(edge for edge in priced.edges if edge.tensor == leaf.path),
        forced=_TINY if group in tiny_groups(graph) else _forced(others),
        pins=tuple(pin.text for pin in plan.pins if plan.in_paths[position] in pin.paths),
    )


def _describe_group(graph: StepGraph, group: int) -> str:
    found = graph.grouping.groups[group]
    lines = [short_source(_compat.eqn_source_line(graph.program.equations[e].origin)) for e in found.equations[:1]]
    place = f" at {lines[0]}" if lines and lines[0] else ""
    kinds = {
        "contraction": "a dot with its gradients",
        "state": "stored state and its update",
        "parameter": "a stored parameter",
        "input": "an argument",
    }
    count = f", {len(found.equations)} operators" if len(found.equations) > 1 else ""
    return f"{kinds.get(found.kind, found.kind)}{count}{place}"


def _other(plan: PlanData, graph: StepGraph, group: int, other: Alternative) -> Other:
    return Other(
        split=group_split(graph, plan.topology, group, other.configuration),
        seconds=other.seconds,
        compute_seconds=other.compute_seconds,
        communication_seconds=other.communication_seconds,
        memory_bytes=other.memory_bytes,
    )


def _forced(others: Sequence[Alternative]) -> str:
    """The reason in one sentence."""
    if not others:
        return "no other layout is possible: no dimension divides, or the step fixes it"
    faster = [other for other in others if other.seconds < 0]
    if faster and all(other.memory_bytes > 0 for other in faster):
        best = faster[0]
        return (
            f"memory: other layouts are faster by up to {format_seconds(-best.seconds)}, and each takes more memory, "
            f"that one {format_bytes(best.memory_bytes)}"
        )
    if faster:
        return (
            "nothing around it: alone it could be laid out better; the plan was chosen as a whole, "
            "within the gap that is stated"
        )
    best = others[0]
    if best.seconds == 0 and best.memory_bytes >= 0:
        return "nothing: others take the same time, and none of them less memory"
    part = "communication" if best.communication_seconds >= best.compute_seconds else "compute"
    return f"time: the nearest other layout takes {format_seconds(best.seconds)} more, most of it {part}"


def explain_leaves(plan: PlanData, pattern: str) -> str:
    """`Why` of the arguments that a pattern selects; those of repeated layers, and of one group, are told once."""
    folded = fold_leaves(find_leaves(plan, pattern))
    texts, told = [], dict[str, str]()
    for of in folded[:_MOST_LEAVES]:
        head = f"{of.path} ({of.count} alike, told of {of.first.path})" if of.count > 1 else of.path
        if of.first.path in told:
            texts.append(f"{head}\n  as above    it is laid out together with {told[of.first.path]}")
            continue
        reasons = why(plan, of.first)
        told |= dict.fromkeys(reasons.together, of.first.path)
        texts.append("\n".join([head, *_lines(reasons)]))
    if len(folded) > _MOST_LEAVES:
        texts.append(f"and {len(folded) - _MOST_LEAVES} more kinds of arguments: a longer pattern selects some of them")
    return "\n\n".join(texts)


def explain_leaves_data(plan: PlanData, pattern: str) -> list[dict[str, Any]]:
    """The same as plain data."""
    import dataclasses

    found = fold_leaves(find_leaves(plan, pattern))
    return [{"path": of.path, "count": of.count, **dataclasses.asdict(why(plan, of.first))} for of in found]


def _lines(of: Why) -> list[str]:
    leaf = of.leaf
    lines = [
        f"  is          {leaf.role}, {leaf.aval}: {format_bytes(leaf.num_bytes)}, a device holds "
        f"{format_bytes(leaf.local_bytes)}",
        f"  layout      {leaf.split}, {leaf.spec}",
        f"  decided by  {of.group}, split {of.split}",
    ]
    if of.together:
        more = f" and {len(of.together) - 3} more" if len(of.together) > 3 else ""
        lines.append(f"  together    {', '.join(of.together[:3])}{more}")
    lines += [f"  pinned by   {pin}: a layout that it rules out is not chosen, however cheap" for pin in of.pins]
    lines.append(f"  because of  {of.forced}")
    for edge in of.edges:
        lines.append(
            f"  moved       {edge.count} x {' + '.join(edge.kinds)} for {edge.reader}: "
            f"{format_bytes(edge.num_bytes)}, {format_seconds(edge.seconds)}"
        )
    if of.others:
        lines.append("  instead, all else as it is")
        width = max(len(other.split) for other in of.others[:_MOST_ALTERNATIVES])
        lines += [
            f"    {other.split:<{width}}  {signed_seconds(other.seconds):>10}  {signed_bytes(other.memory_bytes):>11}"
            for other in of.others[:_MOST_ALTERNATIVES]
        ]
    if len(of.others) > _MOST_ALTERNATIVES:
        lines.append(f"    and {len(of.others) - _MOST_ALTERNATIVES} that take longer")
    return lines


def signed_seconds(seconds: float) -> str:
    """Such as ``+12.3 us``."""
    return "same time" if not seconds else f"{'+' if seconds > 0 else '-'}{format_seconds(abs(seconds))}"


def signed_bytes(num_bytes: int) -> str:
    """Such as ``-0.5 MiB``."""
    return "same memory" if not num_bytes else f"{'+' if num_bytes > 0 else '-'}{format_bytes(abs(num_bytes))}"
