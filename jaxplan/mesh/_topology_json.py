"""Topologies as JSON: schema, version, and the required fields of a file."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from jaxplan.core._json import MalformedError, required, text, typed
from jaxplan.errors import ProfileError, TopologyError
from jaxplan.mesh._chips import ChipSpec, Link
from jaxplan.mesh._profile_table import ProfileTable
from jaxplan.mesh._topology_data import Level, TopologyData
from jaxplan.mesh._topology_levels import device_prefix
from jaxplan.mesh._topology_text import known_chip

_SCHEMA = "jaxplan.topology"
_VERSION = 2
"""Version 1 has axes such as `n0` and `g1`, for which version 2 has `node` and `gpu1`."""
_LEAST_RATE = 1.0
"""Bytes or operations per second: with less, the seconds of a step leave the range of numbers."""
_MOST_LATENCY = 1e3
"""Seconds: beyond this, the part of a transfer above the latency is lost in rounding, and all paths cost the same."""
_LEAST_SHARE = 1e-6
"""Of a peak: with less, the seconds of a step leave the range of numbers."""


def topology_to_json(topology: TopologyData) -> dict[str, Any]:
    """Plain data, with measurements where there are any."""
    body = {"schema": _SCHEMA, "version": _VERSION, "name": topology.name, "chip": asdict(topology.chip)}
    body["levels"] = [asdict(level) for level in topology.levels]
    if topology.profile is not None:
        body["profile"] = topology.profile.to_json()
    return body


def topology_from_json(body: Any, path: str) -> TopologyData:
    """Read the output of `topology_to_json`; errors name ``path``."""
    if not isinstance(body, dict) or body.get("schema") != _SCHEMA or body.get("version") not in (1, _VERSION):
        raise TopologyError(
            f"{path!r} is not a topology file: expected schema {_SCHEMA!r} version {_VERSION}; "
            "write one with Topology.save"
        )
    try:
        topology = _topology(body, path)
        table = body.get("profile")
        return topology if table is None else replace(topology, profile=ProfileTable.from_json(table))
    except ValueError as error:
        if isinstance(error, TopologyError | ProfileError):
            raise
        raise TopologyError(
            f"topology file {path!r} has a missing or malformed field: {error}.\n"
            "  expected: a file of Topology.save, with figures of your own\n"
            "  likely cause: the file was edited\n"
            "  fix: mend that field, or save the topology again"
        ) from error


def _topology(body: dict[str, Any], path: str) -> TopologyData:
    chip, levels = required(body, "chip"), required(body, "levels")
    chip = known_chip(chip, given=path) if isinstance(chip, str) else typed(ChipSpec, chip, "chip")
    if not isinstance(levels, list | tuple):
        raise MalformedError(f"levels is {levels!r}; expected a list, outermost level first")
    topology = TopologyData(
        name=text(required(body, "name"), "name"),
        chip=chip,
        levels=tuple(_level(level, i, path) for i, level in enumerate(levels)),
    )
    if body["version"] == 1:
        topology = _renamed(topology)
    _check(topology, path)
    return topology


def _level(fields: Any, index: int, path: str) -> Level:
    name = fields.get("name") if isinstance(fields, dict) else None
    where = f"levels.{name}" if isinstance(name, str) else f"levels[{index}]"
    if isinstance(fields, dict) and isinstance(fields.get("size"), list | dict):
        raise TopologyError(
            f"topology file {path!r}: {where}.size is {fields['size']!r}; expected one number, the "
            "same for every node: machines with unequal nodes are not planned. Describe the part "
            "of which all nodes have the same"
        )
    return typed(Level, fields, where)


def _renamed(topology: TopologyData) -> TopologyData:
    """With the axis names of version 2, where those of version 1 are not the user's own."""
    old = {("node", "n"): "node", ("device", "g"): device_prefix(topology.chip), ("slice", "s"): "slice"}
    levels = [replace(level, prefix=old.get((level.name, level.prefix), level.prefix)) for level in topology.levels]
    return replace(topology, levels=tuple(levels))


