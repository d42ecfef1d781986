"""Joint plans as JSON: the plan of each step as any plan file has it, and the arrays they share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jaxplan.core._json import MalformedError, required, typed
from jaxplan.errors import PlanFileError
from jaxplan.plans._plan import Plan

JOINT_SCHEMA = "jaxplan.joint_plan"
JOINT_VERSION = 1
_VERSION_MSG = (
    "the plan file has schema version {given!r} of joint plans, and this jaxplan reads {newest}.\n"
    "  fix: plan again with jaxplan.plan_together, or use the jaxplan that wrote it"
)
_MALFORMED_MSG = (
    "plan file has a missing or malformed field: {error}.\n"
    "  expected: the fields that JointPlan.save writes\n"
    "  likely cause: the file was edited\n"
    "  fix: save the joint plan again, or plan again with jaxplan.plan_together"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Saved:
    """The fields of a file beside the plans; see `jaxplan.JointPlan`."""

    name: str
    weights: Mapping[str, float]
    resident_bytes: Mapping[str, int]
    shared: tuple[Mapping[str, str], ...]
    lower_bound_seconds: float


_NAMES = ("name", "weights", "resident_bytes", "shared", "lower_bound_seconds")


def joint_to_json(joint: Any) -> dict[str, Any]:
    """Plain data of a joint plan; the steps in their order."""
    return {
        "schema": JOINT_SCHEMA,
        "version": JOINT_VERSION,
        "name": joint.name,
        "steps": list(joint.plans),
        "plans": {step: plan.to_json() for step, plan in joint.plans.items()},
        "weights": dict(joint.weights),
        "resident_bytes": dict(joint.resident_bytes),
        "shared": [dict(paths) for paths in joint.shared],
        "lower_bound_seconds": joint.lower_bound_seconds,
    }


def joint_from_json(data: Any, read: Callable[[str, Any], Plan]) -> dict[str, Any]:
    """Constructor arguments of a `JointPlan`; ``read`` makes the plan of a step of its data.

    Raises:
      PlanFileError: the version is unknown, or a field is missing or malformed.
    """
    if not isinstance(data, dict) or data.get("schema") != JOINT_SCHEMA:
        raise PlanFileError(f"not a joint plan: expected an object with schema {JOINT_SCHEMA!r}")
    if data.get("version") != JOINT_VERSION:
        raise PlanFileError(_VERSION_MSG.format(given=data.get("version"), newest=JOINT_VERSION))
    try:
        saved = typed(_Saved, {name: required(data, name) for name in _NAMES}, "joint plan")
        steps = typed(tuple[str, ...], required(data, "steps"), "steps")
        plans = typed(Mapping[str, Any], required(data, "plans"), "plans")
        _check(saved, steps, plans)
    except MalformedError as error:
        raise PlanFileError(_MALFORMED_MSG.format(error=error)) from error
    bound = {step: read(step, plans[step]) for step in steps}
    machines = {plan.topology.name for plan in bound.values()}
    if len(machines) > 1:
        error = f"steps on {', '.join(sorted(machines))}; expected one machine"
        raise PlanFileError(_MALFORMED_MSG.format(error=error))
    return {
        "plans": bound,
        "name": saved.name,
        "weights": _in_order(saved.weights, steps),
        "resident_bytes": _in_order(saved.resident_bytes, steps),
        "shared": tuple(_in_order(paths, steps) for paths in saved.shared),
        "lower_bound_seconds": saved.lower_bound_seconds,
    }


def _in_order(of: Mapping[str, Any], steps: tuple[str, ...]) -> dict[str, Any]:
    """The steps in the order in which they were planned; files have them sorted."""
    return {step: of[step] for step in steps if step in of}


def _check(saved: _Saved, steps: tuple[str, ...], plans: Mapping[str, Any]) -> None:
    """All fields are of the same steps, of which there are at least two."""
    if len(steps) < 2 or len(set(steps)) != len(steps):
        raise MalformedError(f"steps is {list(steps)}; expected at least two names")
    for name, found in (("plans", plans), ("weights", saved.weights), ("resident_bytes", saved.resident_bytes)):
        if set(found) != set(steps):
            raise MalformedError(f"{name} has {', '.join(sorted(found)) or 'no steps'}; expected {', '.join(steps)}")
    unknown = {step for paths in saved.shared for step in paths} - set(steps)
    if unknown:
        raise MalformedError(f"shared names {', '.join(sorted(unknown))}; the steps are {', '.join(steps)}")
