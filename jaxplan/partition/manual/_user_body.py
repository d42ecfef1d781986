"""The body of a `jax.shard_map` of the step inside a manual program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxplan.errors import UnsupportedError
from jaxplan.ir import Equation
from jaxplan.partition._steps import Executor


def run_body(eqn: Equation, executor: Executor, operands: Sequence[Any]) -> list[Any]:
    """Results of the body on local operands."""
    raise UnsupportedError("a jax.shard_map of the step itself does not run inside backend='shard_map' yet")
