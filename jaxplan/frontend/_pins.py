"""Parts of a plan that a person fixes, and how they are written (docs/steering.md).

Pins are a mapping from a pattern to a wish, the name of a family of plans, or a list of both:

  {"params/*/query/kernel": P(None, "tensor"),     a spec, for leaves of the arguments and for hints
   "embedding": "whole", "mu/*": "split",          on every device; split in some way
   "batch": Split(8),                              a named dimension, split into 8 parts
   "heads": Split(2, within="node"),               ... by devices of one node
   "vocabulary": Forbid()}                         ... never split
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec

from jaxplan.errors import ArgumentError

FAMILIES = {
    "data": "only the batch is split, and everything that is stored is whole",
    "fsdp": "of what is computed only the batch is split; what is stored may be split in any way",
    "tensor inside a node": "of what is computed no dimension but the batch is split across nodes",
}
"""Families of plans that pins can restrict a search to, and the splits that each allows."""


@dataclass(frozen=True, slots=True)
class Split:
    """Pin: a named dimension is split into so many parts wherever it is computed with.

    Attributes:
      parts: number of parts, at least 1.
      within: the level of the machine that the parts stay inside of, such as ``"node"``; None: anywhere.

    Example:
      >>> import jaxplan
      >>> pins = {"batch": jaxplan.Split(4), "heads": jaxplan.Split(2, within="node")}
    """

    parts: int
    within: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.parts, bool) or not isinstance(self.parts, int) or self.parts < 1:
            raise ArgumentError(f"Split({self.parts!r}): expected the number of parts, an integer of at least 1")
        if self.within is not None and not isinstance(self.within, str):
            raise ArgumentError(f"Split(within={self.within!r}): expected the name of a level, such as 'node'")

    def __repr__(self) -> str:
        return f"Split({self.parts})" if self.within is None else f"Split({self.parts}, within={self.within!r})"


class Forbid:
    """Pin: something is not split, or not over some axes.

    Attributes:
      axes: names of axes, or of levels of the machine (``"node"``: not across nodes); empty: not split at all.

    Example:
      >>> import jaxplan
      >>> pins = {"vocabulary": jaxplan.Forbid(), "params/*": jaxplan.Forbid("node")}
    """

    __slots__ = ("axes",)

    def __init__(self, *axes: str) -> None:
        if not all(isinstance(axis, str) for axis in axes):
            raise ArgumentError(f"Forbid{axes!r}: expected names of axes or levels, such as Forbid('node')")
        self.axes = tuple(axes)

    def __repr__(self) -> str:
        return f"Forbid({', '.join(map(repr, self.axes))})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Forbid) and self.axes == other.axes

    def __hash__(self) -> int:
        return hash((Forbid, self.axes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """One wish.

    Attributes:
      pattern: of paths, hints or named dimensions; empty for a family.
      wish: a `PartitionSpec`, ``"whole"``, ``"split"``, a `Split`, a `Forbid`, or the name of a family.
    """

    pattern: str
    wish: Any

    def __str__(self) -> str:
        return f"{self.pattern!r}: {self.wish!r}" if self.pattern else repr(self.wish)


def hint(x: Any, name: str) -> Any:
    """Name a value inside of a step, so that pins and explanations can speak of it; the value stays as it is.

    It is `jax.ad_checkpoint.checkpoint_name`, so that policies of `jax.checkpoint` see the same name.

    Args:
      x: an array, or a pytree of arrays, each of which gets the name.
      name: a non-empty string.

    Example:
      >>> import jax.numpy as jnp, jaxplan
      >>> def layer(w, x):
      ...     return jaxplan.hint(jnp.tanh(x @ w), "hidden")
      >>> pins = {"hidden": jaxplan.Split(2)}
    """
    if not isinstance(name, str) or not name:
        raise ArgumentError(f"jaxplan.hint(x, {name!r}): expected a name, a non-empty string")
    return jax.tree.map(lambda leaf: checkpoint_name(leaf, name), x)


def parse_pins(pins: Any) -> tuple[Pin, ...]:
    """Pins in one form.

    Raises:
      ArgumentError: something among them is no pin; says which, and the forms there are.
    """
    if pins is None:
        return ()
    if isinstance(pins, str):
        return (Pin(pattern="", wish=_family(pins)),)
    if isinstance(pins, Mapping):
        return tuple(_pin(key, wish) for key, wish in pins.items())
    if isinstance(pins, Sequence):
        return tuple(pin for part in pins for pin in ((part,) if isinstance(part, Pin) else parse_pins(part)))
    raise ArgumentError(
        f"pins is {pins!r}, of type {type(pins).__name__}.\n"
        "  expected: a mapping such as {'params/*/kernel': P(None, 'tensor'), 'batch': jaxplan.Split(8)}, the name of "
        f"a family ({', '.join(map(repr, FAMILIES))}), or a list of both"
    )


def _family(name: str) -> str:
    plain = name.lower().removesuffix(" only").replace("tensor parallel", "tensor")
    if plain not in FAMILIES:
        raise ArgumentError(
            f"pins={name!r} is no family of plans.\n  expected: {', '.join(map(repr, FAMILIES))}, or a mapping from "
            "paths or named dimensions to pins"
        )
    return plain


def _pin(key: Any, wish: Any) -> Pin:
    if not isinstance(key, str) or not key:
        raise ArgumentError(
            f"pins has the key {key!r}; expected a pattern of paths such as 'params/*/kernel', the name that a hint "
            "gave, or the name of a dimension such as 'batch'"
        )
    if isinstance(wish, PartitionSpec | Split | Forbid) or wish in ("whole", "split"):
        return Pin(pattern=key, wish=wish)
    if isinstance(wish, jax.sharding.NamedSharding):
        cause = "fix: give its spec, over names of axes=, or hand the whole tree to references={'mine': ...}"
    elif isinstance(wish, int):
        cause = f"fix: jaxplan.Split({wish})"
    else:
        cause = "fix: one of these"
    raise ArgumentError(
        f"pins[{key!r}] is {wish!r}, of type {type(wish).__name__}.\n"
        "  expected: a PartitionSpec, 'whole', 'split', jaxplan.Split(parts) or jaxplan.Forbid(*axes)\n"
        f"  {cause}"
    )
