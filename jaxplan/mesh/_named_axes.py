"""Names for groups of atomic axes: those that a person declares, those of levels, and the atomic ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxplan.errors import ArgumentError
from jaxplan.mesh._topology import Topology

AxesNames = Mapping[str, int | str | Sequence[str]]
"""Names for groups of atomic axes: a size each, outermost first, or the axes of the machine that each stands for."""


def named_axes(axes: AxesNames | None, topology: Topology) -> dict[str, tuple[int, ...]]:
    """The atomic axes, by index and major to minor, of every name that a spec may use.

    Args:
      axes: names and sizes, outermost first, such as ``{"data": 4, "tensor": 2}``, which multiply to the number of
        devices; or names and the axes that they stand for, such as ``{"data": "node", "tensor": ("gpu0", "gpu1")}``.
        None: only levels of the machine (``node``, ``gpu``) and atomic axes have names.

    Raises:
      ArgumentError: sizes that do not multiply to the number of devices, or that cut across an atomic axis; axes that
        the machine does not have, or that have two names.

    Example:
      >>> named_axes({"data": 4, "tensor": 2}, Topology.parse("h100:8"))["data"]
      (0, 1)
    """
    names: dict[str, tuple[int, ...]] = {axis.name: (a,) for a, axis in enumerate(topology.axes)}
    for number, level in enumerate(topology.levels):
        inside = tuple(a for a, axis in enumerate(topology.axes) if axis.level == number)
        names |= {name: inside for name in (level.name, level.prefix) if name not in names}
    if axes is not None:
        names.update(_declared(axes, topology, names))
    return names


def axis_groups(names: AxesNames, topology: Topology) -> dict[str, tuple[int, ...]]:
    """Groups that hold every atomic axis once, in the order of the devices as far as they allow.

    Axes that a mapping to names leaves out keep their own.

    Example:
      >>> axis_groups({"tensor": ("gpu1", "gpu2")}, Topology.parse("h100:2x8"))
      {'node': (0,), 'gpu0': (1,), 'tensor': (2, 3)}
    """
    groups = _declared(names, topology, named_axes(None, topology))
    taken = {a for group in groups.values() for a in group}
    groups |= {axis.name: (a,) for a, axis in enumerate(topology.axes) if a not in taken}
    if len(groups) < len(names) + len(topology.axes) - len(taken):
        raise ArgumentError(f"names is {dict(names)}; a name is that of an axis that is not in its group")
    return dict(sorted(groups.items(), key=lambda item: item[1][:1] or (len(topology.axes),)))


def _declared(axes: Any, topology: Topology, known: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    if not isinstance(axes, Mapping) or not all(isinstance(name, str) for name in axes):
        raise _malformed(axes)
    if all(isinstance(size, int) and not isinstance(size, bool) and size >= 1 for size in axes.values()):
        return _by_size(axes, topology)
    found = {name: axes_of(_names(axes, of), known, f"axes={dict(axes)}") for name, of in axes.items()}
    used = [a for group in found.values() for a in group]
    if len(set(used)) < len(used):
        raise ArgumentError(f"axes={dict(axes)} give two names to one axis of {topology.name}; expected one each")
    return found


def _names(axes: Any, of: Any) -> tuple[str, ...]:
    if isinstance(of, str):
        return (of,)
    if not isinstance(of, list | tuple) or not all(isinstance(name, str) for name in of):
        raise _malformed(axes)
    return tuple(of)


def _malformed(axes: Any) -> ArgumentError:
    return ArgumentError(
        f"axes is {axes!r}; expected names and sizes, outermost first, such as {{'data': 4, 'tensor': 2}}, or names "
        "and the axes of the machine that they stand for, such as {'data': 'node', 'tensor': ('gpu0', 'gpu1')}"
    )


def _by_size(axes: Mapping[str, int], topology: Topology) -> dict[str, tuple[int, ...]]:
    found, rest = {}, list(enumerate(topology.axes))
    for name, size in axes.items():
        taken, left = [], size
        while left > 1 and rest and left % rest[0][1].size == 0:
            place, axis = rest.pop(0)
            taken.append(place)
            left //= axis.size
        if left > 1:
            raise _not_a_grouping(axes, topology, name)
        found[name] = tuple(taken)
    if rest:
        raise _not_a_grouping(axes, topology, None)
    return found


def _not_a_grouping(axes: Mapping[str, int], topology: Topology, name: str | None) -> ArgumentError:
    sizes = [axis.size for axis in topology.axes]
    what = f"size {axes[name]} of {name!r} is no product of the next ones" if name else "some devices are left over"
    return ArgumentError(
        f"axes={dict(axes)} do not divide the devices of {topology.name}: {what}.\n"
        f"  expected: sizes that multiply to {topology.num_devices}, outermost first, each a product of neighbours in "
        f"{sizes}"
    )


def axes_of(names: Sequence[str], known: Mapping[str, tuple[int, ...]], given: str) -> tuple[int, ...]:
    """The atomic axes of some names, in that order; errors quote ``given``.

    Raises:
      ArgumentError: a name that is not known.
    """
    for name in names:
        if name not in known:
            raise ArgumentError(
                f"{given} names the axis {name!r}, which is not declared.\n"
                f"  expected: one of {', '.join(sorted(known))}\n"
                "  fix: declare it, as in axes={'data': 4, 'tensor': 2}"
            )
    return tuple(a for name in names for a in known[name])