def _check(topology: TopologyData, path: str) -> None:
    """Every figure that a price divides by is positive, and rates and latencies are within bounds."""
    chip = topology.chip
    positive = {"chip.memory_bytes": chip.memory_bytes, "chip.usable_fraction": chip.usable_fraction}
    positive |= {"chip.multiprocessors": chip.multiprocessors} if chip.is_gpu else {}
    positive |= {f"levels.{level.name}.size": level.size for level in topology.levels}
    rates, latencies = _rates(topology), _latencies(topology)
    needed, others = _shares(topology)
    checks = (
        (rates, lambda value: value >= _LEAST_RATE, "at least 1 per second"),
        (latencies, lambda value: value <= _MOST_LATENCY, f"at most {_MOST_LATENCY:g} seconds"),
        (positive, lambda value: value > 0, "a positive number"),
        ({"chip.usable_fraction": chip.usable_fraction}, lambda value: value <= 1, "at most 1"),
        (needed, lambda value: _LEAST_SHARE <= value <= 1, f"between {_LEAST_SHARE:g} and 1"),
        (others, lambda value: value == 0 or _LEAST_SHARE <= value <= 1, f"0, or between {_LEAST_SHARE:g} and 1"),
    )
    for figures, holds, expected in checks:
        for name, value in figures.items():
            if not holds(value):
                raise TopologyError(f"topology file {path!r}: {name} is {value!r}; expected {expected}")
    names = [axis.name for axis in topology.axes]
    prefixes = {level.prefix for level in topology.levels}
    is_named = len(set(names)) == len(names) and len(prefixes) == len(topology.levels)
    if not is_named or "f32" not in dict(chip.flops_per_second):
        raise TopologyError(
            f"topology file {path!r}: level prefixes must differ, and flops_per_second needs f32"
        )


def _links(topology: TopologyData) -> dict[str, Link]:
    links = {f"levels.{level.name}": level.link for level in topology.levels}
    links["chip.device_link"] = topology.chip.device_link
    return links if topology.chip.node_link is None else links | {"chip.node_link": topology.chip.node_link}


def _rates(topology: TopologyData) -> dict[str, float]:
    rates = {f"chip.flops_per_second.{format}": rate for format, rate in topology.chip.flops_per_second}
    rates["chip.memory_bytes_per_second"] = topology.chip.memory_bytes_per_second
    rates |= {} if topology.chip.vector_flops is None else {"chip.vector_flops": topology.chip.vector_flops}
    rates["chip.host_bytes_per_second"] = topology.chip.host_bytes_per_second
    for where, link in _links(topology).items():
        rates[f"{where}.bandwidth_bytes_per_second"] = link.bandwidth_bytes_per_second
        if link.shared_bytes_per_second is not None:
            rates[f"{where}.shared_bytes_per_second"] = link.shared_bytes_per_second
    return rates


def _shares(topology: TopologyData) -> tuple[dict[str, float], dict[str, float]]:
    """Shares of peaks that programs reach, which prices divide by; and those that may be 0."""
    needed = ("products", "attention", "memory", "narrow_convolutions")
    others = ("wide_products", "row_statistics", "row_norms", "row_gradients", "contention")
    efficiency = topology.chip.efficiency
    found = [{f"chip.efficiency.{name}": getattr(efficiency, name) for name in names} for names in (needed, others)]
    return found[0], found[1]


def _latencies(topology: TopologyData) -> dict[str, float]:
    names = ("launch_seconds", "collective_launch_seconds")
    latencies = {f"chip.{name}": getattr(topology.chip, name) for name in names}
    atomic = topology.chip.efficiency.atomic_seconds
    latencies |= {f"chip.efficiency.atomic_seconds[{i}]": seconds for i, seconds in enumerate(atomic)}
    return latencies | {f"{where}.latency_seconds": link.latency_seconds for where, link in _links(topology).items()}
