"""Measured prices: curves against closed forms, tables that are refused, and what a topology does with one."""

from __future__ import annotations

import json
import math
import random
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxplan
from jaxplan import ProfileError
from jaxplan.mesh import (
    COLLECTIVES,
    ProfileTable,
    Topology,
    collective_seconds,
    reshard_path,
    reshard_seconds,
)
from jaxplan.mesh._curve import Curve
from jaxplan.mesh._profile_check import group_shapes
from jaxplan.mesh._rates import MatmulRates

sys.path.insert(0, str(Path(__file__).parent))
from profile_tables import SIZES, table_of

from benchmarks.solvers.reshard_referee import Referee

NODES = Topology.parse("h100:2x4")
POINTS = st.lists(
    st.tuples(st.integers(0, 40), st.floats(1e-6, 10)), min_size=1, max_size=12, unique_by=lambda p: p[0]
)


# curves


def test_a_power_law_is_interpolated_exactly() -> None:
    """Seconds = 3e-9 bytes^0.75 is straight between logarithms."""
    curve = Curve.of((2.0**i, 3e-9 * 2 ** (0.75 * i)) for i in range(10, 21, 5))
    for size in (2**10, 2**12, 3000, 2**17, 2**20):
        assert curve.at(size) == pytest.approx(3e-9 * size**0.75, rel=1e-9)
    assert curve.at(1) == curve.at(2**10)
    assert curve.at(2**23) == pytest.approx(8 * curve.at(2**20))


@settings(deadline=None)
@given(POINTS, st.floats(1, 1e13), st.floats(1, 1e13))
def test_seconds_never_fall_as_bytes_grow(points: list[tuple[int, float]], a: float, b: float) -> None:
    curve = Curve.of((2.0**i, s) for i, s in points)
    low, high = sorted([a, b])
    assert 0 < curve.at(low) <= curve.at(high) * (1 + 1e-12)
    np.testing.assert_allclose(curve.at(np.array([low, high])), [curve.at(low), curve.at(high)], rtol=1e-9)


@settings(deadline=None)
@given(POINTS)
def test_monotone_measurements_are_kept(points: list[tuple[int, float]]) -> None:
    rising = list(zip(sorted(i for i, _ in points), sorted(s for _, s in points)))
    curve = Curve.of((2.0**i, s) for i, s in rising)
    assert curve.seconds == pytest.approx([s for _, s in rising])


def test_a_disturbed_measurement_is_evened_out() -> None:
    """Geometric means of neighbours in the wrong order: the nearest in squares of logarithms."""
    assert Curve.of([(1, 1.0), (2, 8.0), (4, 2.0), (8, 16.0)]).seconds == pytest.approx([1, 4, 4, 16])


# matrix products


def test_rates_are_interpolated_between_shapes_and_held_beyond() -> None:
    """Rate = (m k n)^(1/2) FLOP/s per dtype factor is multilinear in the logarithms."""
    grid = [1, 16, 256]
    seconds = {
        ("float32", 1, m, k, n): 2 * m * k * n / math.sqrt(m * k * n)
        for m in grid
        for k in grid
        for n in grid
    }
    rates = MatmulRates.of(seconds)

    def at(*shape: float) -> float:
        return float(rates.seconds("float32", *(np.array([float(x)]) for x in shape))[0])

    assert at(1, 8, 100, 31) == pytest.approx(2 * math.sqrt(8 * 100 * 31))
    assert at(1, 512, 256, 256) == pytest.approx(2 * at(1, 256, 256, 256))
    assert at(3, 16, 16, 16) == pytest.approx(3 * at(1, 16, 16, 16))


def test_a_shape_too_large_to_measure_has_the_rate_of_the_nearest() -> None:
    rates = MatmulRates.of({("float32", 1, 16, 16, 16): 1.0, ("float32", 1, 64, 16, 16): 2.0})
    ones = np.ones(1)
    assert rates.seconds("float32", ones, 64 * ones, 64 * ones, 16 * ones)[0] == pytest.approx(8.0)


@pytest.mark.parametrize(
    ("dtype", "like"), [("bfloat16", "bfloat16"), ("float16", "bfloat16"), ("float64", "float32")]
)
def test_other_dtypes_take_the_next_wider(dtype: str, like: str) -> None:
    rates = MatmulRates.of({("float32", 1, 16, 16, 16): 1.0, ("bfloat16", 1, 16, 16, 16): 0.25})
    shape = [np.full(1, x) for x in (1.0, 16, 16, 16)]
    assert rates.seconds(dtype, *shape) == rates.seconds(like, *shape)


# group shapes


def test_every_group_shape_of_the_atomic_axes() -> None:
    assert group_shapes(Topology.parse("cpu:8")) == ((2,), (4,), (8,))
    assert group_shapes(NODES) == ((1, 2), (2, 1), (1, 4), (2, 2), (2, 4))
    assert group_shapes(Topology.parse("cpu:6")) == ((2,), (3,), (6,))
    assert group_shapes(Topology.parse("cpu:1")) == ()


# prices


def _seconds(kind: str, shape: tuple[int, ...], size: int) -> float:
    """No line: a step at a megabyte, dearer across nodes, and every kind its own."""
    steps = 1 + (size > 2**20)
    return (1 + COLLECTIVES.index(kind)) * 1e-5 * steps * (1 + 3 * (shape[0] - 1)) + size / (1e9 * steps)


