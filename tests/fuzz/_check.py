"""Run a program under strategies on eight virtual devices, and compare with one device."""

from __future__ import annotations

import copy
import re
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxplan.frontend._backend import Backend
from jaxplan.ir import StepGraph
from jaxplan.mesh import Topology
from jaxplan.search._traced import analyse_step
from tests.fuzz._noise import deviations, with_wide_sums
from tests.fuzz._program import Program
from tests.fuzz._strategies import TOPOLOGY, Strategy, draw_strategy, plan_of

TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "bfloat16": 6e-2}
"""Of floats, relative to the largest of a result, by the least precise dtype of the program."""
NOISE_MARGIN = 10.0
"""A difference is rounding if noise of a few roundings at every operator, times this, makes as large a one."""
SUM_MARGIN = 2.0
"""So it is if 16-bit sums made in float32, times this, make as large a one: pieces round less, and otherwise."""

COMPILER_ERRORS = ("fft_thunk.cc",)
"""Internal errors of the compiler for CPU itself: of an FFT with an operand in a layout that its FFT refuses."""

_ERROR = re.compile(r"[\w.]*(Error|Exception)\b")

Status = Literal["equal", "ill-conditioned", "compiler", "mismatch", "crash"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of one strategy of one program; ``text`` names the difference, or the error."""

    status: Status
    strategy: Strategy | None
    text: str = ""

    @property
    def failed(self) -> bool:
        return self.status in ("mismatch", "crash")

    @property
    def kind(self) -> str:
        """The status, and of a crash the kind of error; two failures of one kind are taken for the same."""
        errors = [line for line in self.text.splitlines() if _ERROR.match(line)]
        return f"crash ({errors[-1].split(':')[0]})" if self.status == "crash" and errors else self.status


class Subject:
    """A step with its analysis, its single-device results and its tolerance, each made when it is asked for."""

    def __init__(self, step: Any, args: Sequence[Any], tolerance: float = TOLERANCE["float64"]) -> None:
        self.step, self.args, self.tolerance = step, args, tolerance
        self.topology = Topology.parse(TOPOLOGY)
        self.num_devices: int | None = None  # any number, unless the step is written for one
        self._expected: list[np.ndarray] | None = None
        self._graph: StepGraph | None = None

    @property
    def expected(self) -> list[np.ndarray]:
        """Results of one device.

        Raises:
          Exception: the error of JAX itself about the program.
        """
        if self._expected is None:
            self._expected = numbers_of(jax.jit(self.step)(*self.args))
        return self._expected

    @classmethod
    def of(cls, program: Program) -> Subject:
        step, args = program.build()
        least = next(d for d in ("bfloat16", "float32", "float64") if d in {*program.dtypes, "float64"})
        subject = cls(step, args, TOLERANCE[least])
        if "MESH" in "\n".join(program.source_lines()):
            subject.num_devices = subject.topology.num_devices
        return subject

    def again(self) -> Subject:
        """The same step, not analysed yet."""
        other = copy.copy(self)
        other._graph = None
        return other

    @property
    def graph(self) -> StepGraph:
        if self._graph is None:
            abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(np.shape(x), x.dtype), tuple(self.args))
            self._graph = analyse_step(self.step, abstract, {}, donate_argnums=None, static_argnums=())
        return self._graph

    def try_seed(self, seed: str, backend: Backend = "jit") -> Outcome:
        """A strategy drawn from ``seed``."""
        try:
            strategy = draw_strategy(self.graph, self.topology, seed, backend)
        except Exception:
            return Outcome(status="crash", strategy=None, text=traceback.format_exc())
        return self.try_strategy(strategy)

    def try_strategy(self, strategy: Strategy) -> Outcome:
        """Run the step under a strategy and compare."""
        try:
            planned = plan_of(self.graph, self.topology, strategy).jit(backend=strategy.backend)
            found = numbers_of(planned(*self.args))
        except Exception:
            text = traceback.format_exc()
            status = "compiler" if any(error in text for error in COMPILER_ERRORS) else "crash"
            return Outcome(status=status, strategy=strategy, text=text)
        status, text = self.judge(found)
        return Outcome(status=status, strategy=strategy, text=text)

    def judge(self, found: Sequence[np.ndarray]) -> tuple[Status, str]:
        """How results compare with those of one device, and the difference."""
        expected = self.expected
        errors = [error_of(a, b) for a, b in zip(found, expected, strict=True)]
        wrong = [i for i, (error, b) in enumerate(zip(errors, expected)) if not error <= self._allowed(b)]
        if not wrong:
            return "equal", ""
        text = "\n".join(_describe(i, found[i], expected[i], errors[i]) for i in wrong[:4])
        if self._is_right(found):
            return "compiler", text
        noise = deviations(self.graph, self.args)
        if all(errors[i] <= NOISE_MARGIN * noise[i] for i in wrong):
            return "ill-conditioned", text
        wide = with_wide_sums(self.graph, self.args)
        moved = [error_of(np.asarray(a, np.float64), np.asarray(b, np.float64)) for a, b in zip(expected, wide)]
        if all(errors[i] <= SUM_MARGIN * moved[i] for i in wrong):
            return "ill-conditioned", text
        return "mismatch", text

    def _is_right(self, found: Sequence[np.ndarray]) -> bool:
        """Whether results are those of the step operator by operator: then the compiler is wrong on one device.

        It was seen to merge slices of slices with clamped starts.
        """
        try:
            with jax.disable_jit():
                exact = numbers_of(self.step(*jax.tree.map(jnp.asarray, self.args)))
        except Exception:
            return False  # not every step runs without the compiler (`jax.shard_map`)
        return all(error_of(a, b) <= self._allowed(b) for a, b in zip(found, exact, strict=True))

    def _allowed(self, expected: np.ndarray) -> float:
        if not jnp.issubdtype(expected.dtype, jnp.floating):
            return 0.0
        values = np.abs(np.asarray(expected, np.float64))
        return self.tolerance * (1 + np.max(values, where=np.isfinite(values), initial=0.0))


def numbers_of(results: Any) -> list[np.ndarray]:
    """The leaves of results as NumPy arrays, of random keys their words."""
    leaves = jax.tree.leaves(results)
    keys = [jnp.issubdtype(jnp.result_type(x), jax.dtypes.prng_key) for x in leaves]
    return [np.asarray(jax.random.key_data(x) if key else x) for x, key in zip(leaves, keys, strict=True)]


def error_of(found: np.ndarray, expected: np.ndarray) -> float:
    """Largest difference; infinite where shape, dtype, or values that are not finite differ."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return np.inf
    if not jnp.issubdtype(expected.dtype, jnp.floating):
        return float(np.max(np.abs(found.astype(np.float64) - expected.astype(np.float64)), initial=0.0))
    a, b = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        return float(
            np.max(np.where(same, 0.0, np.nan_to_num(np.abs(a - b), nan=np.inf, posinf=np.inf)), initial=0.0)
        )


def _describe(position: int, found: np.ndarray, expected: np.ndarray, error: float) -> str:
    return (
        f"result {position} {expected.dtype}{list(expected.shape)}: differs by {error:.3g}\n"
        f"  one device: {np.asarray(expected).ravel()[:6]}\n  planned:    {np.asarray(found).ravel()[:6]}"
    )
