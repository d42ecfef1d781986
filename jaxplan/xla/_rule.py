"""The form of a rule on the compiler: name, backends, stage, source, and the models that it was made after."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from jaxplan.xla._effects import Effect
from jaxplan.xla._facts import Facts
from jaxplan.xla._target import Arithmetic, Backend, Target

Stage = Literal["storage", "kernels", "fusion", "residuals", "schedule", "liveness", "reuse", "layouts", "heap", "work"]
STAGES: tuple[Stage, ...] = (
    "storage",
    "kernels",
    "fusion",
    "residuals",
    "schedule",
    "liveness",
    "reuse",
    "layouts",
    "heap",
    "work",
)
"""The passes of the model in their order: how arrays lie in memory, which values are buffers, when these live, the
copies beside them, the heap; and last the rules that change the number of operations."""
ALL: tuple[Backend, ...] = ("gpu", "tpu", "cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A number that was chosen by compiled programs, in place of the URL of a compiler pass.

    Attributes:
      value: the number.
      unit: of the number; empty for a count or a share.
      evidence: the programs by which it was chosen.
      command: measures it again.
    """

    value: float
    unit: str
    evidence: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Behaviour of a compiler without public source, seen in compiled programs.

    Attributes:
      evidence: the programs that show it.
      command: compiles them again.
    """

    evidence: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilerRule:
    """One thing that XLA does, which decides buffers, their bytes, their live ranges or the work.

    Attributes:
      name: as in ``python -m benchmarks.accuracy.ablation --without NAME``.
      backends: the backends of XLA that do it.
      arithmetic: only where element-wise arithmetic on bfloat16 runs so; None for either.
      stage: the pass of the model that it belongs to.
      does: effect of the compiler pass, one sentence.
      source: URL of the compiler pass, or the measurement of the rule.
      made_after: models (`benchmarks.accuracy`) that it was made after; they are left out when it is judged.
      test: file of the tests, and one of them.
      find: its effects on a step.
      priority: a rule overrules others of its stage of less; those of equal priority must not disagree.
    """

    name: str
    backends: tuple[Backend, ...]
    stage: Stage
    does: str
    source: str | Fitted | Observed
    made_after: tuple[str, ...]
    test: str
    find: Callable[[Facts], Iterable[Effect]]
    arithmetic: Arithmetic | None = None
    priority: int = 0

    def applies_to(self, target: Target) -> bool:
        """Whether the rule is one of a target's, and is not left out there."""
        is_its = target.backend in self.backends and self.arithmetic in (None, target.arithmetic)
        return is_its and self.name not in target.without


def always(*effects: Effect) -> Callable[[Facts], Iterable[Effect]]:
    """The same effects on every step: behaviour towards values that a plan reshards."""
    return lambda facts: effects


XLA = "https://github.com/openxla/xla/blob/main/xla/"
"""Where the public passes of the compiler are."""
JAXPLAN_LOWERING = "docs/lowering.md"
"""Source of effects that the lowering of `jaxplan.partition` asks the compiler for."""


def zoo(topology: str, *models: str) -> str:
    """The command that compiles the reference plans of models again, and prints predictions beside them."""
    return " ".join(["python -m benchmarks.accuracy --topology", topology, *(f"--model {m}" for m in models)])
