"""The function that a printed failure calls: its step under its configuration, compared with one device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.fuzz._settings import apply_settings

apply_settings()

from jaxplan.frontend._backend import Backend  # noqa: E402
from jaxplan.ir import Configuration  # noqa: E402
from tests.fuzz._check import Subject  # noqa: E402
from tests.fuzz._strategies import Strategy  # noqa: E402


def compare(
    step: Any,
    args: Sequence[Any],
    *,
    configurations: Sequence[Configuration],
    repeated: Sequence[int] = (),
    backend: Backend = "jit",
) -> None:
    """Run and compare; prints differences, and the groups with their equations."""
    subject = Subject(step, args)
    for group, config in zip(subject.graph.grouping.groups, configurations, strict=True):
        names = [subject.graph.program.equations[e].name for e in group.equations]
        print(f"group {group.index} ({group.kind}) {config}: inputs {list(group.inputs)}, {' '.join(names)}")
    strategy = Strategy(
        configurations=tuple(configurations),
        repeated=tuple(repeated),
        splittable=(),
        split=(),
        backend=backend,
    )
    outcome = subject.try_strategy(strategy)
    print(outcome.status, outcome.text, sep="\n")
