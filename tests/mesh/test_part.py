"""Parts of a machine: which there are, and that a part equals a machine of its size."""

import dataclasses

import pytest

from jaxplan import TopologyError
from jaxplan.mesh import Topology, collective_seconds, part_counts, part_of
from tests.mesh.profile_tables import table_of


@pytest.mark.parametrize(
    ("machine", "counts"),
    [
        ("h100:8", (1, 2, 4, 8)),
        ("h100:6x8", (1, 2, 4, 8, 16, 24, 48)),
        ("a100:3x6", (1, 2, 3, 6, 18)),
        ("v5e:2x4", (1, 2, 4, 8)),
        ("h100:1", (1,)),
    ],
)
def test_even_parts(machine: str, counts: tuple[int, ...]) -> None:
    assert part_counts(Topology.parse(machine)) == counts


@pytest.mark.parametrize(
    ("machine", "num_devices", "part"),
    [
        ("h100:6x8", 4, "h100:4"),
        ("h100:6x8", 8, "h100:8"),
        ("h100:6x8", 40, "h100:5x8"),  # any number of whole nodes
        ("h100:6x8", 48, "h100:6x8"),
        ("h100:6x8", 1, "h100:1"),
        ("v5e:16x16", 256, "v5e:16x16"),
        ("v5e:16x16", 128, "v5e:8x16"),
        ("v5e:16x16", 64, "v5e:8x8"),  # the slice with the shortest longest side
        ("v5p:8x8x8", 64, "v5p:4x4x4"),
    ],
)
def test_a_part_is_the_machine_of_its_size(machine: str, num_devices: int, part: str) -> None:
    found, alone = part_of(Topology.parse(machine), num_devices), Topology.parse(part)
    assert (found.levels, found.axes, found.chip) == (alone.levels, alone.axes, alone.chip)
    assert found.name == alone.name


def test_links_that_were_edited_stay() -> None:
    whole = Topology.parse("h100:4x8")
    slow = dataclasses.replace(whole.levels[0].link, bandwidth_bytes_per_second=1e9)
    edited = dataclasses.replace(
        whole, levels=(dataclasses.replace(whole.levels[0], link=slow), whole.levels[1])
    )
    assert part_of(edited, 16).levels[0].link == slow


@pytest.mark.parametrize("num_devices", [0, -8, 3, 12, 64, True, "8"])
def test_no_such_part(num_devices) -> None:
    with pytest.raises(TopologyError, match=r"no part of .* devices.\n  expected: 1, 2, 4, 8, 16, 32"):
        part_of(Topology.parse("h100:4x8"), num_devices)


def test_measured_prices_of_a_part_are_those_of_its_groups_in_the_whole() -> None:
    whole = Topology.parse("h100:2x8")
    whole = whole.with_profile(table_of(whole, lambda kind, shape, size: (1 + 3 * len(kind)) * size**0.9 / shape[1]))
    part = part_of(whole, 4)
    assert part.profile is not None and part.profile.topology == "h100:4"
    within = tuple(a for a, axis in enumerate(whole.axes) if axis.level == 1)[-2:]
    for num_bytes in (1 << 12, 1 << 24):
        wanted = collective_seconds(whole, "all-gather", num_bytes, within)
        assert collective_seconds(part, "all-gather", num_bytes, (0, 1)) == wanted
