"""Predicted against compiled: groups from axes by enumeration, and verdicts on reports made by hand."""

import dataclasses
import itertools
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax import export
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxplan
from benchmarks.models import build
from jaxplan import AuditError
from jaxplan.audit._aot import CompiledMemory, CompiledReport, compile_exported
from jaxplan.audit._audit import (
    PredictedCollective,
    PredictedProgram,
    Verdict,
    axis_groups,
    compare,
    spanning_axes,
)
from jaxplan.audit._hlo import Collective
from jaxplan.audit._hlo_liveness import Holding
from jaxplan.mesh import Topology
from jaxplan.partition._meshes import abstract_mesh

MIB = 2**20
TOPOLOGY = Topology.parse("h100:2x4")  # devices 0-3 on one node, 4-7 on the other
NODES = ((0, 4), (1, 5), (2, 6), (3, 7))
INSIDE = ((0, 1, 2, 3), (4, 5, 6, 7))


def _report(*collectives: Collective, memory: int = 1000, flops: int = 100, **fields) -> CompiledReport:
    return CompiledReport(
        platform="cuda",
        memory=CompiledMemory(argument_bytes=memory, output_bytes=0, alias_bytes=0, temp_bytes=0),
        collectives=collectives,
        flops_by_dtype=(("bf16", flops),),
        **fields,
    )


def _predicted(*collectives, memory: int = 1000, flops: int = 100) -> PredictedProgram:
    return PredictedProgram(memory_bytes=memory, flops=flops, collectives=collectives, topology=TOPOLOGY)


@pytest.mark.parametrize("sizes", [(2, 2, 2), (3, 2), (2, 5, 2)])
def test_groups_of_axes_are_devices_that_agree_elsewhere(sizes) -> None:
    coordinates = list(itertools.product(*map(range, sizes)))
    for number in range(len(sizes) + 1):
        for axes in itertools.combinations(range(len(sizes)), number):
            groups: dict = {}
            for device, place in enumerate(coordinates):
                key = tuple(c for axis, c in enumerate(place) if axis not in axes)
                groups.setdefault(key, set()).add(device)
            expected = frozenset(frozenset(group) for group in groups.values())
            assert axis_groups(sizes, axes) == expected
            assert spanning_axes(sizes, expected) == axes


def test_groups_that_no_axes_span() -> None:
    assert spanning_axes((2, 2, 2), frozenset({frozenset({0, 3}), frozenset({1, 2})})) is None


def test_combined_collectives_agree_by_their_total() -> None:
    predicted = _predicted(
        ("all-reduce", (1, 2), 2 * MIB, 3), PredictedCollective("all-gather", (0,), MIB, 4)
    )
    audit = compare(
        predicted,
        _report(
            Collective(kind="all-reduce", groups=INSIDE, num_bytes=6 * MIB),
            Collective(kind="all-gather", groups=NODES[::-1], num_bytes=MIB, count=4),
        ),
    )
    assert audit.ok
    assert [(r.kind, r.axes, r.predicted_count, r.compiled_count, r.verdict) for r in audit.rows] == [
        ("all-gather", ("node",), 4, 4, Verdict.AGREES),
        ("all-reduce", ("gpu0", "gpu1"), 3, 1, Verdict.AGREES),
    ]
    audit.check()


def test_the_same_bytes_over_other_devices_do_not_agree() -> None:
    gathered = Collective(
        kind="all-gather", groups=INSIDE, num_bytes=MIB, op_name="jit(f)/dot", source="f.py:3"
    )
    audit = compare(_predicted(("all-gather", (0,), MIB, 1)), _report(gathered))
    assert {row.verdict for row in audit.rows} == {Verdict.MISSING, Verdict.UNEXPECTED}
    assert audit.unexpected == (gathered,)
    assert not audit.ok
    with pytest.raises(AuditError, match=r"jit\(f\)/dot \(f.py:3\)"):
        audit.check()


@pytest.mark.parametrize(
    ("compiled", "verdict"),
    [
        (100 * MIB, Verdict.AGREES),
        (101 * MIB, Verdict.AGREES),
        (102 * MIB, Verdict.MORE),
        (50 * MIB, Verdict.FEWER),
    ],
)
def test_totals_agree_within_one_percent(compiled: int, verdict: Verdict) -> None:
    report = _report(Collective(kind="all-reduce", groups=INSIDE, num_bytes=compiled))
    (row,) = compare(_predicted(("all-reduce", (1, 2), 100 * MIB, 1)), report).rows
    assert row.verdict is verdict


def test_scalars_are_listed_and_not_judged() -> None:
    audit = compare(
        _predicted(), _report(Collective(kind="all-reduce", groups=(tuple(range(8)),), num_bytes=8))
    )
    assert [(row.verdict, row.compiled_bytes) for row in audit.rows] == [(Verdict.SMALL, 8)]
    assert audit.ok
    assert "small" in audit.table()


