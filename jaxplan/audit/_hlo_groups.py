"""Device groups of collectives, in each of the spellings that compilers print."""

import re

import numpy as np

Groups = tuple[tuple[int, ...], ...]

_EXPLICIT = re.compile(r"replica_groups=\{((?:\{[\d,]*\},?)*)\}")
_IOTA = re.compile(r"\[([\d,]+)\](?:<=\[([\d,]+)\])?(?:T\(([\d,]+)\))?")
_IOTA_GROUPS = re.compile(r"replica_groups=(\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?)")
_MESH_GROUPS = re.compile(r"replica_groups=@?mesh\[((?:'[^']*'=\d+,?)*)(.*?)\]?\s*\{([^{}]*)\}")
_MESH_AXIS = re.compile(r"'([^']*)'=(\d+)")
_AXIS_REFERENCE = re.compile(r"'([^':]*)'?(?::\((\d+)\)(\d+)'?)?")
_DEVICE_IDS = re.compile(r"device_ids=\(([^()]*(?:\([\d,]*\))?)\)")
_PAIRS = re.compile(r"source_target_pairs=\"?\{((?:\{\d+,\d+\},?)*)\}")


def parse_groups(attributes: str, num_devices: int) -> Groups:
    """The replica groups of a collective; all `num_devices` in one group where none are listed.

    Reads `{{0,1},{2,3}}`, `[4,2]<=[2,4]T(1,0)` and `mesh['a'=2,'b'=4] {'a'}` (XLA: `replica_group.cc`,
    `mesh_and_axis.cc`). Raises `ValueError` for any other spelling.
    """
    if match := _MESH_GROUPS.search(attributes):
        return _mesh_groups(match[1], match[2], match[3])
    if match := _IOTA_GROUPS.search(attributes):
        return _as_groups(_iota(match[1]))
    if match := _EXPLICIT.search(attributes):
        groups = re.findall(r"\{([\d,]+)\}", match[1])
        if groups:
            return tuple(tuple(int(d) for d in group.split(",")) for group in groups)
    elif "replica_groups=" in attributes:
        start = attributes.index("replica_groups=")
        raise ValueError(f"unknown spelling of replica groups: {attributes[start : start + 120]!r}")
    return (tuple(range(num_devices)),)


def connected_groups(attributes: str) -> Groups:
    """Sets of devices that exchange data in a collective-permute; devices that keep theirs are left out.

    Raises `ValueError` if the instruction lists no source-target pairs.
    """
    match = _PAIRS.search(attributes)
    if match is None:
        raise ValueError(f"a permute without source_target_pairs: {attributes[:200]!r}")
    group_of: dict[int, set[int]] = {}
    for source, target in re.findall(r"\{(\d+),(\d+)\}", match[1]):
        if source == target:
            continue
        merged = group_of.get(int(source), {int(source)}) | group_of.get(int(target), {int(target)})
        for device in merged:
            group_of[device] = merged
    return tuple(sorted({tuple(sorted(group)) for group in group_of.values()}))


def _as_groups(devices: np.ndarray) -> Groups:
    return tuple(tuple(int(d) for d in group) for group in devices)


def _integers(text: str) -> list[int]:
    return [int(item) for item in text.split(",") if item.strip()]


def _iota(text: str) -> np.ndarray:
    """`[dims]<=[reshape]T(permutation)`: 0..n-1 reshaped, transposed, reshaped to `dims`."""
    match = _IOTA.match(text)
    if match is None:
        raise ValueError(f"unknown spelling of a device list: {text!r}")
    dims = _integers(match[1])
    devices = np.arange(int(np.prod(dims))).reshape(_integers(match[2]) if match[2] else dims)
    if match[3]:
        devices = devices.transpose(_integers(match[3]))
    return devices.reshape(dims)


def _mesh_groups(axes_text: str, rest: str, group_text: str) -> Groups:
    sizes = {name: int(size) for name, size in _MESH_AXIS.findall(axes_text)}
    devices = np.arange(int(np.prod(list(sizes.values()))))
    if match := _DEVICE_IDS.search(rest):
        devices = _iota(match[1]).reshape(-1) if "[" in match[1] else np.array(_integers(match[1]))
    factors, grouped = [], []
    references = {name: (pre, size) for name, pre, size in _AXIS_REFERENCE.findall(group_text)}
    for name, size in sizes.items():
        pre, part = references.get(name, ("", ""))
        if name not in references:
            factors.append(size)
        elif not part:
            grouped.append(len(factors))
            factors.append(size)
        else:
            grouped.append(len(factors) + 1)
            factors += [int(pre), int(part), size // (int(pre) * int(part))]
    others = [axis for axis in range(len(factors)) if axis not in grouped]
    width = int(np.prod([factors[axis] for axis in grouped]))
    return _as_groups(devices.reshape(factors).transpose(others + grouped).reshape(-1, width))
