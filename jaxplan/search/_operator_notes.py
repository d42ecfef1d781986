"""Notes on operators without a rule or without a count: once each, with their source line."""

from __future__ import annotations

from jaxplan.core import _compat
from jaxplan.core._log import warn_once
from jaxplan.ir import StepGraph

_NO_RULE = (
    "has no rule: its operands are gathered and it runs replicated; describe it with "
    "jaxplan.register_rule({name!r}, ...)"
)
_NEITHER = (
    "has no rule and no count: its operands are gathered and it runs replicated, in the time of the bytes that it "
    "moves; describe it with jaxplan.register_rule({name!r}, ...), or count its work with "
    "jaxplan.register_count({name!r})"
)
_NO_COUNT = (
    "has no count: its time is that of the bytes that it moves; count its work with "
    "jaxplan.register_count({name!r})"
)
_PARTLY_COUNTED = (
    "is not counted in full ({caveat}): its time is that of the rest; count its work with "
    "jaxplan.register_count({name!r})"
)


def operator_notes(graph: StepGraph) -> list[str]:
    """One line per operator and reason; each is a warning, too."""
    notes: dict[tuple[str, str], list[str]] = {}
    unruled = set(graph.unknown)
    for index in sorted(unruled.union(graph.uncounted)):
        eqn, count = graph.program.equations[index], graph.counts[index]
        callee = _compat.callee_name(eqn.name, eqn.params)
        name = f"{eqn.name}:{callee}" if callee else eqn.name
        if index in unruled:
            text = _NO_RULE if count else _NEITHER
        else:
            text = _PARTLY_COUNTED if count else _NO_COUNT
        said = text.format(name=name, caveat=count.caveat if count else "")
        notes.setdefault((name, said), []).append(_compat.eqn_source_line(eqn.origin))
    lines = []
    for (name, said), places in sorted(notes.items()):
        where = next((p for p in places if p), "unknown line")
        lines.append(f"operator {name!r} ({len(places)}x, first at {where}) {said}, see docs/operators.md")
        warn_once(lines[-1])
    return lines
