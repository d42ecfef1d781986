"""Configurations of a group: counts in closed form, and laws over random spaces."""

from __future__ import annotations

import itertools
import math

import pytest

from jaxplan.ir import FactorClass, common_block_devices, enumerate_configurations
from jaxplan.ir._configurations import MAX_CONFIGURATIONS, neighbours
from jaxplan.mesh import Topology

BIG = 1 << 30


def classes(*sizes: int) -> tuple[FactorClass, ...]:
    return tuple(FactorClass(sizes=(size,), named_dimension=k) for k, size in enumerate(sizes))


def configurations(spaces: tuple[FactorClass, ...], topology: str, front: int = 0):
    axes = Topology.parse(topology).axes
    return enumerate_configurations(spaces, [a.size for a in axes], [a.level for a in axes], front)


def parts(config, topology: str) -> tuple[int, ...]:
    axes = Topology.parse(topology).axes
    return tuple(math.prod(axes[a].size for a in taken) for taken in config)


@pytest.mark.parametrize(("num_classes", "expected"), [(0, 1), (1, 4), (2, 10), (3, 20), (5, 56)])
def test_counts_on_eight_devices(num_classes: int, expected: int) -> None:
    """Three equal axes among C classes and nobody: stars and bars, (3 + C) choose C."""
    assert len(configurations(classes(*[BIG] * num_classes), "h100:8")) == expected


@pytest.mark.parametrize(("num_classes", "expected"), [(1, 16), (2, 100)])
def test_counts_on_two_levels_are_products(num_classes: int, expected: int) -> None:
    assert len(configurations(classes(*[BIG] * num_classes), "h100:8x8")) == expected


@pytest.mark.parametrize("topology", ["h100:8", "h100:8x8", "h100:64x8", "v5p:4x4x8"])
@pytest.mark.parametrize("num_classes", [1, 4, 6])
def test_the_cap_holds_and_keeps_the_plain_ways(topology: str, num_classes: int) -> None:
    """Each class alone over everything (data parallelism, FSDP) stays, and the replicated one."""
    found = configurations(classes(*[BIG] * num_classes), topology)
    assert len(found) <= MAX_CONFIGURATIONS
    assert len(set(found)) == len(found)
    devices = Topology.parse(topology).num_devices
    shapes = {parts(config, topology) for config in found}
    for c in range(num_classes):
        assert tuple(devices if k == c else 1 for k in range(num_classes)) in shapes
    assert found[0] == ((),) * num_classes


def test_no_axis_is_used_twice_and_every_composition_is_there() -> None:
    found = configurations(classes(BIG, BIG, BIG), "h100:2x8")
    for config in found:
        used = [a for taken in config for a in taken]
        assert len(set(used)) == len(used)
    levels = [axis.level for axis in Topology.parse("h100:2x8").axes]
    counted = {
        tuple(tuple(sum(levels[a] == level for a in taken) for level in (0, 1)) for taken in config)
        for config in found
    }
    wanted = {
        tuple(zip(nodes, gpus))
        for nodes in itertools.product(range(2), repeat=3)
        for gpus in itertools.product(range(4), repeat=3)
        if sum(nodes) <= 1 and sum(gpus) <= 3
    }
    assert counted == wanted


def test_splits_divide_every_member_of_a_class() -> None:
    assert configurations(classes(50257), "h100:8") == (
        ((),),
    )  # GPT-2's vocabulary is divisible by 29 and 1733 only
    assert [parts(c, "h100:8") for c in configurations(classes(50304), "h100:8")] == [(1,), (2,), (4,), (8,)]
    assert [parts(c, "h100:8") for c in configurations(classes(12), "h100:8")] == [(1,), (2,), (4,)]
    several = (FactorClass(sizes=(4, 6), named_dimension=0),)
    assert [parts(c, "h100:8") for c in configurations(several, "h100:8")] == [(1,), (2,)]


def test_odd_device_counts_split_divisible_dimensions() -> None:
    found = {parts(c, "h100:6") for c in configurations(classes(12, 10), "h100:6")}
    assert found >= {(1, 1), (3, 1), (6, 1), (1, 2), (3, 2)}
    assert found <= {(1, 1), (2, 1), (3, 1), (6, 1), (1, 2), (3, 2)}


def test_the_batch_takes_axes_from_the_front_and_others_from_the_back() -> None:
    """So that one axis between batch and another dimension is one all-to-all of the minor-most."""
    found = configurations(classes(BIG, BIG), "h100:8", front=0)
    assert ((0, 1), (2,)) in found
    assert ((0,), (2, 1)) in found
    assert ((0, 1, 2), ()) in found


def test_one_device_has_one_configuration() -> None:
    assert configurations(classes(BIG, BIG), "h100:1") == (((), ()),)


def test_too_many_compositions_leave_the_batch_beside_one_other_class() -> None:
    """4 nodes x 8, five classes: 21 x 56 compositions are too many. One block of nodes and three axes to at most
    the batch and one more: nobody 1, one class alone 5 x 7, and four pairs of 3 x 10 less 15 that leave one out."""
    found = configurations(classes(*[BIG] * 5), "h100:4x8")
    assert len(found) == 1 + 5 * 7 + 4 * (3 * 10 - 15)
    for config in found:
        assert sum(1 for taken in config[1:] if taken) <= 1
    shapes = {parts(config, "h100:4x8") for config in found}
    assert {(4, 8, 1, 1, 1), (8, 4, 1, 1, 1), (16, 1, 1, 2, 1), (8, 1, 1, 1, 4)} <= shapes


def test_nodes_move_as_one_block_in_one_order() -> None:
    """A block keeps its order, so that handing it from the batch to another class is no permutation."""
    for config in configurations(classes(*[BIG] * 5), "h100:4x8"):
        for taken in config:
            assert taken[:2] == (0, 1) or not {0, 1} & set(taken)


def test_all_groups_of_a_program_cut_outer_levels_alike() -> None:
    axes = Topology.parse("h100:4x8").axes
    sizes, levels = [a.size for a in axes], [a.level for a in axes]
    small, large = classes(BIG, BIG), classes(*[BIG] * 5)
    assert common_block_devices([small], sizes, levels) == 1
    blocks = common_block_devices([small, large], sizes, levels)
    assert blocks > 1
    assert len(enumerate_configurations(small, sizes, levels, 0, blocks)) == 3 * 10


def test_axes_of_unequal_size_are_dealt_one_by_one() -> None:
    """On 6 = 3 x 2 devices a batch of 32 can take the two, whatever comes first."""
    batch = FactorClass(sizes=(32,), named_dimension=0)
    found = enumerate_configurations((batch,), (3, 2), (1, 1), front_dimension=0)
    assert set(found) == {((),), ((1,),)}


@pytest.mark.parametrize("config", [((0, 1, 2), (), (0, 1, 2)), ((0,), (1,), (0,)), ((0, 1), (2,), ())])
def test_neighbours_share_no_axes_that_were_not_shared(config: tuple[tuple[int, ...], ...]) -> None:
    """Two classes that no tensor holds together may share axes; a neighbour must not make others share them."""
    axes = Topology.parse("h100:8").axes
    found = neighbours(config, classes(64, 64, 64), [a.size for a in axes], [a.level for a in axes])
    assert found

    def sharing(one: tuple[tuple[int, ...], ...]) -> set[tuple[int, int, int]]:
        pairs = itertools.combinations(range(len(one)), 2)
        return {(a, b, axis) for a, b in pairs for axis in set(one[a]) & set(one[b])}

    assert all(sharing(other) <= sharing(config) for other in found)
