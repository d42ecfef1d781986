"""The part of `plan.explain()` on state: the output that succeeds each argument, and donation (docs/state.md)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from jaxplan.core._paths import readable_path
from jaxplan.ir import Program, StatePair

_KEY = re.compile(r"\['[^']*'\]|\[[^\]]*\]|\.[^.\[]+")
_MOST_ROWS = 24
_MOST_PLACES = 3


def state_rows(program: Program) -> list[str]:
    """One row per argument that comes back, and one that names the others."""
    rows, rest = [], []
    pairs = {pair.input: pair for pair in program.pairs}
    for name, inputs in _arguments(program).items():
        found = [pairs[i] for i in inputs if i in pairs]
        if not found:
            rest.append(readable_path(name, program.argument_names))
            continue
        rows.append(f"  {_places(program, found)}: {_donation(program, name, inputs, found)}")
    if len(rows) > _MOST_ROWS:
        rows[_MOST_ROWS:] = [f"  and {len(rows) - _MOST_ROWS} more arguments"]
    if rest:
        rows.append(f"  not returned: {_listed(rest)}")
    return rows


def _arguments(program: Program) -> dict[str, list[int]]:
    """Input positions of each argument, by its path."""
    found: dict[str, list[int]] = defaultdict(list)
    for i, path in enumerate(program.in_paths):
        found[_keys(path)[0]].append(i)
    return found


def _keys(path: str) -> list[str]:
    return _KEY.findall(path) or [path]


def _places(program: Program, pairs: Sequence[StatePair]) -> str:
    """``params -> result[0][1], 5 leaves``: subtrees of an argument and where they are returned."""
    counts: dict[str, int] = defaultdict(int)
    for pair in pairs:
        source, target = _keys(program.in_paths[pair.input]), _keys(program.out_paths[pair.output])
        while len(source) > 1 and target and source[-1] == target[-1]:
            del source[-1], target[-1]
        counts[f"{readable_path(''.join(source), program.argument_names)} -> result{''.join(target)}"] += 1
    return _listed(f"{place}{f', {count} leaves' if count > 1 else ''}" for place, count in counts.items())


def _donation(program: Program, name: str, inputs: Sequence[int], pairs: Sequence[StatePair]) -> str:
    """Whether an argument is donated, and why not."""
    if program.donated[inputs[0]]:
        return "donated"
    if program.donate_argnums is not None:
        return "kept, donate_argnums leaves it out"
    if len(pairs) < len(inputs):
        return f"kept, {len(pairs)} of its {len(inputs)} leaves come back"
    if all(pair.flow in ("unchanged", "moved") for pair in pairs):
        return "kept, it comes back unchanged"
    if not any(pair.placed for pair in pairs):
        fix = (
            f"; donate_argnums names it if it may be overwritten: {name.strip('[]')}"
            if name[1:2] != "'"
            else ""
        )
        return f"kept, nothing but shape and data flow says that it is state{fix}"
    return "kept, no leaf is updated at its place"


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - _MOST_PLACES} more" if len(names) > _MOST_PLACES else ""
    return "; ".join(names[:_MOST_PLACES]) + more
