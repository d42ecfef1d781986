"""Plans of several steps over one layout of the arrays that they share, and the frontier of such plans."""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxplan.core._files import write_whole
from jaxplan.core._units import format_bytes, format_gib, format_milliseconds, format_seconds
from jaxplan.errors import ArgumentError
from jaxplan.plans._frontier_data import FrontierData, spread
from jaxplan.plans._infeasible import infeasible_error
from jaxplan.plans._joint_json import joint_from_json, joint_to_json
from jaxplan.plans._plan import Plan
from jaxplan.plans._rows import fold_leaves, leaf_rows
from jaxplan.plans._undominated import undominated

OTHERS_STATE = "state of other steps"
"""The part of the peak that the running step does not use."""
_MOST_ROWS = 24


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class JointPlan:
    """A plan of each step; arrays that several steps share are laid out alike in all of them.

    Attributes:
      name: ``plan`` for a point of the frontier, the name of a reference else.
      plans: of each step by name; ``joint["train"]`` is one of them and does everything that a `Plan` does.
      weights: how often each step counts.
      resident_bytes: per step, bytes on a device of arrays that other steps keep while it runs.
      shared: per array that several steps have, its path in each of them.
      lower_bound_seconds: weighted seconds that no joint plan of at most this memory beats; 0 where unknown.

    >>> import jax, jax.numpy as jnp, jaxplan
    >>> def train(w, x):
    ...     return w - 0.1 * jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)
    >>> def evaluate(w, x):
    ...     return jnp.mean((x @ w) ** 2)
    >>> w, x = jax.ShapeDtypeStruct((64, 64), "float32"), jax.ShapeDtypeStruct((4096, 64), "float32")
    >>> joint = jaxplan.plan_together({"train": (train, (w, x)), "eval": (evaluate, (w, x))}, topology="cpu:8")
    >>> plan = joint.fastest()
    >>> plan["train"].out_specs == plan["eval"].in_specs[0]
    True
    """

    name: str
    plans: Mapping[str, Plan]
    weights: Mapping[str, float]
    resident_bytes: Mapping[str, int]
    shared: tuple[Mapping[str, str], ...]
    lower_bound_seconds: float = 0.0

    def __getitem__(self, step: str) -> Plan:
        if step not in self.plans:
            raise ArgumentError(f"no step is called {step!r}; expected one of {', '.join(map(repr, self.plans))}")
        return self.plans[step]

    def __iter__(self) -> Iterator[str]:
        return iter(self.plans)

    def __len__(self) -> int:
        return len(self.plans)

    def items(self) -> Iterable[tuple[str, Plan]]:
        """(name, plan) of each step."""
        return self.plans.items()

    @property
    def time_seconds(self) -> float:
        """Predicted seconds of all steps, each as often as its weight says."""
        return sum(self.weights[name] * plan.time_seconds for name, plan in self.plans.items())

    @property
    def memory_bytes(self) -> int:
        """Peak per device: of the step that needs most while it runs, with the arrays that the other steps keep."""
        return self.memory_of(self.worst)

    @property
    def worst(self) -> str:
        """The step that needs most memory while it runs."""
        return max(self.plans, key=self.memory_of)

    def memory_of(self, step: str) -> int:
        """Bytes per device while one step runs, the arrays that others keep among them."""
        return self[step].memory_bytes + self.resident_bytes[step]

    @property
    def memory_parts(self) -> Mapping[str, int]:
        """Bytes of the peak by kind of array."""
        worst = self.worst
        return {**self.plans[worst].memory_parts, OTHERS_STATE: self.resident_bytes[worst]}

    def explain(self) -> str:
        """Time and memory of each step, and the arrays that steps share with their layout; one step's own decisions
        are told by ``joint["train"].explain()``."""
        lines = [
            f"{self.name}: {len(self.plans)} steps on {next(iter(self.plans.values())).topology.name} over one layout "
            "of what they share",
            f"time    {format_seconds(self.time_seconds)} weighted",
            f"memory  {format_bytes(self.memory_bytes)} per device, while {self.worst} runs",
            "steps",
        ]
        width = max(map(len, self.plans))
        for name, plan in self.plans.items():
            lines.append(
                f"  {name:<{width}}  {self.weights[name]:g} x {format_seconds(plan.time_seconds)}, "
                f"{format_bytes(plan.memory_bytes)} and {format_bytes(self.resident_bytes[name])} of other steps: "
                f"{plan.summary}"
            )
        return "\n".join([*lines, "shared arrays", *self._shared_rows(), *self._own_rows()])

    def _shared_rows(self) -> list[str]:
        """Shared arrays with their layout and their paths, those of repeated layers in one line."""
        rows = {step: {row.path: row for row in leaf_rows(plan)} for step, plan in self.plans.items()}
        found = defaultdict(list)
        for paths in self.shared:
            ends = " = ".join(f"{other} {own.split('/')[0]}" for other, own in paths.items())
            found[ends] += [rows[step][path] for step, path in paths.items() if path in rows[step]][:1]
        lines = []
        for ends, of in found.items():
            lines.append(f"  {ends}")
            folded = sorted(fold_leaves(of), key=lambda group: -group.count * group.first.local_bytes)
            lines += [
                f"  {f'{group.count} x' if group.count > 1 else '':>7} {group.path}  {group.first.aval} "
                f"{group.first.split}"
                for group in folded[:_MOST_ROWS]
            ]
            if folded[_MOST_ROWS:]:
                lines.append(f"          and {sum(group.count for group in folded[_MOST_ROWS:])} more arrays")
        return lines

    def _own_rows(self) -> list[str]:
        """Arguments that a step keeps and no other step has."""
        lines = []
        for name, plan in self.plans.items():
            ours = {paths.get(name) for paths in self.shared}
            own = [row for row in leaf_rows(plan) if row.role != "data" and row.path not in ours]
            if own:
                roots = dict.fromkeys(row.path.split("/")[0] for row in own)
                size = sum(row.local_bytes for row in own)
                lines.append(f"  {name}: {len(own)} arrays of {', '.join(roots)}, {format_bytes(size)} per device")
        return (["kept by one step", *lines]) if lines else []

    def to_json(self) -> dict[str, Any]:
        """Plain data, the same for the same joint plan in every process."""
        return joint_to_json(self)

    @classmethod
    def from_json(cls, data: Any, read: Callable[[str, Any], Plan] | None = None) -> JointPlan:
        """Read the output of `to_json`; ``read(step, data)`` makes the plan of each step, by default without its
        program."""
        return cls(**joint_from_json(data, read or (lambda step, of: Plan.from_json(of))))

    def save(self, path: str | Path) -> None:
        """Write JSON that `jaxplan.load` reads; raises SaveError where it cannot be written.

        Example:
          >>> joint.save("joint.json")  # doctest: +SKIP
          >>> jaxplan.load("joint.json", {"train": (step, args), "eval": (evaluate, eval_args)})  # doctest: +SKIP
        """
        write_whole(path, json.dumps(self.to_json(), indent=1, sort_keys=True) + "\n")

    def __repr__(self) -> str:
        return (
            f"JointPlan({', '.join(self.plans)}: {self.time_seconds * 1e3:.4g} ms weighted, "
            f"{self.memory_bytes / 2**30:.3f} GiB per device)"
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class JointFrontier(FrontierData[JointPlan]):
    """Joint plans by ascending memory and descending weighted time; chosen like those of a `Frontier`.

    Attributes:
      references: joint plans in which one step is laid out as a strategy, or as its own best plan, has it
        (``train alone``), and the others as well as that allows.

    >>> import jax, jax.numpy as jnp, jaxplan
    >>> def train(w, x):
    ...     return w - 0.1 * jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)
    >>> w, x = jax.ShapeDtypeStruct((64, 64), "float32"), jax.ShapeDtypeStruct((4096, 64), "float32")
    >>> steps = {"train": (train, (w, x)), "eval": (lambda w, x: jnp.mean((x @ w) ** 2), (w, x))}
    >>> frontier = jaxplan.plan_together(steps, topology="cpu:8")
    >>> frontier.leanest().memory_bytes <= frontier.fastest().memory_bytes
    True
    """

    @classmethod
    def from_plans(
        cls,
        plans: Iterable[JointPlan],
        *,
        references: Mapping[str, JointPlan],
        memory_limit_bytes: int | None,
        search_seconds: float | None = None,
        notes: Iterable[str] = (),
    ) -> JointFrontier:
        """Keep the plans that fit the limit and that no other one beats.

        Raises:
          InfeasibleError: no plan fits.
        """
        plans = tuple(plans)
        fitting = [p for p in plans if memory_limit_bytes is None or p.memory_bytes <= memory_limit_bytes]
        if not fitting and memory_limit_bytes is not None:
            raise infeasible_error(plans, memory_limit_bytes)
        return cls(
            points=tuple(undominated(fitting)),
            references=dict(references),
            memory_limit_bytes=memory_limit_bytes,
            search_seconds=search_seconds,
            notes=tuple(notes),
        )

    def table(self, *, max_rows: int = 12, width: int | None = None) -> str:
        """The frontier as text: weighted time, memory, and each step's time and splits."""
        from rich import box  # printing alone needs it
        from rich.table import Table
        from rich.text import Text

        from jaxplan.plans._frontier_view import print_table

        steps = list(self.points[0].plans)
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        for header in ("#", "time ms", "GiB"):
            table.add_column(header, justify="right", no_wrap=True)
        table.add_column("", overflow="fold")
        for step in steps:
            table.add_column(f"{step} ms", justify="right", no_wrap=True)
            table.add_column("split", overflow="fold")
        rows = [(str(i), self.points[i], " ".join(self.marks(self.points[i]))) for i in spread(self, max_rows)]
        rows += [("ref", plan, name) for name, plan in self.references.items()]
        for number, plan, mark in rows:
            cells = [
                cell
                for step in steps
                for cell in (format_milliseconds(plan[step].time_seconds), Text(plan[step].outline.cells()[0]))
            ]
            table.add_row(number, format_milliseconds(plan.time_seconds), format_gib(plan.memory_bytes), mark, *cells)
        return print_table(table, self._footer(len(rows) - len(self.references)), width)

    def _footer(self, num_shown: int) -> list[str]:
        first = self.points[0]
        weights = ", ".join(f"{first.weights[step]:g} x {step}" for step in first.plans)
        lines = [
            f"{len(self)} joint plan{'s' if len(self) > 1 else ''} that nothing beats"
            f"{f', {num_shown} of them shown' if num_shown < len(self) else ''}; time = {weights}; "
            f"{len(first.shared)} shared arrays"
        ]
        if self.memory_limit_bytes is not None:
            lines.append(f"limit {format_bytes(self.memory_limit_bytes)} per device")
        if self.search_seconds is not None:
            lines.append(f"searched for {format_seconds(self.search_seconds)}")
        return lines + [f"note: {note}" for note in self.notes]
