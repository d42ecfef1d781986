"""Lower every plan that is offered for a step, run some, and compare those with one device."""

from __future__ import annotations

import contextlib
import random
import tempfile
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import jaxplan
from benchmarks.lowering._limits import small_limits
from jaxplan.mesh import Topology
from tests.fuzz._check import COMPILER_ERRORS, Subject, numbers_of

TOPOLOGIES = ("cpu:4", "h100:2x2", "cpu:8", "v5e:2x2", "cpu:6", "h100:2x4", "cpu:3", "v5e:2x4", "cpu:2x4", "h100:8")
"""Taken in turn: one node and several, counts that are no power of two, and chips that are lowered for in other ways;
all of them run on at most eight virtual CPU devices."""
_OPTIONS: tuple[dict[str, Any], ...] = ({}, {"overlap": True}, {}, {"remat": True}, {}, {}, {})
"""Taken in turn; seven and ten have no common factor, so that every topology meets every option."""
_SMALL_LIMITS_EVERY = 3
"""Subjects of which one is lowered as if its arrays were large."""

Fault = Literal["does not plan", "does not lower", "does not run", "runs wrong"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One plan, by name or number, that fails; ``choice`` is empty where planning itself fails."""

    subject: str
    topology: str
    options: str
    choice: str
    fault: Fault
    text: str

    def __str__(self) -> str:
        return f"==== {self.subject} on {self.topology} {self.options} {self.choice}: {self.fault}\n{self.text}\n===="


@dataclass(slots=True, kw_only=True)
class Counts:
    """The steps met; ``outcomes`` are those of plans that ran, ``refused`` texts of refusals by subject."""

    subjects: int = 0
    invalid: int = 0
    plans: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    refused: dict[str, str] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)

    def add(self, other: Counts) -> None:
        self.subjects += other.subjects
        self.invalid += other.invalid
        self.plans += other.plans
        self.outcomes.update(other.outcomes)
        self.refused |= other.refused
        self.failures += other.failures

    def summary(self) -> str:
        faults = Counter(failure.fault for failure in self.failures)
        outcomes = ", ".join(f"{count} {status}" for status, count in sorted(self.outcomes.items()))
        return (
            f"{self.subjects} subjects ({self.invalid} refused by JAX itself, {len(self.refused)} by jaxplan): "
            f"{self.plans} plans, {faults['does not plan']} not planned, {faults['does not lower']} do not lower; "
            f"{sum(self.outcomes.values())} ran: {outcomes or 'none'}; {faults['does not run']} do not run, "
            f"{faults['runs wrong']} run wrong"
        )


class Check:
    """One step, planned on the topology and with the options that are next.

    The first plan that runs is one that was saved and loaded.

    Attributes:
      name: of the step; plans that run are drawn by it.
      turn: picks topology and options.
      num_runs: so many plans run.
      topologies: those to take in turn; a step that is written for some number of devices has those of that number.
    """

    def __init__(
        self,
        name: str,
        subject: Subject,
        turn: int,
        num_runs: int,
        counts: Counts,
        topologies: Sequence[str] = TOPOLOGIES,
    ) -> None:
        self.name, self.subject, self.num_runs, self.counts = name, subject, num_runs, counts
        fitting = [t for t in topologies if subject.num_devices in (None, Topology.parse(t).num_devices)] or topologies
        self.topology, self.options = fitting[turn % len(fitting)], _OPTIONS[turn % len(_OPTIONS)]
        self.limits = small_limits if turn % _SMALL_LIMITS_EVERY == 0 else contextlib.nullcontext

    def run(self) -> None:
        """Plan, lower every plan, run some and compare."""
        self.counts.subjects += 1
        if self._is_valid():
            with self.limits():
                self._run_offered()

    def _run_offered(self) -> None:
        frontier = self._planned()
        if frontier is None:
            return
        lowered = self._lowered(frontier)
        chosen = random.Random(self.name).sample(range(len(lowered)), min(self.num_runs, len(lowered)))
        for number, i in enumerate(sorted(chosen)):
            choice, run = lowered[i]
            self._run(str(choice), run if number else lambda *args, c=choice: self._reloaded(frontier, c)(*args))

    def _reloaded(self, frontier: jaxplan.Frontier, choice: str | int) -> Any:
        """The function that runs a plan that was saved, and is loaded with the step."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "plan.json"
            frontier.choose(choice).save(file)
            plan = jaxplan.load(file, self.subject.step, *self.subject.args)
        assert isinstance(plan, jaxplan.Plan)
        return plan.jit()

    def _is_valid(self) -> bool:
        try:
            assert self.subject.expected is not None
        except Exception as error:
            self.counts.invalid += 1
            print(f"{self.name} is none for JAX itself: {_first_line(error)}", flush=True)
            return False
        return True

    def _planned(self) -> jaxplan.Frontier | None:
        step, args = self.subject.step, self.subject.args
        try:
            return jaxplan.plan(step, *args, topology=self.topology, progress=False, **self.options)
        except jaxplan.JaxplanError as error:
            self.counts.refused[self.name] = _first_line(error)
            print(f"{self.name} is refused: {_first_line(error)}", flush=True)
        except Exception:
            self._fail("", "does not plan")
        return None

    def _lowered(self, frontier: jaxplan.Frontier) -> list[tuple[str | int, Any]]:
        """Plans by name or number, with the functions that run them; those that do not lower are left out."""
        lowered = []
        for choice in (*range(len(frontier)), *frontier.references):
            self.counts.plans += 1
            try:
                run = frontier.choose(choice).jit()
                run.lower(*self.subject.args)
            except Exception:
                self._fail(str(choice), "does not lower")
            else:
                lowered.append((choice, run))
        return lowered

    def _run(self, choice: str, run: Any) -> None:
        try:
            found = numbers_of(run(*self.subject.args))
        except Exception:
            if any(error in traceback.format_exc() for error in COMPILER_ERRORS):
                self.counts.outcomes["compiler"] += 1
            else:
                self._fail(choice, "does not run")
            return
        status, text = self.subject.judge(found)
        self.counts.outcomes[status] += 1
        if status == "mismatch":
            self._fail(choice, "runs wrong", text)

    def _fail(self, choice: str, fault: Fault, text: str = "") -> None:
        failure = Failure(
            subject=self.name,
            topology=self.topology,
            options=f"{self.options}{' with small limits' if self.limits is small_limits else ''}",
            choice=choice,
            fault=fault,
            text=text or traceback.format_exc(),
        )
        self.counts.failures.append(failure)
        print(failure, flush=True)


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:200]
