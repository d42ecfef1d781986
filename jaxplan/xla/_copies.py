"""Seventh pass: copies in other layouts and dtypes, and buffers beside tensors, by the effects of the layout rules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from jaxplan.xla._effects import Effect, End, Extend, Rewrite, WaitBeside
from jaxplan.xla._facts import Facts
from jaxplan.xla._found import Found, effects
from jaxplan.xla.rules.gpu.borders import PaddedImage


def layout_copies(facts: Facts, death: list[int]) -> Found:
    """The effects of the stage; ``death`` is changed where copies end or extend the live range of a value."""
    beside, rewritten, others = dict[int, WaitBeside](), set[tuple[int, tuple[int, ...]]](), list[Effect]()
    for effect in effects(replace(facts, death=death, beside=beside, rewritten=rewritten), "layouts"):
        if isinstance(effect, End):
            death[effect.tensor] = effect.at
        elif isinstance(effect, Extend):
            death[effect.tensor] = max(death[effect.tensor], effect.until)
        elif isinstance(effect, WaitBeside):
            beside[effect.tensor] = effect
        elif isinstance(effect, Rewrite):
            rewritten.add((effect.tensor, effect.order))
        else:
            others.append(effect)
    return Found.of_effects(others)


class Bordered(NamedTuple):
    """A padded image, the equations between which it lives, and those that read it."""

    image: PaddedImage
    first: int
    last: int
    readers: tuple[int, ...]


def bordered_images(facts: Facts, images: Iterable[PaddedImage], death: Sequence[int]) -> tuple[Bordered, ...]:
    """When padded images live.

    A copy that the gradient of the kernel reads as well is kept for it; one with a border of another width is made when
    it is read.
    """
    found: dict[tuple[int, tuple, tuple], Bordered] = {}
    for image in images:
        first, last = image.equation, image.equation if image.is_whole else death[image.tensor]
        readers: tuple[int, ...] = (image.equation,)
        key = facts.graph.values.number[image.tensor], image.widths, image.holes
        known = found.get(key)
        if known is not None and known.image.is_whole:
            first, last, readers = known.first, facts.read_end[image.equation], known.readers + readers
        found[key] = Bordered(image, first, last, readers)
    return tuple(found.values())
