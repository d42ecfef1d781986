"""A plan in stages: parts of the step on devices of their own, each with a plan of its own."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxplan.core._units import format_bytes, format_seconds
from jaxplan.errors import UnsupportedError
from jaxplan.frontend._backend import check_backend
from jaxplan.plans._plan import Plan
from jaxplan.plans._plan_data import PlanData
from jaxplan.plans._stage_data import Stage, dispatch_order, simulated
from jaxplan.plans._stage_timeline import save_passes
from jaxplan.plans._staged_json import STAGED_SCHEMA, staged_from_json, staged_to_json
from jaxplan.simulate import PipelineRun

if TYPE_CHECKING:
    import jax

    from jaxplan.audit import Audit
    from jaxplan.ir.stages import Cut, Part
    from jaxplan.partition.stages import StagedFunction

_NOT_WHOLE_MSG = (
    "{method} is of one program, and this plan runs its step in {stages} stages, each a program of its own.\n"
    "  fix: {method} of a stage's plan: plan.stages[0].plan"
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class StagedPlan(Plan):
    """A plan in stages (docs/stages.md); `jaxplan.Plan` describes the fields that are not listed.

    Attributes:
      stages: in the order of the forward pass; each has a plan on the topology of its devices.
      schedule: the order in which they work on micro-batches, ``1f1b`` or ``gpipe``.
      in_stages: of each argument, the stage that it lives in.
      bubble: predicted share of the devices' time in which they wait for other stages.
      cut, parts: the step in stages, and the program of each; None and empty in a plan that was loaded without its
        step.
    """

    stages: tuple[Stage, ...] = ()
    schedule: str = "1f1b"
    in_stages: tuple[int, ...] = ()
    bubble: float = 0.0
    cut: Cut | None = None
    parts: tuple[Part, ...] = ()

    @property
    def summary(self) -> str:
        """One line, such as ``4 stages of 2 devices, 8 micro-batches (1f1b, bubble 27%): data 2``."""
        counts = list(dict.fromkeys(stage.num_devices for stage in self.stages))
        of = " and ".join(map(str, counts))
        inside = " | ".join(dict.fromkeys(stage.plan.summary for stage in self.stages))
        micro = f"{self.num_microbatches} micro-batches ({self.schedule}, bubble {self.bubble:.0%})"
        return f"{len(self.stages)} stages of {of} device{'s' if counts != [1] else ''}, {micro}: {inside}"

    @property
    def num_microbatches(self) -> int:
        assert self.microbatches is not None
        return self.microbatches.num

    def is_same_program(self, other: PlanData) -> bool:
        if not isinstance(other, StagedPlan) or len(other.stages) != len(self.stages):
            return False
        alike = all(
            (a.first_device, a.start) == (b.first_device, b.start) and a.plan.is_same_program(b.plan)
            for a, b in zip(self.stages, other.stages, strict=True)
        )
        return alike and (self.schedule, self.microbatches) == (other.schedule, other.microbatches)

    def simulate(self) -> PipelineRun:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The passes of all stages on the execution simulator: streams are the stages, then the links between them."""
        return simulated(self.stages, self.schedule, self.num_microbatches)

    def _in_shardings(self, mesh: Any) -> list[Any]:
        from jaxplan.partition.stages import argument_shardings, stage_meshes

        self.require_program()
        return argument_shardings(self, stage_meshes(self, self._devices(mesh)))

    def out_shardings(self, mesh: jax.sharding.Mesh | None = None) -> Any:
        from jaxplan.partition.stages import argument_shardings, result_shardings, stage_meshes

        self.require_program()
        meshes = stage_meshes(self, self._devices(mesh))
        return self._out_tree(result_shardings(self, meshes, argument_shardings(self, meshes)))

    def _devices(self, mesh: Any) -> list[Any]:
        return list((self.mesh() if mesh is None else mesh).devices.flat)

    def jit(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        devices: Sequence[Any] | None = None,
        backend: str = "jit",
        donate_argnums: Sequence[int] | None = None,
    ) -> StagedFunction:
        """The step, running in stages; arguments as for `Plan.jit`.

        Raises:
          ArgumentError: another backend than ``"jit"``.
          PlanMismatchError: the plan has no program, or there are too few devices.
          UnsupportedError: the devices belong to several processes.
        """
        from jaxplan.partition.stages import StagedFunction

        self.require_program()
        tasks = dispatch_order(len(self.stages), self.schedule, self.num_microbatches)
        order = [(task.stage, task.micro_batch, task.phase == "backward") for task in tasks]
        return StagedFunction(self, devices, order, donate_argnums, check_backend(backend))

    def init(
        self, init_fn: Callable[..., Any], *args: Any, devices: Sequence[Any] | None = None, **kwargs: Any
    ) -> Any:
        from jaxplan.partition.stages import create_in_stages

        self.require_program()
        return create_in_stages(self, self._devices(self.mesh(devices)), init_fn, args, kwargs)

    def batch(self, part: Any, devices: Sequence[Any] | None = None) -> Any:
        """The batch on the devices of the stages that read it; one process has all of it."""
        import jax

        del devices
        return jax.device_put(part, self.batch_sharding)

    def batches(
        self, parts: Iterable[Any], *, prefetch: int = 1, devices: Sequence[Any] | None = None
    ) -> Iterator[Any]:
        del prefetch  # placing is asynchronous
        return (self.batch(part, devices) for part in parts)

    def explain(self, path: str | None = None) -> str:
        """The stages, and the plan of each; with ``path`` the arguments of that pattern, stage by stage."""
        if path is not None:
            raise self._refused("explain(path)")
        lines = [
            f"{self.name} on {self.topology.name}: {self.summary}",
            f"time    {format_seconds(self.time_seconds)}, of which the devices wait {self.bubble:.1%}",
            f"memory  {format_bytes(self.memory_bytes)} on the fullest device",
        ]
        for number, stage in enumerate(self.stages):
            lines += [f"stage {number}: {_described(stage)}"]
            lines += [f"  {line}" for line in stage.plan.explain().splitlines()]
        return "\n".join(lines)

    def audit(self, cache_dir: Any = None, backend: str = "jit") -> tuple[Audit, ...]:  # pyright: ignore
        """Compile the part of each stage in one piece, for the topology of its devices; one audit a stage.

        Compared are the bytes of one micro-batch in flight.
        """
        return tuple(stage.plan.audit(cache_dir, backend) for stage in self.stages)

    def export(self, path: Any, *, names: Any = None, backend: str = "jit") -> None:
        raise self._refused("export")

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.explain())}</pre>"

    def compile_report(self, cache_dir: Any = None, backend: str = "jit") -> Any:
        raise self._refused("compile_report")

    def diff(self, other: Plan) -> Any:
        raise self._refused("diff")

    def save_timeline(self, path: Any) -> None:
        """Write the simulated passes as JSON for Perfetto (https://ui.perfetto.dev) or chrome://tracing."""
        save_passes(self.simulate(), len(self.stages), path)

    def _refused(self, method: str) -> UnsupportedError:
        return UnsupportedError(_NOT_WHOLE_MSG.format(method=method, stages=len(self.stages)))

    def to_json(self) -> dict[str, Any]:
        return staged_to_json(self)

    @classmethod
    def from_json(cls, data: Any) -> StagedPlan:
        """Read the output of `to_json`; the plan has no program."""
        return cls(**staged_from_json(data))


def _described(stage: Stage) -> str:
    """Devices, seconds and bytes of a stage."""
    devices = stage.devices
    return (
        f"devices {devices[0]} to {devices[-1]}, forward {format_seconds(stage.forward_seconds)}, backward "
        f"{format_seconds(stage.backward_seconds)}, update {format_seconds(stage.update_seconds)}, send "
        f"{format_seconds(stage.send_seconds)}; {stage.in_flight} micro-batches of {format_bytes(stage.held_bytes)} in "
        f"flight, {format_bytes(stage.memory_bytes)} in all"
    )


def any_plan_from_json(data: Any) -> Plan:
    """A plan of either kind, without its program.

    Raises:
      PlanFileError: it is no plan, or malformed.
    """
    is_staged = isinstance(data, Mapping) and data.get("schema") == STAGED_SCHEMA
    return StagedPlan.from_json(data) if is_staged else Plan.from_json(data)
