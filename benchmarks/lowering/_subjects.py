"""Subjects by kind and name: programs of the fuzzer, updates by optimizers, steps that are written out."""

from __future__ import annotations

from typing import Any

from benchmarks.fuzz._check import Subject
from benchmarks.fuzz._generate import program_of
from benchmarks.lowering import _optimizers, _state_steps
from benchmarks.lowering._steps import STEPS as STEPS

assert _state_steps  # it fills the table


def subject_of(kind: str, which: Any, seed: int, max_statements: int) -> tuple[str, Subject]:
    """A subject and what it is called.

    Args:
      kind: ``program`` (``which`` is its number), ``optimizer`` (name, and whether its flags are flipped) or ``step``.
      seed, max_statements: of programs.
    """
    if kind == "program":
        return f"program {which}", Subject.of(program_of(seed, which, max_statements))
    if kind == "optimizer":
        name, flipped = which
        return f"{name}{' (flipped)' if flipped else ''}", _optimizers.subject_of(name, flipped=flipped)
    step, args = STEPS[which]()
    return f"step {which}", Subject(step, args)
