"""Plans as JSON: schema, limits, and the two directions."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from jaxplan._errors import PlanFileError
from jaxplan._verified import Verified
from jaxplan.cost import Collective, Prediction
from jaxplan.ir import Remat
from jaxplan.mesh import Layout, Topology

if TYPE_CHECKING:
    from jaxplan._plan import Plan

PLAN_SCHEMA = "jaxplan.plan"
FRONTIER_SCHEMA = "jaxplan.frontier"
PLAN_VERSION = 4
MAX_FILE_BYTES = 256 << 20
"""A larger file is refused before it is parsed."""


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """Plain data of a plan; the topology by its name and figures, layouts as lists of atomic axes."""
    prediction = plan.prediction
    return {
        "schema": PLAN_SCHEMA,
        "version": PLAN_VERSION,
        "name": plan.name,
        "summary": plan.summary,
        "topology": plan.topology.to_json(),
        "fingerprint": plan.fingerprint,
        "donate_argnums": plan.donate_argnums,
        "configurations": plan.configurations,
        "repeated": plan.repeated,
        "remat": None if plan.remat is None else asdict(plan.remat),
        "inputs": [
            leaf | {"aval": aval}
            for leaf, aval in zip(_leaves(plan.in_paths, plan.in_layouts), plan.in_avals, strict=True)
        ],
        "outputs": _leaves(plan.out_paths, plan.out_layouts),
        "lower_bound_seconds": plan.lower_bound_seconds,
        "gap": plan.gap,
        "most_configurations": plan.most_configurations,
        "verified": None if plan.verified is None else plan.verified.to_json(),
        "prediction": {
            "compute_seconds": prediction.compute_seconds,
            "communication_seconds": prediction.communication_seconds,
            "hidden_seconds": prediction.hidden_seconds,
            "flops": prediction.flops,
            "memory_bytes": prediction.memory_bytes,
            "memory_parts": dict(prediction.memory_parts),
            "collectives": [asdict(c) for c in prediction.collectives],
        },
    }


def plan_from_json(data: Any) -> dict[str, Any]:
    """Constructor arguments of a `Plan`.

    Raises:
      PlanFileError: the version is another, or a field is missing or malformed.
    """
    if not isinstance(data, dict) or data.get("schema") != PLAN_SCHEMA:
        raise PlanFileError(f"not a plan: expected an object with schema {PLAN_SCHEMA!r}")
    if data.get("version") != PLAN_VERSION:
        raise PlanFileError(
            f"plan has schema version {data.get('version')!r}, this jaxplan reads version {PLAN_VERSION}: "
            "plan again, or use the jaxplan that wrote it.\n"
            f'  expected: "version": {PLAN_VERSION}\n'
            "  likely cause: another version of jaxplan wrote the file"
        )
    try:
        return _fields(data)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise PlanFileError(
            f"plan file has a missing or malformed field: {type(error).__name__}: {error}"
        ) from error


def _fields(data: dict[str, Any]) -> dict[str, Any]:
    prediction = _read_prediction(data["prediction"])
    topology, donated = Topology.from_json(data["topology"]), data["donate_argnums"]
    in_paths, in_layouts = _read_leaves(data["inputs"])
    out_paths, out_layouts = _read_leaves(data["outputs"])
    configurations = tuple(tuple(_ints(axes) for axes in config) for config in data["configurations"])
    used = {a for config in configurations for axes in config for a in axes}
    used.update(a for layout in (*in_layouts, *out_layouts) for a in layout.used)
    used.update(a for c in prediction.collectives for a in c.axes)
    most = data["most_configurations"]
    if not used <= set(range(len(topology.axes))):
        raise ValueError(f"axes {sorted(used)} of a topology with {len(topology.axes)} atomic axes")
    return {
        "name": str(data["name"]),
        "summary": str(data["summary"]),
        "topology": topology,
        "fingerprint": str(data["fingerprint"]),
        "donate_argnums": None if donated is None else _ints(donated),
        "configurations": configurations,
        "repeated": _ints(data["repeated"]),
        "remat": _read_remat(data["remat"]),
        "in_paths": in_paths,
        "in_avals": tuple(str(item["aval"]) for item in data["inputs"]),
        "out_paths": out_paths,
        "in_layouts": in_layouts,
        "out_layouts": out_layouts,
        "lower_bound_seconds": _finite(data["lower_bound_seconds"]),
        "gap": None if data["gap"] is None else _finite(data["gap"]),
        "most_configurations": None if most is None else _ints([most])[0],
        "verified": None if data["verified"] is None else Verified.from_json(data["verified"]),
        "prediction": prediction,
    }


def _read_remat(data: Any) -> Remat | None:
    if data is None:
        return None
    num_all, num_contractions, of = _ints([data["num_all"], data["num_contractions"], data["of"]])
    return Remat(num_all=num_all, num_contractions=num_contractions, of=of)


def _read_prediction(data: Any) -> Prediction:
    collectives = tuple(
        Collective(
            kind=str(c["kind"]),
            axes=_ints(c["axes"]),
            num_bytes=int(c["num_bytes"]),
            count=int(c["count"]),
            latency_share=_finite(c["latency_share"]),
        )
        for c in data["collectives"]
    )
    return Prediction(
        compute_seconds=_finite(data["compute_seconds"]),
        communication_seconds=_finite(data["communication_seconds"]),
        hidden_seconds=_finite(data["hidden_seconds"]),
        flops=_finite(data["flops"]),
        memory_bytes=int(data["memory_bytes"]),
        memory_parts={str(k): int(v) for k, v in data["memory_parts"].items()},
        collectives=collectives,
    )


def _leaves(paths: tuple[str, ...], layouts: tuple[Layout, ...]) -> list[dict[str, Any]]:
    return [{"path": path, "layout": layout.dims} for path, layout in zip(paths, layouts, strict=True)]


def _read_leaves(items: Any) -> tuple[tuple[str, ...], tuple[Layout, ...]]:
    paths = tuple(str(item["path"]) for item in items)
    return paths, tuple(Layout(tuple(_ints(dim) for dim in item["layout"])) for item in items)


def _ints(values: Any) -> tuple[int, ...]:
    if not isinstance(values, list | tuple) or any(
        isinstance(v, bool) or not isinstance(v, int) for v in values
    ):
        raise TypeError(f"expected a list of integers, got {values!r}")
    return tuple(values)


def _finite(value: Any) -> float:
    number = float(value)
    if not 0 <= number < math.inf:
        raise ValueError(f"expected a finite number that is not negative, got {value!r}")
    return number