def test_a_permute_belongs_to_the_axes_that_hold_its_exchanges() -> None:
    swap = Collective(
        kind="collective-permute", groups=((1, 2), (5, 6)), num_bytes=MIB
    )  # gpu0 and gpu1 exchanged
    predicted = _predicted(("collective-permute", (1, 2), MIB, 1))
    assert compare(predicted, _report(swap)).ok
    across = Collective(kind="collective-permute", groups=((1, 6),), num_bytes=MIB)
    assert not compare(predicted, _report(across)).ok


@pytest.mark.parametrize(
    "report",
    [_report(memory=1060), _report(flops=200), _report(rematerialised=True)],
    ids=["memory", "flops", "rematerialised"],
)
def test_more_memory_or_work_than_predicted_is_not_ok(report: CompiledReport) -> None:
    assert compare(_predicted(), _report(memory=1040, flops=90)).ok
    assert not compare(_predicted(), report).ok


def test_memory_is_told_by_part_and_by_what_holds_it() -> None:
    held = Holding(array="bf16[8,16]", num_bytes=3 * MIB, count=2, op_name="jit(f)/relu", source="model.py:7")
    memory = CompiledMemory(
        argument_bytes=40 * MIB, output_bytes=9 * MIB, alias_bytes=8 * MIB, temp_bytes=5 * MIB
    )
    report = dataclasses.replace(_report(held=(held,)), memory=memory)
    parts = {"parameters": 30 * MIB, "batch and other arguments": 10 * MIB, "activations": 4 * MIB}
    predicted = dataclasses.replace(_predicted(memory=44 * MIB), memory_parts=parts)
    audit = compare(predicted, report)
    assert sum(size for _, size in audit.compiled_parts) == audit.compiled_memory_bytes == 46 * MIB
    assert audit.compiled_parts == (
        ("arguments", 40 * MIB), ("outputs that overwrite no argument", MIB), ("temporaries", 5 * MIB),
    )  # fmt: skip
    table = audit.table()
    assert re.search(r"arguments +│ +│ +0\.039 GiB │ +0\.039 GiB │ 1\.000", table)
    assert re.search(r"all else +│ +│ +0\.004 GiB │ +0\.006 GiB │ 1\.500", table)
    assert "3.0 MiB  2 x bf16[8,16]  jit(f)/relu (model.py:7)" in table
    assert "activations 4.0" in table


def test_a_collective_that_the_plan_does_not_have_is_traced_to_its_line() -> None:
    """The step squares a matrix that it first wants whole on every device; the plan knows of nothing."""
    topology = Topology.parse("cpu:8")
    mesh = abstract_mesh(topology)
    split = NamedSharding(mesh, P(("cpu0", "cpu1", "cpu2")))

    def step(x: jax.Array) -> jax.Array:
        with jax.named_scope("layer"):
            whole = jax.lax.with_sharding_constraint(x * 2, NamedSharding(mesh, P()))
        return x @ whole

    jitted = jax.jit(step, in_shardings=(split,), out_shardings=split)
    exported = export.export(jitted, platforms=["cpu"])(jax.ShapeDtypeStruct((512, 512), jnp.float32))
    report = compile_exported(bytes(exported.serialize()), topology)
    predicted = PredictedProgram(
        memory_bytes=report.memory_bytes, flops=report.flops, collectives=(), topology=topology
    )
    audit = compare(predicted, report)
    (found,) = audit.unexpected
    assert (found.kind, found.num_bytes, found.group_size) == ("all-gather", 512 * 512 * 4, 8)
    assert "jit(step)" in found.op_name
    file, line = found.source.rsplit(":", 1)
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    assert file.endswith("test_audit.py")
    assert "whole" in lines[int(line) - 1]
    with pytest.raises(AuditError, match=r"unexpected: all-gather over 8.*\n.*test_audit\.py:\d+"):
        audit.check()


@pytest.mark.slow
@pytest.mark.tpu_aot
def test_plans_for_a_torus_compile_to_what_they_say() -> None:
    """FSDP gathers parameters once more for the backward pass, and the compiler is kept from merging that."""
    step, arguments = build("mlp", num_layers=2, width=1024, num_classes=1024, dtype="bfloat16")
    frontier = jaxplan.plan(step, *arguments, topology="v5e:2x4", donate_argnums=(0,), progress=False)
    kinds = {collective.kind for collective in frontier.fastest().prediction.collectives}
    assert {"all-gather", "reduce-scatter"} <= kinds
    assert frontier.references["fsdp"].repeated
    for plan in (frontier.fastest(), frontier.references["fsdp"]):
        audit = plan.audit()
        assert audit.collectives_ok, audit.table()
        assert audit.compiled_flops == audit.predicted_flops, audit.table()
        assert not audit.unexpected


def test_the_table_says_what_was_not_counted() -> None:
    table = compare(_predicted(), _report(uncounted_calls=("TopK",), unknown_loops=("while.3",))).table()
    assert "TopK" in table
    assert "while.3" in table
