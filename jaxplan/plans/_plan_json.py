"""Plans as JSON: schema, limits, and the two directions."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from jaxplan.core._json import MOST_INT, MalformedError, required, typed, whole
from jaxplan.core._once import Once
from jaxplan.cost import Prediction
from jaxplan.errors import PlanFileError
from jaxplan.ir import Configuration, LoopRemat, MicroBatches, Offload, Remat, SortBlocks
from jaxplan.ir.attention import FORMS, Sequences
from jaxplan.mesh import COLLECTIVES, Sharding, Topology
from jaxplan.partition import Lowering, Verified, lowering_from_json, lowering_to_json
from jaxplan.plans._migrations import PLAN_VERSION, migrated
from jaxplan.plans._outline import Outline
from jaxplan.plans._pinned import pins_from_json
from jaxplan.plans._plan_data import PlanData

PLAN_SCHEMA = "jaxplan.plan"
FRONTIER_SCHEMA = "jaxplan.frontier"
_AVAL = re.compile(r".+\[((?:\d+(?:,\d+)*)?)\]")
"""Such as ``float32[16,32]``, the shape in brackets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Output:
    """A result: its key path, and the atomic axes that split each dimension."""

    path: str
    layout: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Input(_Output):
    """An argument: besides, dtype and shape, its role, and names of its dimensions."""

    aval: str
    role: str
    dims: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Saved:
    """The fields of a plan file that need no more than their type; see `jaxplan.Plan`."""

    name: str
    outline: Outline
    fingerprint: str
    configurations: tuple[Configuration, ...]
    repeated: tuple[int, ...]
    remat: Remat | None
    lower_bound_seconds: float
    gap: float | None
    most_configurations: int | None
    verified: Verified | None
    prediction: Prediction


def plan_to_json(plan: PlanData) -> dict[str, Any]:
    """Plain data of a plan; the topology by its name and figures, layouts as lists of atomic axes."""
    prediction = plan.prediction
    data = {
        "schema": PLAN_SCHEMA,
        "version": PLAN_VERSION,
        "name": plan.name,
        "outline": asdict(plan.outline),
        "topology": plan.topology.to_json(),
        "fingerprint": plan.fingerprint,
        "donate_argnums": plan.donate_argnums,
        "configurations": plan.configurations,
        "repeated": plan.repeated,
        "remat": None if plan.remat is None else asdict(plan.remat),
        **({} if plan.microbatches is None else {"microbatches": asdict(plan.microbatches)}),
        **({} if plan.sequences is None else {"sequences": asdict(plan.sequences)}),
        **({} if plan.recomputed_loops is None else {"recomputed_loops": asdict(plan.recomputed_loops)}),
        **({} if plan.sort_blocks is None else {"sort_blocks": plan.sort_blocks.num}),
        **({} if plan.offload is None else {"offload": asdict(plan.offload)}),
        **({"argument_names": plan.argument_names} if plan.argument_names else {}),
        **({"not_kept": plan.not_kept} if plan.not_kept else {}),
        **({"pins": [asdict(pin) for pin in plan.pins]} if plan.pins else {}),
        "inputs": [
            leaf | {"aval": aval, "role": role, "dims": dims}
            for leaf, aval, role, dims in zip(
                _leaves(plan.in_paths, plan.input_shardings), plan.in_avals, plan.in_roles, plan.in_dims, strict=True
            )
        ],
        "outputs": _leaves(plan.out_paths, plan.output_shardings),
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
            **({} if plan.offload is None else _on_host(prediction)),
            **({"overlapped": True} if prediction.overlapped else {}),
        },
    }
    lowering = None if plan.decided is None else lowering_to_json(plan.lowering, _decided_for(data))
    return {**data, "lowering": lowering}


def _decided_for(data: Mapping[str, Any]) -> list[Any]:
    """The fields of a plan file that its lowering decisions belong to."""
    names = ("fingerprint", "configurations", "repeated", "remat", "inputs", "outputs")
    host = [] if data.get("offload") is None else [data["offload"]]
    return [required(data, name) for name in names] + host


def _on_host(prediction: Prediction) -> dict[str, Any]:
    return {"host_seconds": prediction.host_seconds, "host_bytes": prediction.host_bytes}


