"""Names for groups of atomic axes: those that a person declares, those of levels, and the atomic ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxplan.errors import ArgumentError
from jaxplan.mesh._topology import Topology


def named_axes(axes: Mapping[str, int] | None, topology: Topology) -> dict[str, tuple[int, ...]]:
    """The atomic axes, by index and major to minor, of every name that a spec may use.

    Args:
      axes: names and sizes, outermost first, such as ``{"data": 4, "tensor": 2}``; sizes multiply to the number of
        devices. None: only levels of the machine (``node``, ``gpu``) and atomic axes have names.

    Raises:
      ArgumentError: sizes that do not multiply to the number of devices, or that cut across an atomic axis.

    Example:
      >>> named_axes({"data": 4, "tensor": 2}, Topology.parse("h100:8"))["data"]
      (0, 1)
    """
    names: dict[str, tuple[int, ...]] = {axis.name: (a,) for a, axis in enumerate(topology.axes)}
    for number, level in enumerate(topology.levels):
        inside = tuple(a for a, axis in enumerate(topology.axes) if axis.level == number)
        names |= {name: inside for name in (level.name, level.prefix) if name not in names}
    if axes is not None:
        names.update(_declared(axes, topology))
    return names


def _declared(axes: Any, topology: Topology) -> dict[str, tuple[int, ...]]:
    if not isinstance(axes, Mapping) or not all(
        isinstance(name, str) and isinstance(size, int) and not isinstance(size, bool) and size >= 1
        for name, size in axes.items()
    ):
        raise ArgumentError(
            f"axes is {axes!r}; expected names and sizes, outermost first, such as {{'data': 4, 'tensor': 2}}"
        )
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
