"""Plans in stages as JSON: the plan of each stage as any plan file has it, and how they make a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from jaxplan.core._json import MalformedError, required, typed
from jaxplan.cost import Prediction
from jaxplan.errors import PlanFileError
from jaxplan.ir import MicroBatches
from jaxplan.mesh import Sharding, Topology
from jaxplan.plans._outline import Outline
from jaxplan.plans._plan import Plan
from jaxplan.plans._plan_json import plan_from_json, plan_to_json
from jaxplan.plans._stage_data import SCHEDULES, Stage

STAGED_SCHEMA = "jaxplan.staged_plan"
STAGED_VERSION = 1
_MALFORMED_MSG = (
    "plan file has a missing or malformed field: {error}.\n"
    "  expected: the fields that Plan.save writes\n"
    "  likely cause: the file was edited\n"
    "  fix: save the plan again, or plan again with jaxplan.plan"
)
_VERSION_MSG = (
    "the plan file has schema version {given!r} of plans in stages, and this jaxplan reads {newest}.\n"
    "  fix: plan again, or use the jaxplan that wrote it"
)
_NUMBERS = tuple(field.name for field in fields(Stage) if field.name != "plan")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Numbers:
    """The fields of a stage beside its plan."""

    first_device: int
    start: int
    once_seconds: float
    forward_seconds: float
    backward_seconds: float
    update_seconds: float
    send_seconds: float
    held_bytes: int
    received_bytes: int
    in_flight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Saved:
    """The fields of a file that need no more than their type."""

    name: str
    fingerprint: str
    donate_argnums: tuple[int, ...] | None
    in_paths: tuple[str, ...]
    in_avals: tuple[str, ...]
    in_roles: tuple[str, ...]
    in_dims: tuple[tuple[str, ...], ...]
    argument_names: tuple[str, ...]
    out_paths: tuple[str, ...]
    outline: Outline
    prediction: Prediction
    microbatches: MicroBatches
    schedule: str
    in_stages: tuple[int, ...]
    bubble: float


def staged_to_json(plan: Any) -> dict[str, Any]:
    """Plain data of a plan in stages."""
    saved = {field.name: getattr(plan, field.name) for field in fields(_Saved)}
    saved |= {name: asdict(saved[name]) for name in ("outline", "prediction", "microbatches")}
    return {
        "schema": STAGED_SCHEMA,
        "version": STAGED_VERSION,
        **saved,
        "topology": plan.topology.to_json(),
        "in_layouts": [sharding.dims for sharding in plan.input_shardings],
        "out_layouts": [sharding.dims for sharding in plan.output_shardings],
        "stages": [
            {"plan": plan_to_json(stage.plan)} | {name: getattr(stage, name) for name in _NUMBERS}
            for stage in plan.stages
        ],
    }


def staged_from_json(data: Any) -> dict[str, Any]:
    """Constructor arguments of a `StagedPlan`.

    Raises:
      PlanFileError: the version is unknown, or a field is missing or malformed.
    """
    if not isinstance(data, dict) or data.get("schema") != STAGED_SCHEMA:
        raise PlanFileError(f"not a plan in stages: expected an object with schema {STAGED_SCHEMA!r}")
    if data.get("version") != STAGED_VERSION:
        raise PlanFileError(_VERSION_MSG.format(given=data.get("version"), newest=STAGED_VERSION))
    try:
        return _read(data)
    except (MalformedError, ValueError) as error:
        raise PlanFileError(_MALFORMED_MSG.format(error=error)) from error


def _read(data: Mapping[str, Any]) -> dict[str, Any]:
    names = [field.name for field in fields(_Saved)]
    saved = typed(_Saved, {name: required(data, name) for name in names}, "plan")
    dims = tuple[tuple[tuple[int, ...], ...], ...]
    shardings = {
        field: tuple(map(Sharding, typed(dims, required(data, name), name)))
        for field, name in (("input_shardings", "in_layouts"), ("output_shardings", "out_layouts"))
    }
    stages = tuple(_stage(item) for item in typed(tuple[dict[str, Any], ...], required(data, "stages"), "stages"))
    topology = Topology.from_json(required(data, "topology"))
    _check(saved, shardings, stages, topology)
    return {
        **{name: getattr(saved, name) for name in names},
        **shardings,
        "topology": topology,
        "stages": stages,
        "configurations": (),
        "repeated": (),
        "lower_bound_seconds": 0.0,
    }


def _stage(item: dict[str, Any]) -> Stage:
    numbers = typed(_Numbers, {name: required(item, name) for name in _NUMBERS}, "stage")
    plan = Plan(**plan_from_json(required(item, "plan")))
    return Stage(plan=plan, **{name: getattr(numbers, name) for name in _NUMBERS})


def _check(
    saved: _Saved, shardings: Mapping[str, tuple[Sharding, ...]], stages: tuple[Stage, ...], topology: Topology
) -> None:
    """The stages are at least two, on devices that the machine has, and every argument lives in one."""
    count, given = len(saved.in_paths), (len(saved.in_avals), len(saved.in_stages), len(shardings["input_shardings"]))
    ends = [stage.devices.stop for stage in stages]
    if saved.schedule not in SCHEDULES:
        raise MalformedError(f"schedule is {saved.schedule!r}; expected one of {', '.join(SCHEDULES)}")
    if len(stages) < 2 or saved.microbatches.num < 2 or max(ends) > topology.num_devices:
        raise MalformedError(f"{len(stages)} stages on devices up to {max(ends, default=0)} of {topology.num_devices}")
    if any(of != count for of in given) or len(shardings["output_shardings"]) != len(saved.out_paths):
        raise MalformedError(f"{count} arguments, and {given} types, stages and shardings of them")
    if any(not 0 <= s < len(stages) for s in saved.in_stages):
        raise MalformedError(f"in_stages is {saved.in_stages}, and there are {len(stages)} stages")


