import itertools
import math
import random
import sys
from pathlib import Path as FilePath

import numpy as np
import pytest

from jaxplan import JaxplanError
from jaxplan.mesh import (
    Sharding,
    Topology,
    collective_seconds,
    permutation_pairs,
    reshard_path,
    reshard_seconds,
)

sys.path.insert(0, str(FilePath(__file__).parent))
import interpreter

from benchmarks.solvers.reshard_referee import Referee
from tests.sampling import sampled

CPU = Topology.parse("cpu:8")
H100 = Topology.parse("h100:8")
A, B, C = 0, 1, 2
BIG = (4096, 4096)


def sharding(*dims: str, partial: str = "") -> Sharding:
    """`layout("ab", "")` splits the first dimension over a then b."""
    number = {"a": 0, "b": 1, "c": 2, "d": 3}
    return Sharding(tuple(tuple(number[x] for x in dim) for dim in dims), tuple(number[x] for x in partial))


@pytest.mark.parametrize(
    ("source", "target", "kinds"),
    [
        (sharding("ab", ""), sharding("a", ""), ["all-gather"]),
        (sharding("ab", ""), sharding("b", ""), ["collective-permute", "all-gather"]),
        (sharding("ab", ""), sharding("a", "b"), ["all-to-all"]),
        (sharding("ab", "c"), sharding("a", "cb"), ["all-to-all"]),
        (sharding("ab", ""), sharding("", "ab"), ["all-to-all"]),
        (sharding("ab", ""), sharding("ba", ""), ["collective-permute"]),
        (sharding("a", "b"), sharding("b", "a"), ["collective-permute"]),
        (sharding("a", ""), sharding("b", ""), ["collective-permute"]),
        (sharding("a", ""), sharding("ab", ""), ["slice"]),
        (sharding("ba", ""), sharding("", ""), ["all-gather"]),
        (sharding("", ""), sharding("b", "ca"), ["slice", "slice"]),
        (sharding("", "", partial="abc"), sharding("cba", ""), ["reduce-scatter"]),
        (sharding("", "", partial="abc"), sharding("", ""), ["all-reduce"]),
        (sharding("", "", partial="abc"), sharding("bc", ""), ["reduce-scatter", "all-reduce"]),
        (sharding("", "", partial="ab"), sharding("a", "", partial="b"), ["reduce-scatter"]),
    ],
)
def test_steps_of_the_common_changes(source: Sharding, target: Sharding, kinds: list[str]) -> None:
    path = reshard_path(source, target, BIG, 4, H100)
    assert [step.kind for step in path.steps] == kinds


@pytest.mark.parametrize(
    ("source", "target", "most"),
    [
        (sharding("ab", "c"), sharding("a", "bc"), 2),  # to the major place
        (sharding("ab", ""), sharding("b", "a"), 2),  # the major axis moves
        (sharding("abc", ""), sharding("", "b"), 3),
        (sharding("a", ""), sharding("", "b"), 1),
    ],
)
def test_number_of_collectives(source: Sharding, target: Sharding, most: int) -> None:
    assert len(reshard_path(source, target, BIG, 4, H100).collectives) <= most


def test_collectives_carry_bytes_by_the_convention() -> None:
    """64 MiB over all; gathers count their results, the rest their operands."""
    mebi = 2**20

    def collectives(source: Sharding, target: Sharding) -> tuple[tuple[str, tuple[int, ...], int], ...]:
        return reshard_path(source, target, BIG, 4, H100).collectives

    assert collectives(sharding("ab", ""), sharding("a", "")) == (("all-gather", (B,), 32 * mebi),)
    assert collectives(sharding("ab", ""), sharding("", "ab")) == (("all-to-all", (A, B), 16 * mebi),)
    assert collectives(sharding("", "", partial="abc"), sharding("cab", "")) == (
        ("reduce-scatter", (C, A, B), 64 * mebi),
    )
    assert collectives(sharding("a", "", partial="c"), sharding("a", "")) == (("all-reduce", (C,), 32 * mebi),)
    assert collectives(sharding("a", "b"), sharding("b", "a")) == (("collective-permute", (A, B), 16 * mebi),)


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_a_share_of_the_latency_and_all_of_the_bytes(share: float) -> None:
    """A gather that four of a size travel in costs the same as one of four times the size, by four."""
    source, target, shape = Sharding(((0, 1, 2), ())), Sharding(((), ())), (4096, 512)
    num_bytes = 4 * 4096 * 512
    latency = collective_seconds(H100, "all-gather", 0, (0, 1, 2))
    whole = collective_seconds(H100, "all-gather", num_bytes, (0, 1, 2))
    seconds = reshard_seconds(source, target, shape, 4, H100, share)
    assert seconds == pytest.approx(whole - (1 - share) * latency)
    four = collective_seconds(H100, "all-gather", 4 * num_bytes, (0, 1, 2)) / 4
    assert reshard_seconds(source, target, shape, 4, H100, 1 / 4) == pytest.approx(four)


