"""Fuzz a range of programs; count operators and report failures."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import jax

from jaxplan.frontend._backend import Backend
from tests.fuzz._check import Outcome, Subject
from tests.fuzz._generate import MAX_STATEMENTS, program_of
from tests.fuzz._program import Program
from tests.fuzz._reduce import reduce_program, reduce_strategy

_CLEAR_EVERY = 40
"""Programs after which JAX forgets its compiled programs."""


@dataclass(slots=True, kw_only=True)
class Counts:
    """Counts: programs, outcomes by status, and per primitive its operators that could be split, and were."""

    programs: int = 0
    invalid: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    splittable: Counter[str] = field(default_factory=Counter)
    split: Counter[str] = field(default_factory=Counter)
    met: Counter[str] = field(default_factory=Counter)
    failed: list[int] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, other: Counts) -> None:
        self.programs += other.programs
        self.invalid += other.invalid
        self.seconds += other.seconds
        self.failed += other.failed
        for name in ("outcomes", "splittable", "split", "met"):
            getattr(self, name).update(getattr(other, name))

    def summary(self) -> str:
        outcomes = ", ".join(f"{count} {status}" for status, count in sorted(self.outcomes.items()))
        invalid = f", {self.invalid} programs that JAX itself refuses" if self.invalid else ""
        return (
            f"{self.programs} programs, {sum(self.outcomes.values())} runs: {outcomes or 'none'}{invalid}; "
            f"{sum(self.split.values())} of {sum(self.splittable.values())} operators that can be split were; "
            f"{self.seconds:.0f} s of CPU time"
        )

    def table(self) -> str:
        """Per primitive: how often it was met, could be split, and was."""
        rows = [f"{'primitive':28}{'met':>8}{'splittable':>12}{'split':>8}"]
        for name in sorted(self.met):
            rows.append(f"{name:28}{self.met[name]:8}{self.splittable[name]:12}{self.split[name]:8}")
        return "\n".join(rows)


def fuzz(
    seed: int,
    indices: Iterable[int],
    num_strategies: int,
    *,
    reduces: bool = True,
    max_statements: int = MAX_STATEMENTS,
    backend: Backend | None = None,
) -> Counts:
    """Check programs ``indices`` of ``seed`` under so many strategies each, backends in turn unless one is named."""
    counts = Counts()
    for index in indices:
        start = time.process_time()
        _fuzz_one(
            seed, index, program_of(seed, index, max_statements), num_strategies, counts, reduces, backend
        )
        counts.programs += 1
        counts.seconds += time.process_time() - start
        if counts.programs % _CLEAR_EVERY == 0:
            jax.clear_caches()
            print(f"... program {index}: {counts.summary()}; failed: {counts.failed}", flush=True)
    return counts


def _fuzz_one(
    seed: int,
    index: int,
    program: Program,
    num_strategies: int,
    counts: Counts,
    reduces: bool,
    backend: Backend | None,
) -> None:
    try:
        subject = Subject.of(program)
        assert subject.expected is not None
    except Exception as error:
        counts.invalid += 1
        print(
            f"program {index} is none for JAX itself: {type(error).__name__}: {str(error)[:200]}", flush=True
        )
        return
    counts.met.update(_primitives(subject))
    for k in range(num_strategies):
        outcome = subject.try_seed(strategy_seed(seed, index, k), backend or backend_of(index, k))
        counts.outcomes[outcome.status] += 1
        if outcome.strategy is not None:
            counts.splittable.update(outcome.strategy.splittable)
            counts.split.update(outcome.strategy.split)
        if outcome.failed:
            counts.failed.append(index)
            print(report(seed, index, k, program, outcome, reduces), flush=True)
            return


def strategy_seed(seed: int, index: int, k: int) -> str:
    """The seed of strategy ``k`` of a program."""
    return f"{seed} {index} {k}"


def backend_of(index: int, k: int) -> Backend:
    """Every second run is one manual program."""
    return "shard_map" if (index + k) % 2 == 1 else "jit"


def _primitives(subject: Subject) -> list[str]:
    try:
        return [eqn.name for eqn in subject.graph.program.equations]
    except Exception:  # the analysis fails: the strategies say so
        return []


def report(seed: int, index: int, k: int, program: Program, outcome: Outcome, reduces: bool) -> str:
    """A failure for people: the smallest failing program found, its configuration, the difference."""
    drawn = strategy_seed(seed, index, k)
    head = f"==== seed {seed}, program {index}, strategy {k}: {outcome.status}"
    if reduces:
        program, outcome = _reduced(program, outcome, drawn)
    devices = "from tests.fuzz._paste import compare  # first of all: it sets the number of devices"
    lines = [head, devices, program.source(), *_configuration_lines(outcome), outcome.text, "===="]
    return "\n".join(lines)


def _reduced(program: Program, outcome: Outcome, drawn: str) -> tuple[Program, Outcome]:
    last: dict[str, Outcome] = {"outcome": outcome}
    backend = "jit" if outcome.strategy is None else outcome.strategy.backend

    def fails(smaller: Program) -> bool:
        try:
            subject = Subject.of(smaller)
            assert subject.expected is not None
        except Exception:
            return False
        for attempt in ("", " again"):
            tried = subject.try_seed(drawn + attempt, backend)
            if tried.kind == outcome.kind:
                last["outcome"] = tried
                return True
        return False

    smaller = reduce_program(program, fails)
    return smaller, reduce_strategy(Subject.of(smaller), last["outcome"])


def _configuration_lines(outcome: Outcome) -> list[str]:
    if outcome.strategy is None:
        return []
    return [
        f"compare(step, args, configurations={outcome.strategy.configurations}, "
        f"repeated={outcome.strategy.repeated}, backend={outcome.strategy.backend!r})",
    ]
