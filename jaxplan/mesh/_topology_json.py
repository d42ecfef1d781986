"""Topologies as JSON: schema, version, and what a file must hold."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import Any

from jaxplan._errors import ProfileError, TopologyError
from jaxplan.mesh._chips import ChipSpec, Link
from jaxplan.mesh._profile_table import ProfileTable
from jaxplan.mesh._topology import Level, Topology, known_chip

_SCHEMA = "jaxplan.topology"
_VERSION = 1


def topology_to_json(topology: Topology) -> dict[str, Any]:
    """Plain data; what was measured is in it when there is something."""
    body = {"schema": _SCHEMA, "version": _VERSION, "name": topology.name, "chip": asdict(topology.chip)}
    body["levels"] = [asdict(level) for level in topology.levels]
    if topology.profile is not None:
        body["profile"] = topology.profile.to_json()
    return body


def topology_from_json(body: Any, path: str) -> Topology:
    """Read what `topology_to_json` wrote; ``path`` is named in errors."""
    if not isinstance(body, dict) or body.get("schema") != _SCHEMA or body.get("version") != _VERSION:
        raise TopologyError(
            f"{path!r} is not a topology file: expected schema {_SCHEMA!r} version {_VERSION}; "
            "write one with Topology.save"
        )
    try:
        chip = body["chip"]
        chip = known_chip(chip, given=path) if isinstance(chip, str) else _chip_from_json(chip)
        levels = tuple(_level_from_json(level, path) for level in body["levels"])
        topology = Topology(name=str(body["name"]), chip=chip, levels=levels)
        _check(topology, path)
        table = body.get("profile")
        return topology if table is None else replace(topology, profile=ProfileTable.from_json(table))
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, TopologyError | ProfileError):
            raise
        raise TopologyError(f"topology file {path!r} has a missing or malformed field: {error!r}") from error


def _level_from_json(fields: dict[str, Any], path: str) -> Level:
    if isinstance(fields["size"], list | dict):
        raise TopologyError(
            f"topology file {path!r}: levels.{fields['name']}.size is {fields['size']!r}; expected one number, the "
            "same for every node: machines whose nodes differ in their devices are not planned. Describe the part "
            "of which all nodes have the same"
        )
    if isinstance(fields["size"], bool) or not isinstance(fields["size"], int):
        raise TopologyError(
            f"topology file {path!r}: levels.{fields['name']}.size is {fields['size']!r}; expected a whole number"
        )
    return Level(**{**fields, "link": Link(**fields["link"])})


def _chip_from_json(fields: dict[str, Any]) -> ChipSpec:
    node_link = fields["node_link"]
    return ChipSpec(**{
        **fields,
        "flops_per_second": tuple((str(k), float(v)) for k, v in fields["flops_per_second"]),
        "device_link": Link(**fields["device_link"]),
        "node_link": None if node_link is None else Link(**node_link),
        "device_kinds": tuple(fields["device_kinds"]),
    })  # fmt: skip


def _check(topology: Topology, path: str) -> None:
    """Every figure that a price divides by is positive, and no latency is negative."""
    chip = topology.chip
    positive: dict[str, Any] = {f"chip.flops_per_second.{k}": v for k, v in chip.flops_per_second}
    for name in ("memory_bytes_per_second", "memory_bytes", "usable_fraction") + ("multiprocessors",) * chip.is_gpu:
        positive[f"chip.{name}"] = getattr(chip, name)
    latencies = {
        f"chip.{name}": getattr(chip, name) for name in ("launch_seconds", "collective_launch_seconds")
    }
    links = {f"levels.{level.name}": level.link for level in topology.levels}
    links |= {"chip.device_link": chip.device_link, "chip.node_link": chip.node_link}
    for where, link in links.items():
        if link is None:
            continue
        positive[f"{where}.bandwidth_bytes_per_second"] = link.bandwidth_bytes_per_second
        if link.shared_bytes_per_second is not None:
            positive[f"{where}.shared_bytes_per_second"] = link.shared_bytes_per_second
        latencies[f"{where}.latency_seconds"] = link.latency_seconds
    positive |= {f"levels.{level.name}.size": level.size for level in topology.levels}
    names = [level.prefix for level in topology.levels]
    if len(set(names)) != len(names) or "f32" not in dict(chip.flops_per_second):
        raise TopologyError(
            f"topology file {path!r}: level prefixes must differ, and flops_per_second needs f32"
        )
    for name, value in positive.items():
        if not _is_number(value) or not 0 < value < math.inf:
            raise TopologyError(f"topology file {path!r}: {name} is {value!r}; expected a positive number")
    for name, value in latencies.items():
        if not _is_number(value) or not 0 <= value < math.inf:
            raise TopologyError(f"topology file {path!r}: {name} is {value!r}; expected seconds, 0 or more")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