def test_collectives_cost_the_measured_seconds() -> None:
    measured = NODES.with_profile(table_of(NODES, _seconds))
    shapes = {(0,): (2, 1), (1, 2): (1, 4), (2,): (1, 2), (1, 0): (2, 2), (0, 1, 2): (2, 4)}
    for kind in COLLECTIVES:
        for axes, shape in shapes.items():
            for size in SIZES:
                assert collective_seconds(measured, kind, size, axes) == pytest.approx(
                    _seconds(kind, shape, size)
                )
    assert collective_seconds(measured, "all-gather", 1e6, ()) == 0
    with pytest.raises(jaxplan.JaxplanError, match="unknown collective"):
        collective_seconds(measured, "broadcast", 1, (0,))


def test_paths_at_measured_prices_are_the_cheapest_of_all() -> None:
    """Prices that are no line in the bytes, against a plain search over all layouts."""
    measured = NODES.with_profile(table_of(NODES, _seconds))
    shape, draw = (16, 16), random.Random(3)
    for itemsize in (4, 2**14):
        referee = Referee(shape, itemsize, measured)
        for source in draw.sample(referee.shardings(), 12):
            for target, least in referee.seconds_from(source).items():
                seconds = reshard_seconds(source, target, shape, itemsize, measured)
                assert seconds == pytest.approx(least, rel=1e-9), (source, target)
                path = reshard_path(source, target, shape, itemsize, measured)
                assert path.seconds == pytest.approx(least, rel=1e-9), (source, target)


def test_a_profile_replaces_the_launch_floor_and_goes_with_the_topology(tmp_path: Path) -> None:
    measured = NODES.with_profile(table_of(NODES, _seconds, launch_seconds=7e-6, bytes_per_second=1e12))
    assert measured.chip.launch_seconds == pytest.approx(7e-6, rel=1e-3)
    assert measured != NODES and hash(measured) != hash(NODES)
    measured.save(tmp_path / "machine.json")
    assert Topology.load(tmp_path / "machine.json") == measured


def test_dots_and_passes_take_the_measured_seconds() -> None:
    """A gigaflop product at 1 TFLOP/s takes a millisecond, whatever the data sheet says."""
    import jax
    import jax.numpy as jnp

    machine = Topology.parse("h100:2")
    table = table_of(machine, _seconds, flops_per_second=1e12)
    shape = jax.ShapeDtypeStruct((1000, 500), jnp.bfloat16), jax.ShapeDtypeStruct((500, 2000), jnp.bfloat16)
    frontier = jaxplan.plan(jnp.matmul, *shape, topology=machine.with_profile(table), progress=False)
    assert frontier.fastest().compute_seconds == pytest.approx(1e-3, rel=1e-6)


# tables that are refused


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ("h100:2x8", "topology is 'h100:2x8', not 'h100:2x4'"),
        ("a100:2x4", "device_kind is 'A100', not a h100"),
    ],
)
def test_a_table_of_another_machine_is_refused_with_the_difference(other: str, message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        NODES.with_profile(table_of(Topology.parse(other), _seconds))


def test_virtual_devices_are_the_host_that_was_measured(tmp_path: Path) -> None:
    host = Topology.parse("cpu:8")
    host.with_profile(table_of(host, _seconds))
    with pytest.raises(ProfileError, match=r"num_cores is 1000, not .*\n.*\n  fix"):
        host.with_profile(table_of(host, _seconds, num_cores=1000))
    measured = host.with_profile(table_of(host, _seconds))
    body = measured.to_json()
    body["profile"]["machine"]["processor"] = "Abacus"
    (tmp_path / "machine.json").write_text(json.dumps(body))
    with pytest.raises(ProfileError, match="processor is 'Abacus'"):
        Topology.load(tmp_path / "machine.json")


def test_a_table_that_lacks_collectives_is_refused() -> None:
    whole = table_of(NODES, _seconds)
    entries = tuple(e for e in whole.entries if e[0][:2] != ("collective", "all-to-all"))
    part = ProfileTable(machine=whole.machine, topology=whole.topology, entries=entries)
    with pytest.raises(ProfileError, match="lacks 5 of the collectives of h100:2x4, such as all-to-all"):
        NODES.with_profile(part)


def test_tables_survive_json_and_bad_ones_do_not(tmp_path: Path) -> None:
    table, file = table_of(NODES, _seconds), tmp_path / "table.json"
    body = json.loads(json.dumps(table.to_json()))
    assert ProfileTable.from_json(body) == table
    for change, message in (
        ({"version": 9}, "version 1"),
        ({"entries": []}, "no matrix products"),
        ({"entries": [["memory", 1024, -1.0]]}, "seconds is -1.0; expected a number from 0"),
        ({"entries": [["weather", 1.0]]}, "no known kind"),
        ({"machine": {}}, "missing or malformed"),
    ):
        file.write_text(json.dumps({**body, **change}))
        with pytest.raises(ProfileError, match=message):
            NODES.with_profile(file)
    file.write_text("{")
    with pytest.raises(ProfileError, match="cannot read profile table"):
        NODES.with_profile(file)
