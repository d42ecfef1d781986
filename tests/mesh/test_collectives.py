"""Prices against closed forms worked out by hand for one machine with round figures."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxplan import JaxplanError
from jaxplan.mesh import CHIPS, COLLECTIVES, Link, Topology, collective_seconds

# Two nodes of four: 100 GB/s and 1 us within a node; 10 GB/s a device, 20 GB/s a node and 5 us across.
CHIP = dataclasses.replace(
    CHIPS["h100"],
    collective_launch_seconds=10e-6,
    device_link=Link(bandwidth_bytes_per_second=100e9, latency_seconds=1e-6),
    node_link=Link(bandwidth_bytes_per_second=10e9, latency_seconds=5e-6, shared_bytes_per_second=20e9),
)
CLUSTER = Topology.of(CHIP, (2, 4))
NODE, WITHIN, ALL = (0,), (1, 2), (0, 1, 2)


@pytest.mark.parametrize(
    ("kind", "axes", "seconds"),
    [
        # Within a node, 4 devices: 3 steps of 1 us; each receives 3/4 of 1 GB at 100 GB/s: 7.5 ms.
        ("all-gather", WITHIN, 13e-6 + 7.5e-3),
        ("reduce-scatter", WITHIN, 13e-6 + 7.5e-3),
        ("all-to-all", WITHIN, 13e-6 + 7.5e-3),
        ("all-reduce", WITHIN, 16e-6 + 15e-3),
        ("collective-permute", WITHIN, 11e-6 + 10e-3),
        # Across two nodes, four groups at once on 20 GB/s: 5 GB/s each, half of 1 GB; one 5 us step.
        ("all-gather", NODE, 15e-6 + 0.1),
        ("all-reduce", NODE, 20e-6 + 0.2),
        ("all-to-all", NODE, 15e-6 + 0.1),
        ("collective-permute", NODE, 15e-6 + 0.2),
        # All 8 in one group: the ring leaves a node at 20 GB/s, 7/8 GB; one step of 5 us and six of 1 us.
        ("all-gather", ALL, 21e-6 + 43.75e-3),
        # A tree: a chain of three 1 us steps in each node and one 5 us step between them, up and down.
        ("all-reduce", ALL, 26e-6 + 87.5e-3),
        # Half of each device's 1 GB goes to the other node, at 5 GB/s a device.
        ("all-to-all", ALL, 21e-6 + 0.1),
    ],
)
def test_closed_forms_for_one_gigabyte(kind: str, axes: tuple[int, ...], seconds: float) -> None:
    assert collective_seconds(CLUSTER, kind, 1e9, axes) == pytest.approx(seconds, rel=1e-12)


def test_tpu_ring_all_to_all_is_bound_by_its_bisection() -> None:
    """On 16 chips in a ring, 8 send half of their 1 GB over 2 cut links of 45 GB/s."""
    ring = Topology.parse("v5e:16x1")
    axes = tuple(range(len(ring.axes)))
    slope = collective_seconds(ring, "all-to-all", 1e9, axes) - collective_seconds(
        ring, "all-to-all", 0, axes
    )
    assert slope == pytest.approx(8 * 0.5e9 / (2 * 45e9), rel=0.1)


def test_only_the_whole_of_a_ring_is_closed() -> None:
    """v5e has 45 GB/s a link: both ways round a closed ring of 16, one way along a part of it or along 8."""

    def gigabytes_per_second(topology: Topology, axes: tuple[int, ...], size: int) -> float:
        terms = [collective_seconds(topology, "all-gather", b, axes) for b in (0, 1e9)]
        return (size - 1) / size / (terms[1] - terms[0])

    closed, line = Topology.parse("v5e:16x16"), Topology.parse("v5e:8x8")
    assert gigabytes_per_second(closed, (4, 5, 6, 7), 16) == pytest.approx(90)
    assert gigabytes_per_second(closed, (6, 7), 4) == pytest.approx(45)
    assert gigabytes_per_second(line, (3, 4, 5), 8) == pytest.approx(45)
    cube = Topology.parse("v5p:4x4x4")
    assert gigabytes_per_second(cube, (4, 5), 4) == pytest.approx(180)
    assert gigabytes_per_second(cube, (5,), 2) == pytest.approx(90)


def test_dimensions_of_a_torus_carry_at_once_and_slices_lie_behind_the_network() -> None:
    """v5e: 90 GB/s round each closed ring of 16, so 180 over both; a host of eight chips sends 25 GB/s to others."""

    def seconds(topology: Topology, axes: tuple[int, ...]) -> float:
        none, one = (collective_seconds(topology, "all-gather", size, axes) for size in (0, 1e9))
        return one - none

    assert seconds(Topology.parse("v5e:16x16"), tuple(range(8))) == pytest.approx(255 / 256 / 180)
    slices = Topology.parse("v5e:2x16x16")
    assert seconds(slices, tuple(range(1, 9))) == pytest.approx(255 / 256 / 180)
    assert seconds(slices, (0,)) == pytest.approx(0.5 / (25 / 8))


@pytest.mark.parametrize("kind", COLLECTIVES)
@pytest.mark.parametrize(
    "topology", [CLUSTER, Topology.parse("p100:4x4"), Topology.parse("v5e:4x4")], ids=lambda t: t.name
)
def test_laws(kind: str, topology: Topology) -> None:
    axes = tuple(range(len(topology.axes)))
    sizes = np.array([0, 1, 10**3, 10**6, 10**9])
    prices = collective_seconds(topology, kind, sizes, axes)
    assert np.all(np.diff(prices) > 0)
    assert [collective_seconds(topology, kind, int(s), axes) for s in sizes] == pytest.approx(prices)
    assert collective_seconds(topology, kind, 1e9, ()) == 0
    assert collective_seconds(topology, kind, 1e9, axes[::-1]) == pytest.approx(prices[-1])


MACHINES = [
    CLUSTER,
    *map(Topology.parse, ("h100:4x8", "k80:2x8", "1080ti:8", "v5e:16x8", "v5p:4x4x2", "cpu:6")),
]


@settings(deadline=None)
@given(st.data())
def test_prices_of_any_group_grow_with_bytes(data: st.DataObject) -> None:
    """A reduction whose result stays split moves no more than one that all hold; and more bytes cost more."""
    topology = data.draw(st.sampled_from(MACHINES))
    axes = tuple(data.draw(st.sets(st.integers(0, len(topology.axes) - 1), min_size=1)))
    few, many = sorted([data.draw(st.integers(0, 2**40)), data.draw(st.integers(0, 2**40))])
    growth = {}
    for kind in COLLECTIVES:
        none, less, more = (collective_seconds(topology, kind, size, axes) for size in (0, few, many))
        assert 0 < none <= less <= more and (few == many or less < more)
        growth[kind] = more - none
    assert growth["reduce-scatter"] <= growth["all-reduce"] * (1 + 1e-9)


@pytest.mark.parametrize("axes", [NODE, WITHIN, ALL, (0, 2)])
def test_all_reduce_moves_as_much_as_reduce_scatter_and_all_gather(axes: tuple[int, ...]) -> None:
    def slope(kind: str) -> float:
        return collective_seconds(CLUSTER, kind, 1e9, axes) - collective_seconds(CLUSTER, kind, 0, axes)

    assert slope("all-reduce") == pytest.approx(slope("reduce-scatter") + slope("all-gather"))


def test_unknown_kind() -> None:
    with pytest.raises(JaxplanError, match="unknown collective 'broadcast'"):
        collective_seconds(CLUSTER, "broadcast", 1, NODE)