def test_identity_and_impossible() -> None:
    assert reshard_path(sharding("a", ""), sharding("a", ""), BIG, 4, H100).steps == ()
    assert reshard_seconds(sharding("a", ""), sharding("a", ""), BIG, 4, H100) == 0
    assert reshard_seconds(sharding("a", ""), sharding("", "", partial="a"), BIG, 4, H100) == math.inf
    assert reshard_path(sharding("", ""), sharding("", "", partial="a"), BIG, 4, H100).seconds == math.inf
    with pytest.raises(JaxplanError, match="does not divide"):
        reshard_seconds(sharding("abc", ""), sharding("", ""), (4, 4), 4, H100)


def test_intermediates_are_reported() -> None:
    path = reshard_path(sharding("ab", ""), sharding("b", ""), BIG, 4, H100)
    assert path.peak_bytes == 16 * 2**20
    assert reshard_path(sharding("ab", ""), sharding("a", ""), BIG, 4, H100).peak_bytes == 0


def _pairs(shape: tuple[int, ...], topology: Topology, count: int, seed: int) -> list[tuple[Sharding, Sharding]]:
    shardings = Referee(shape, 4, topology).shardings()
    draw = random.Random(seed)
    pairs = [(draw.choice(shardings), draw.choice(shardings)) for _ in range(40 * count)]
    return [(s, t) for s, t in pairs if set(t.partial) <= set(s.partial)][:count]


def test_prices_grow_with_size_and_paths_are_deterministic() -> None:
    for source, target in _pairs((64, 64), H100, 20, seed=3):
        prices = [reshard_seconds(source, target, (64, 64), 2**k, H100) for k in range(0, 30, 3)]
        assert prices == sorted(prices)
        assert reshard_path(source, target, (64, 64), 4, H100) == reshard_path(
            source, target, (64, 64), 4, H100
        )


@pytest.mark.parametrize("shape", sampled([((8, 4, 2),), ((8, 8),)]))
def test_paths_move_the_numbers_where_the_target_has_them(shape: tuple[int, ...]) -> None:
    """Random paths on eight devices, each step a fully manual program."""
    draw = np.random.default_rng(0)
    for source, target in _pairs(shape, CPU, 8, seed=len(shape)):
        terms = draw.integers(-100, 100, (2,) * len(source.partial) + shape).astype(np.float32)
        path = reshard_path(source, target, shape, 4, CPU)
        result = interpreter.run_path(interpreter.place(terms, source, CPU), path, CPU)
        gone = tuple(i for i, axis in enumerate(source.partial) if axis not in target.partial)
        expected = terms.sum(axis=gone)
        assert np.array_equal(np.asarray(result), expected), (source, target)
        assert result.sharding.is_equivalent_to(
            interpreter.place(expected, target, CPU).sharding, expected.ndim
        )
        for shard in result.addressable_shards:  # every copy, not only the first
            assert np.array_equal(np.asarray(shard.data), expected[shard.index])


def test_permutations_send_and_receive_once() -> None:
    for source, target in itertools.permutations([sharding("ab", ""), sharding("ca", ""), sharding("bc", "")], 2):
        pairs = permutation_pairs(source, target, CPU.axes)
        assert sorted(p for p, _ in pairs) == sorted(q for _, q in pairs) == list(range(8))
    # From a to b: the four devices with equal places along both already hold their piece.
    moves = permutation_pairs(sharding("a", ""), sharding("b", ""), CPU.axes)
    assert [p for p, q in moves if p == q] == [0, 1, 6, 7]
    with pytest.raises(JaxplanError, match="no permute"):
        permutation_pairs(sharding("a", ""), sharding("", "a"), CPU.axes)