def _leaves(paths: tuple[str, ...], shardings: tuple[Sharding, ...]) -> list[dict[str, Any]]:
    return [{"path": path, "layout": layout.dims} for path, layout in zip(paths, shardings, strict=True)]


def plan_from_json(data: Any) -> dict[str, Any]:
    """Constructor arguments of a `Plan`.

    Raises:
      PlanFileError: the version is unknown or too old, or a field is missing or malformed.
    """
    if not isinstance(data, dict) or data.get("schema") != PLAN_SCHEMA:
        raise PlanFileError(f"not a plan: expected an object with schema {PLAN_SCHEMA!r}")
    data = migrated(data)
    try:
        return _fields(data)
    except ValueError as error:  # errors of malformed JSON, topologies and layouts are all ValueErrors
        raise PlanFileError(
            f"plan file has a missing or malformed field: {error}.\n"
            "  expected: the fields that Plan.save writes\n"
            "  likely cause: the file was edited\n"
            "  fix: save the plan again, or plan again with jaxplan.plan"
        ) from error


def _fields(data: dict[str, Any]) -> dict[str, Any]:
    names = [field.name for field in fields(_Saved)]
    saved = typed(_Saved, {name: required(data, name) for name in names}, "plan")
    inputs = typed(tuple[_Input, ...], _with_names(required(data, "inputs")), "inputs")
    outputs = typed(tuple[_Output, ...], required(data, "outputs"), "outputs")
    topology = Topology.from_json(required(data, "topology"))
    for leaf in inputs:
        _check_sharding(leaf, topology)
    input_shardings = tuple(Sharding(leaf.layout) for leaf in inputs)
    output_shardings = tuple(Sharding(leaf.layout) for leaf in outputs)
    _check_axes(saved, (*input_shardings, *output_shardings), len(topology.axes))
    return {
        **{name: getattr(saved, name) for name in names},
        "topology": topology,
        "microbatches": _microbatches(data.get("microbatches"), {leaf.path for leaf in inputs}),
        "sequences": _sequences(data.get("sequences")),
        "recomputed_loops": _recomputed_loops(data.get("recomputed_loops")),
        "sort_blocks": _sort_blocks(data.get("sort_blocks")),
        "offload": _offload(data.get("offload"), len(inputs), len(outputs)),
        "argument_names": typed(tuple[str, ...], data.get("argument_names", ()), "argument_names"),
        "not_kept": typed(tuple[str, ...], data.get("not_kept", ()), "not_kept"),
        "pins": pins_from_json(data.get("pins"), {leaf.path for leaf in inputs}),
        "donate_argnums": _donate_argnums(required(data, "donate_argnums")),
        "in_paths": tuple(leaf.path for leaf in inputs),
        "in_avals": tuple(leaf.aval for leaf in inputs),
        "in_roles": tuple(leaf.role for leaf in inputs),
        "in_dims": tuple(leaf.dims for leaf in inputs),
        "out_paths": tuple(leaf.path for leaf in outputs),
        "input_shardings": input_shardings,
        "output_shardings": output_shardings,
        "decided": _decided(data),
    }


def _microbatches(value: Any, paths: Collection[str]) -> MicroBatches | None:
    """The slices of the batch; files without the field have none."""
    if value is None:
        return None
    found = typed(MicroBatches, value, "microbatches")
    if found.num < 2 or not found.dims or not set(found.dims) <= set(paths) or min(found.dims.values()) < 0:
        raise MalformedError(f"microbatches is {value!r}; expected at least 2 and dimensions of inputs by path")
    return found


def _sequences(value: Any) -> Sequences | None:
    """How attention is worked through; files without the field have it as the step says."""
    if value is None:
        return None
    found = typed(Sequences, value, "sequences")
    if found.parts < 1 or found.form not in FORMS:
        raise MalformedError(f"sequences is {value!r}; expected a form of {FORMS} and at least one part")
    return found


def _recomputed_loops(value: Any) -> LoopRemat | None:
    """Recomputed layers of loops; files without the field have none, and earlier ones the policy alone."""
    if value is None:
        return None
    return typed(LoopRemat, {"policy": value} if isinstance(value, str) else value, "recomputed_loops")


