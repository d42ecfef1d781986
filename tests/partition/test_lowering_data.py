"""A plan is lowered from its lowering decisions alone: loaded from a file, without an analysis, to the same program."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding

import jaxplan
from jaxplan.cost import _model_builder, _transfers
from jaxplan.partition import _decide, _meshes, _planned, _resident
from jaxplan.partition._lowering import Barrier
from jaxplan.search import _bind
from jaxplan.xla import _buffers
from tests.partition.edited_plans import with_schedule
from tests.sampling import sampled

ANALYSES: list[tuple[Any, str]] = [
    *[(_decide, name) for name in ("build_cost_model", "plan_transfers", "find_barriers", "find_merge_guards")],
    *[(_resident, name) for name in ("analyse_buffers", "LiveRanges")],
    *[(_model_builder, name) for name in ("analyse_buffers", "find_reads")],
    (_transfers, "make_transfers"),
    (_buffers, "schedule"),
    (_bind, "decide_lowering"),
]


def _attention(layers: Any, x: Any) -> Any:
    """Two layers with queries, keys and values, a table read by rows, and its transpose as the output projection."""

    def loss_fn(layers: Any) -> Any:
        table = layers["table"].astype(jnp.bfloat16)
        h = table[x]
        for layer in layers["blocks"]:
            q, k, v = (jnp.einsum("bld,dhe->blhe", h, layer[name].astype(jnp.bfloat16)) for name in "qkv")
            scores = jax.nn.softmax(jnp.einsum("bqhe,bkhe->bhqk", q, k))
            h = h + jnp.einsum("bhqk,bkhe,hed->bqd", scores, v, layer["out"].astype(jnp.bfloat16))
        logits = (h @ table.T).astype(jnp.float32)
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1))

    return jax.tree.map(lambda p, g: p - 0.1 * g, layers, jax.grad(loss_fn)(layers))


def _arguments() -> tuple[Any, Any]:
    f = jax.ShapeDtypeStruct
    kernel = f((256, 8, 64), jnp.float32)
    block = {**dict.fromkeys("qkv", kernel), "out": f((8, 64, 256), jnp.float32)}
    return {"table": f((8192, 256), jnp.float32), "blocks": [block, block]}, f((64, 64), jnp.int32)


@pytest.fixture(scope="module", params=sampled(["h100:8", "v5e:2x4", "cpu:2x2"]))
def frontier(request: pytest.FixtureRequest) -> jaxplan.Frontier:
    return jaxplan.plan(_attention, *_arguments(), topology=request.param, progress=False)


def lowered(plan: jaxplan.Plan) -> str:
    """StableHLO of the planned program for the platform of its topology, without devices."""
    program, topology = plan.require_program().program, plan.topology
    mesh = _meshes.abstract_mesh(topology)
    leaves = [
        jax.ShapeDtypeStruct(
            program.tensors[t].shape,
            program.tensors[t].dtype,
            sharding=NamedSharding(mesh, sharding.partition_spec(topology.axes)),
        )
        for t, sharding in zip(program.inputs, plan.input_shardings, strict=True)
    ]
    traced = _planned.jit_flat(plan, mesh, program.donated, keep_unused=True).trace(*leaves)
    return traced.lower(lowering_platforms=(topology.chip.aot_platform,)).as_text()


def test_a_loaded_plan_lowers_to_the_same_program_without_an_analysis(
    frontier: jaxplan.Frontier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = [*list(frontier)[:2], *(frontier.references[name] for name in ("fsdp", "megatron"))]
    expected = [lowered(plan) for plan in plans]
    for number, plan in enumerate(plans):
        plan.save(tmp_path / f"{number}.json")

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a loaded plan was analysed again")

    for module, name in ANALYSES:
        monkeypatch.setattr(module, name, refuse)
    for number, plan in enumerate(plans):
        loaded = jaxplan.load(tmp_path / f"{number}.json", _attention, *_arguments())
        assert isinstance(loaded, jaxplan.Plan)
        assert loaded.lowering == plan.lowering
        assert lowered(loaded) == expected[number]
        assert loaded.to_json() == plan.to_json()


def test_the_program_follows_the_decisions_of_the_file(frontier: jaxplan.Frontier) -> None:
    """A barrier more is a barrier more in the program."""
    plan = frontier.references["data"]
    equations = plan.require_program().program.equations
    dot = next(e for e in equations if e.name == "dot_general" and e.phase == "backward")
    barriers = [b for b in plan.lowering.schedule.barriers if b.equation != dot.index]
    added = Barrier(equation=dot.index, operand=0, is_resident=True)
    fewer, more = (with_schedule(plan, barriers=tuple(found)) for found in (barriers, [*barriers, added]))
    counts = [lowered(each).count("stablehlo.optimization_barrier") for each in (fewer, more)]
    assert counts[1] == counts[0] + 1


Edit = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    "edit",
    [
        lambda data: data["lowering"]["schedule"].update(barriers=[]),
        lambda data: data["lowering"]["homes"].pop(),
        lambda data: data["lowering"].pop("digest"),
        lambda data: data["lowering"].update(digest="0"),
        lambda data: data.update(lowering=[]),
        lambda data: data.pop("lowering"),
        lambda data: data["configurations"].__setitem__(0, [[] for _ in data["configurations"][0]]),
    ],
)
def test_edited_decisions_are_refused(edit: Edit, frontier: jaxplan.Frontier) -> None:
    barriers = (Barrier(equation=1, operand=0, is_resident=True),)
    data = json.loads(json.dumps(with_schedule(frontier.references["fsdp"], barriers=barriers).to_json()))
    assert jaxplan.Plan.from_json(data).lowering.schedule.barriers == barriers
    edit(data)
    with pytest.raises(jaxplan.PlanFileError, match="plan again"):
        jaxplan.Plan.from_json(data)


def test_the_explanation_counts_the_decisions(frontier: jaxplan.Frontier) -> None:
    plan = frontier.references["fsdp"]
    barriers = (Barrier(equation=1, operand=0, is_resident=True), Barrier(equation=2, operand=0, is_resident=True))
    text = with_schedule(plan, barriers=barriers).explain()
    assert "2 x dot that runs only after all earlier weight gradients" in text
    repeated = [r for r in plan.lowering.reshardings if r.repeated]
    assert f"{len(repeated)} x copy that is gathered again" in text or not repeated


def test_decisions_are_made_once(frontier: jaxplan.Frontier) -> None:
    plan = frontier.fastest()
    assert plan.lowering is plan.lowering
    assert dataclasses.replace(plan, name="other").lowering is plan.lowering
