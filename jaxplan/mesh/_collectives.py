"""Seconds of one collective: alpha-beta over the levels of the machine.

A group spans the product of its axes. `n_l` is its size at level l (0 = outermost), `m_l` how many of its
devices sit below one child of level l, `D_l` how many devices there are below one child in all. All groups
run at once, so `D_l / m_l` groups share the links of a child. NCCL's model,
https://github.com/NVIDIA/nccl/blob/master/src/graph/tuning.cc :

  ring bandwidth    B = min over levels spanned of min(m_l b_l, shared_l m_l / D_l)
  ring steps        the n - 1 steps of a ring, each at the latency of the level that it crosses
  all-gather        launch + steps + S (n - 1)/n / B         S = bytes that a device has in the end
  reduce-scatter    the same                                 S = bytes that a device has at the start
  all-reduce        launch + min(2 steps, tree) + 2 S (n - 1)/n / B
  all-to-all        launch + steps + S max over levels of (bytes across it / bandwidth of it)
  permute           launch + latency + S / (bandwidth per device at the slowest level)

The dimensions of a torus that a group spans carry at the same time, so their bandwidths add up
(https://jax-ml.github.io/scaling-book/sharding/ , "all-gathers over several axes").

Where the topology has a profile, seconds are interpolated between those measured.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import overload

import numpy as np
import numpy.typing as npt

from jaxplan.errors import ArgumentError, ProfileError
from jaxplan.mesh._collective_kinds import COLLECTIVES as COLLECTIVES
from jaxplan.mesh._collective_kinds import Collective as Collective
from jaxplan.mesh._curve import Curve
from jaxplan.mesh._topology import Topology


@overload
def collective_seconds(
    topology: Topology, kind: str, num_bytes: float, axes: tuple[int, ...], latency_share: float = 1.0
) -> float: ...
@overload
def collective_seconds(
    topology: Topology,
    kind: str,
    num_bytes: npt.NDArray[np.number],
    axes: tuple[int, ...],
    latency_share: float = 1.0,
) -> npt.NDArray[np.float64]: ...
def collective_seconds(
    topology: Topology,
    kind: str,
    num_bytes: float | npt.NDArray[np.number],
    axes: tuple[int, ...],
    latency_share: float = 1.0,
) -> float | npt.NDArray[np.float64]:
    """Seconds of one collective in which all devices take part, in groups over `axes`.

    Args:
      num_bytes: bytes per device on the larger side: the result of an all-gather, the operand of the
        others; may be an array.
      axes: indices of atomic axes; their order does not matter. None: 0 seconds.
      latency_share: fraction of its latency (the seconds that no bytes take) that it pays: less than 1 where the
        compiler combines it with others.

    Example:
      >>> h100 = Topology.parse("h100:8")
      >>> one, two = (collective_seconds(h100, "all-gather", num_bytes, (0, 1, 2)) for num_bytes in (1e9, 2e9))
      >>> 1.9 < two / one < 2  # the latency is paid once
      True
    """
    if topology.profile is not None and axes:
        return measured_seconds(topology, kind, num_bytes, _sizes_of(topology, axes), latency_share)
    latency, seconds_per_byte = collective_terms(topology, kind, axes)
    latency *= latency_share
    if isinstance(num_bytes, np.ndarray):
        return latency + seconds_per_byte * num_bytes.astype(np.float64)
    return latency + seconds_per_byte * num_bytes


@lru_cache(maxsize=2**14)
def collective_terms(topology: Topology, kind: str, axes: tuple[int, ...]) -> tuple[float, float]:
    """(seconds, seconds per byte) of a collective over the axes: its price is the line through them."""
    return terms_of_sizes(topology, kind, _sizes_of(topology, axes))


@overload
def measured_seconds(
    topology: Topology, kind: str, num_bytes: float, sizes: tuple[int, ...], latency_share: float = 1.0
) -> float: ...
@overload
def measured_seconds(
    topology: Topology,
    kind: str,
    num_bytes: npt.NDArray[np.number],
    sizes: tuple[int, ...],
    latency_share: float = 1.0,
) -> npt.NDArray[np.float64]: ...
def measured_seconds(
    topology: Topology,
    kind: str,
    num_bytes: float | npt.NDArray[np.number],
    sizes: tuple[int, ...],
    latency_share: float = 1.0,
) -> float | npt.NDArray[np.float64]:
    """`collective_seconds` from the topology's profile, for a group of `sizes[l]` children at each level l."""
    curve = _curve(topology, kind, sizes)
    return curve.at(num_bytes) - (1 - latency_share) * curve.at(0)


def group_seconds(topology: Topology, kind: str, num_bytes: float, sizes: tuple[int, ...]) -> float:
    """`collective_seconds` for a group of `sizes[l]` children at each level l."""
    if topology.profile is not None:
        return measured_seconds(topology, kind, num_bytes, sizes)
    latency, seconds_per_byte = terms_of_sizes(topology, kind, sizes)
    return latency + seconds_per_byte * num_bytes


@lru_cache(maxsize=2**14)
def _sizes_of(topology: Topology, axes: tuple[int, ...]) -> tuple[int, ...]:
    sizes = [1] * len(topology.levels)
    for axis in axes:
        sizes[topology.axes[axis].level] *= topology.axes[axis].size
    return tuple(sizes)


def _check_kind(kind: str) -> None:
    if kind not in COLLECTIVES:
        raise ArgumentError(f"unknown collective {kind!r}; expected one of {', '.join(COLLECTIVES)}")