def _sort_blocks(value: Any) -> SortBlocks | None:
    """The blocks in which rows are sorted; files without the field have none."""
    if value is None:
        return None
    if (num := typed(int, value, "sort_blocks")) < 2:
        raise MalformedError(f"sort_blocks is {value!r}; expected at least 2")
    return SortBlocks(num=num)


def _offload(value: Any, num_inputs: int, num_outputs: int) -> Offload | None:
    """The arguments on the host; files without the field have none."""
    if value is None:
        return None
    found = typed(Offload, value, "offload")
    inputs, outputs = found.inputs, found.outputs
    is_ascending = list(inputs) == sorted(set(inputs)) and len(inputs) == len(outputs) == len(set(outputs))
    is_ascending = is_ascending and list(found.parameters) == sorted(set(found.parameters))
    is_known = all(i < num_inputs for i in found.arguments) and all(o < num_outputs for o in outputs)
    if not (found.arguments or found.regions) or not is_ascending or not is_known or found.regions > found.regions_of:
        raise MalformedError(f"offload is {value!r}; expected numbers of inputs, ascending, and of their successors")
    return found


def _decided(data: Mapping[str, Any]) -> Once[Lowering] | None:
    """The lowering decisions; None: the file is older than they are, or was written from one."""
    lowering = required(data, "lowering")
    return None if lowering is None else Once.of(lowering_from_json(lowering, _decided_for(data)))


def _with_names(inputs: Any) -> Any:
    """Inputs of files that lack the kinds of arguments and the names of their dimensions, without such names."""
    if not isinstance(inputs, list):
        return inputs
    return [
        {"role": "", "dims": [""] * len(leaf["layout"]), **leaf}
        if isinstance(leaf, dict) and isinstance(leaf.get("layout"), list)
        else leaf
        for leaf in inputs
    ]


def _donate_argnums(value: Any) -> tuple[int, ...] | None:
    """Argument numbers; negative ones count from the end."""
    if value is None:
        return None
    if not isinstance(value, list | tuple):
        raise MalformedError(f"donate_argnums is {value!r}; expected null or a list of argument numbers")
    return tuple(whole(number, f"donate_argnums[{i}]", least=-MOST_INT) for i, number in enumerate(value))


def _check_sharding(leaf: _Input, topology: Topology) -> None:
    """The layout of an argument has an entry for each of its dimensions, and splits it evenly."""
    match = _AVAL.fullmatch(leaf.aval)
    if match is None:
        raise MalformedError(f"aval of {leaf.path} is {leaf.aval!r}; expected dtype and shape, such as float32[16,32]")
    shape = [int(size) for size in match[1].split(",") if size]
    if len(leaf.dims) != len(shape):
        raise MalformedError(f"{leaf.path} has names of {len(leaf.dims)} dimensions, and {leaf.aval} has {len(shape)}")
    if len(leaf.layout) != len(shape):
        raise MalformedError(
            f"layout of {leaf.path} has {len(leaf.layout)} dimensions, and {leaf.aval} has {len(shape)}"
        )
    sizes = [axis.size for axis in topology.axes]
    if all(axis < len(sizes) for dim in leaf.layout for axis in dim):  # else an error of its own
        for size, dim in zip(shape, leaf.layout, strict=True):
            if size % math.prod(sizes[axis] for axis in dim):
                raise MalformedError(f"layout of {leaf.path} splits {size} of {leaf.aval} over axes {list(dim)}")


def _check_axes(saved: _Saved, shardings: Iterable[Sharding], num_axes: int) -> None:
    """Axes are those of the topology, one class of a configuration uses each once, and collectives are of known kinds.

    Two classes may share an axis where no tensor holds both (`jaxplan.ir.neighbours`).
    """
    used = {a for layout in shardings for a in layout.used}
    for index, config in enumerate(saved.configurations):
        axes = [a for axes in config for a in axes]
        if any(len(set(of)) != len(of) for of in config):
            raise MalformedError(f"configurations[{index}] uses an axis twice: {config}")
        used.update(axes)
    for found in saved.prediction.collectives:
        used.update(found.axes)
        if found.kind not in COLLECTIVES:
            raise MalformedError(f"collective {found.kind!r} is not known; expected one of {', '.join(COLLECTIVES)}")
    if used and max(used) >= num_axes:
        raise MalformedError(f"axis {max(used)} of a topology with {num_axes} atomic axes")
