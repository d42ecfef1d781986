"""Models from other people's packages: planned with every operator described, run as on one device, reported."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import pytest

from benchmarks._record import decode, encode
from benchmarks.compat import MODELS, build
from benchmarks.compat._measure import Record, measure, run_beside_one_device
from benchmarks.compat._report import report
from benchmarks.compat._work import work_of
from jaxplan.core._compat import Primitive
from jaxplan.mesh import Topology
from jaxplan.search._traced import analyse_step

CLOSE = 1e-4


def test_a_small_step_agrees_with_one_device() -> None:
    differences = run_beside_one_device("equinox-mlp", points=("fastest",))
    assert max(differences.values()) < CLOSE


def test_every_operator_is_described() -> None:
    case = build("haiku-vqvae", small=True)
    work = work_of(analyse_step(case.step, case.abstract_args(), {}, donate_argnums=(0,), static_argnums=()))
    assert work.unknown == ()
    assert work.total > 0


def test_a_record_holds_what_is_known_of_the_model() -> None:
    record = measure("equinox-mlp", Topology.parse("h100:8"), points=(), cache=None)
    width, classes, hidden = 4096, 1024, 4 * 4096
    expected = width * hidden + hidden + 2 * (hidden * hidden + hidden) + hidden * classes + classes
    assert (record.failure, record.unknown, record.without_rule, record.unsplit) == ("", (), 0.0, 0.0)
    assert record.parameters == expected
    assert record.num_plans > 1
    assert record.fastest_seconds <= record.data_seconds


def test_work_without_a_rule_is_counted() -> None:
    """A product of 2 M^3 operations, of which half stands behind a primitive that nobody described."""
    size = 64
    primitive = Primitive("nobody_described_it")
    primitive.def_abstract_eval(lambda x: jax.core.ShapedArray(x.shape, x.dtype))

    def step(x: jax.Array) -> jax.Array:
        return primitive.bind(x @ x)

    value = jax.ShapeDtypeStruct((size, size), jnp.float32)
    work = work_of(analyse_step(step, (value,), {}, donate_argnums=(), static_argnums=()))
    assert work.unknown == (("nobody_described_it", 1),)
    assert math.isclose(work.share_without_rule, size**2 / (2 * size**3 + size**2))


def test_records_are_read_as_written(capsys: pytest.CaptureFixture[str]) -> None:
    import json

    record = Record(
        model="haiku-mlp", package="dm-haiku", version="1", topology="h100:8", unknown=(("vprim", 2),),
        without_rule=0.5, unsplit_because=((0.1, "dot", "line"),),
    )  # fmt: skip
    assert decode(Record, json.loads(encode(record))) == record
    assert report([record]) == 1
    assert "without a rule in haiku-mlp: vprim, 2 times" in capsys.readouterr().out


def test_a_package_that_is_not_there_is_named() -> None:
    missing = dataclasses.replace(MODELS["gemma-gemma3"], package="surely-not-installed", install="")
    assert missing.version == ""
    assert missing.missing == "not installed: pip install surely-not-installed"


def test_every_name_has_a_builder() -> None:
    assert len(MODELS) >= 25
    assert build("haiku-mlp", small=True).abstract_args()
