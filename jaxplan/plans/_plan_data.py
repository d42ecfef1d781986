"""The decisions and predictions of a plan as data; `jaxplan.plans._plan` adds the calls that run, show and save it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jaxplan.core._once import Once
from jaxplan.cost import MemoryInterval, Prediction, memory_interval
from jaxplan.errors import PlanMismatchError
from jaxplan.ir import Configuration, LoopRemat, MicroBatches, Offload, Remat, SortBlocks, StepGraph
from jaxplan.ir.attention import Sequences
from jaxplan.mesh import Sharding, Topology
from jaxplan.partition import Lowering, Verified
from jaxplan.plans._outline import Outline
from jaxplan.plans._pinned import Pinned

if TYPE_CHECKING:
    from jaxplan.simulate import Simulation

_DECISIONS = (
    "fingerprint", "topology", "configurations", "repeated", "remat", "offload", "donate_argnums", "input_shardings",
    "output_shardings",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanData:
    """How one step runs on one topology; `jaxplan.Plan` describes the fields."""

    name: str
    topology: Topology
    fingerprint: str
    configurations: tuple[Configuration, ...]
    repeated: tuple[int, ...]
    donate_argnums: tuple[int, ...] | None
    in_paths: tuple[str, ...]
    in_avals: tuple[str, ...]
    in_roles: tuple[str, ...]
    in_dims: tuple[tuple[str, ...], ...]
    out_paths: tuple[str, ...]
    input_shardings: tuple[Sharding, ...]
    output_shardings: tuple[Sharding, ...]
    prediction: Prediction
    lower_bound_seconds: float
    outline: Outline
    gap: float | None = None
    most_configurations: int | None = None
    remat: Remat | None = None
    microbatches: MicroBatches | None = None
    sequences: Sequences | None = None
    offload: Offload | None = None
    recomputed_loops: LoopRemat | None = None
    sort_blocks: SortBlocks | None = None
    argument_names: tuple[str, ...] = ()
    not_kept: tuple[str, ...] = ()
    pins: tuple[Pinned, ...] = ()
    verified: Verified | None = None
    graph: StepGraph | None = None
    decided: Once[Lowering] | None = None

    @property
    def summary(self) -> str:
        """One line on the splits, such as ``data 4 x tensor 2, optimizer state sharded 8 ways``."""
        rewritten = self.recomputed_loops, self.sequences, self.sort_blocks, self.microbatches, self.offload
        parts = self.outline, *rewritten
        return ", ".join(map(str, filter(None, parts)))

    @property
    def stages(self) -> tuple[Any, ...]:
        """The parts of the step that run on devices of their own (docs/stages.md); none: it runs as a whole."""
        return ()

    @property
    def time_seconds(self) -> float:
        """Predicted seconds of a step: compute, communication less its hidden part, and the link to the host."""
        return self.compute_seconds + self.communication_seconds - self.hidden_seconds + self.host_seconds

    @property
    def compute_seconds(self) -> float:
        return self.prediction.compute_seconds

    @property
    def communication_seconds(self) -> float:
        """Seconds of the predicted collectives; where verified, of those that the compiled program has."""
        found = self.verified
        if found is None or found.communication_seconds is None:
            return self.prediction.communication_seconds
        return found.communication_seconds

    @property
    def host_seconds(self) -> float:
        """Predicted seconds on the link to the host, for arguments that live there."""
        return self.prediction.host_seconds

    @property
    def host_bytes(self) -> int:
        """Bytes of a device's arguments that live in the memory of the host; they are not in `memory_bytes`."""
        return self.prediction.host_bytes

    @property
    def hidden_seconds(self) -> float:
        """Seconds of communication beside compute, as simulated; ``overlap=False`` counts none but a ring's."""
        return min(self.prediction.hidden_seconds, self.communication_seconds)

    @property
    def overlapped(self) -> bool:
        """Whether its seconds count communication that runs beside compute; with ``overlap=False`` they are a sum."""
        return self.prediction.overlapped

    @property
    def memory_bytes(self) -> int:
        """Peak per device: arguments + outputs - aliased + temporaries; predicted, and compiled where verified."""
        return self.prediction.memory_bytes if self.verified is None else self.verified.memory_bytes

    @property
    def memory_interval(self) -> MemoryInterval | None:
        """The error of predicted memory for plans of this kind; None where none was measured, as for stages."""
        return None if self.stages else memory_interval(self.topology.chip.aot_platform, searched=self.name == "plan")

    @property
    def memory_interval_bytes(self) -> tuple[int, int] | None:
        """Bytes per device between which nine of ten compiled plans like this one lie (docs/measured.md).

        Compiled plans are exact: both bounds are `memory_bytes`. None where no plan of the platform was compiled.
        """
        if self.verified is not None:
            return self.memory_bytes, self.memory_bytes
        found = self.memory_interval
        return None if found is None else found.of(self.memory_bytes)

    @property
    def verified_memory_bytes(self) -> int | None:
        """Peak per device of the compiled program; None unless verified."""
        return None if self.verified is None else self.verified.memory_bytes

    @property
    def memory_parts(self) -> Mapping[str, int]:
        """Bytes of the predicted peak by kind of array."""
        return self.prediction.memory_parts

    @property
    def lowering(self) -> Lowering:
        """The lowering decisions: shardings, transfers, order constraints and barriers; decided when first asked for.

        Raises:
          PlanMismatchError: the plan was loaded from an older file without its step.
        """
        if self.decided is None:
            self.require_program()
            raise AssertionError("a plan with a program has lowering decisions")
        return self.decided.get()

    def __repr__(self) -> str:
        return (
            f"Plan({self.name!r} on {self.topology.name}: {self.time_seconds * 1e3:.4g} ms, "
            f"{self.memory_bytes / 2**30:.3f} GiB per device; {self.summary})"
        )

    def is_same_program(self, other: PlanData) -> bool:
        """Whether another plan has the same decisions as this one; predictions and proofs may differ."""
        return all(getattr(self, name) == getattr(other, name) for name in _DECISIONS)

    def require_program(self) -> StepGraph:
        """The analysed program, or a clear error for a plan that was loaded without its step."""
        if self.graph is None:
            raise PlanMismatchError(
                "this plan was loaded without its program and cannot run.\n"
                "  expected: the step it was made for\n"
                "  fix: jaxplan.load(path, step, *example_args) checks the fingerprint and binds the program"
            )
        return self.graph

    def simulate(self) -> Simulation:
        """Run one step on the execution simulator: communication beside compute, where the plan lets it.

        ``time_seconds`` of the result is that of the plan, unless it was searched with ``overlap=False`` or verified.
        It lies between the larger of compute and communication, and their sum; ``memory_bytes`` counts gathers that
        are made ahead. `docs/prediction.md` lists the assumptions.

        Raises:
          PlanMismatchError: the plan has no program.
        """
        from jaxplan.simulate import simulate_plan

        return simulate_plan(self.require_program(), self.topology, self.configurations, self.repeated)
