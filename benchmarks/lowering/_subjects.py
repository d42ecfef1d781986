"""Subjects by kind and name: programs of the fuzzer, updates by optimizers, steps that are written out."""

from __future__ import annotations

import dataclasses
from typing import Any

from benchmarks.lowering import _optimizers, _state_steps
from benchmarks.lowering._steps import STEPS as STEPS
from tests.fuzz._check import Subject
from tests.fuzz._generate import program_of
from tests.fuzz._program import UPDATES

assert _state_steps  # it fills the table
_UPDATES = tuple(UPDATES)


def subject_of(kind: str, which: Any, seed: int, max_statements: int) -> tuple[str, Subject]:
    """A subject and its name.

    Args:
      kind: ``program`` (``which`` is its number), ``optimizer`` (name, and whether its flags are flipped) or ``step``.
      seed, max_statements: of programs.
    """
    if kind == "program":
        program = program_of(seed, which, max_statements)
        if program.kind != "plain":  # parameters are read in more orders than the fuzzer's own
            number = program.num_parameters or 1
            update = _UPDATES[which % len(_UPDATES)]
            program = dataclasses.replace(program, kind="update", num_parameters=number, update=update)
        return f"program {which}", Subject.of(program)
    if kind == "optimizer":
        name, flipped = which
        return f"{name}{' (flipped)' if flipped else ''}", _optimizers.subject_of(name, flipped=flipped)
    step, args = STEPS[which]()
    return f"step {which}", Subject(step, args)