@lru_cache(maxsize=2**14)
def terms_of_sizes(topology: Topology, kind: str, sizes: tuple[int, ...]) -> tuple[float, float]:
    """The same for a group of `sizes[l]` children at each level l: a price depends on nothing else."""
    _check_kind(kind)
    num_devices = math.prod(sizes)
    if num_devices == 1:
        return 0.0, 0.0
    launch = topology.chip.collective_launch_seconds
    if kind == "collective-permute":
        latency, seconds_per_byte = _permute_terms(topology, sizes)
        return launch + latency, seconds_per_byte
    steps = _ring_latency(topology, sizes)
    if kind == "all-to-all":
        return launch + steps, _all_to_all_seconds_per_byte(topology, sizes)
    once = (num_devices - 1) / num_devices / _ring_bandwidth(topology, sizes)
    if kind == "all-reduce":
        return launch + min(2 * steps, _tree_latency(topology, sizes)), 2 * once
    return launch + steps, once


def _curve(topology: Topology, kind: str, sizes: tuple[int, ...]) -> Curve:
    assert topology.profile is not None
    curve = topology.profile.collectives.get((kind, sizes))
    if curve is None:
        _check_kind(kind)
        raise ProfileError(f"the profile of {topology.name} has no {kind} in groups of {sizes}")
    return curve


@lru_cache(maxsize=2**8)
def collective_bounds(topology: Topology) -> tuple[float, float]:
    """(seconds that every collective takes at least, bytes per second that no device receives more of)."""
    if topology.profile is None:
        quickest = min(level.link.latency_seconds for level in topology.levels)
        torus = sum(level.link.bandwidth_bytes_per_second for level in topology.levels if level.link.ring)
        fastest = max(torus, *(level.link.bandwidth_bytes_per_second for level in topology.levels))
        return topology.chip.collective_launch_seconds + quickest, fastest
    curves = topology.profile.collectives
    least = min(curve.seconds[0] for curve in curves.values())
    # A device receives at most all of its bytes, twice in an all-reduce. Between two sizes a curve is straight where
    # both axes are logarithms, so the rate is greatest at one of them.
    fastest = max(
        (2.0 if kind == "all-reduce" else 1.0) * size / seconds
        for (kind, _), curve in curves.items()
        for size, seconds in zip(curve.sizes, curve.seconds)
    )
    return least, fastest


def _spanned(topology: Topology, sizes: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """(level, m_l, D_l) of the levels that a group spans, outermost first."""
    spanned = []
    below_in_group = below_in_all = 1
    for level in reversed(range(len(sizes))):
        if sizes[level] > 1:
            spanned.append((level, below_in_group, below_in_all))
        below_in_group *= sizes[level]
        below_in_all *= topology.levels[level].size
    return spanned[::-1]


def _ring_bandwidth(topology: Topology, sizes: tuple[int, ...]) -> float:
    rates, torus = [], 0.0
    for level, in_group, in_all in _spanned(topology, sizes):
        link = topology.levels[level].link
        if link.ring:
            torus += _bandwidth(topology, level, sizes)
            continue
        rates.append(in_group * _bandwidth(topology, level, sizes))
        if link.shared_bytes_per_second is not None:
            rates.append(link.shared_bytes_per_second * in_group / in_all)
    return min([*rates, torus] if torus else rates)


def _bandwidth(topology: Topology, level: int, sizes: tuple[int, ...]) -> float:
    """Bandwidth of one device at a level: half where the group is a part of a ring, for it does not close."""
    link = topology.levels[level].link
    is_part = link.wraps and sizes[level] < topology.levels[level].size
    return link.bandwidth_bytes_per_second / (2 if is_part else 1)


def _ring_latency(topology: Topology, sizes: tuple[int, ...]) -> float:
    seconds, units = 0.0, 1
    for level, size in enumerate(sizes):
        seconds += units * (size - 1) * topology.levels[level].link.latency_seconds
        units *= size
    return seconds


def _tree_latency(topology: Topology, sizes: tuple[int, ...]) -> float:
    """Up and down: a chain within the innermost level spanned, a binary tree over each level above."""
    *outer, inner = [level for level, size in enumerate(sizes) if size > 1]
    seconds = (sizes[inner] - 1) * topology.levels[inner].link.latency_seconds
    for level in outer:
        seconds += math.ceil(math.log2(sizes[level])) * topology.levels[level].link.latency_seconds
    return 2 * seconds


def _all_to_all_seconds_per_byte(topology: Topology, sizes: tuple[int, ...]) -> float:
    """Levels carry their bytes at the same time; a device's bytes for other children cross the level."""
    num_devices = math.prod(sizes)
    slowest = 0.0
    for level, in_group, in_all in _spanned(topology, sizes):
        link, size = topology.levels[level].link, sizes[level]
        crossing = in_group * (size - 1) / num_devices
        # A ring of n chips has two links where it is cut in half, and n/2 chips that send half of theirs
        # across it.
        hops = max(1.0, size / 4) if link.ring else 1.0
        rate = _share(_bandwidth(topology, level, sizes), link.shared_bytes_per_second, in_all)
        slowest = max(slowest, crossing * hops / rate)
    return slowest


def _permute_terms(topology: Topology, sizes: tuple[int, ...]) -> tuple[float, float]:
    latency = seconds_per_byte = 0.0
    for level, _, in_all in _spanned(topology, sizes):
        link = topology.levels[level].link
        latency = max(latency, link.latency_seconds)
        rate = _share(_bandwidth(topology, level, sizes), link.shared_bytes_per_second, in_all)
        seconds_per_byte = max(seconds_per_byte, 1 / rate)
    return latency, seconds_per_byte


def _share(alone: float, shared: float | None, num_devices: int) -> float:
    """Bandwidth of one device on a link that all devices below a child use at once."""
    return alone if shared is None else min(alone, shared / num_devices)
