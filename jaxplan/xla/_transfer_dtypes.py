"""The dtypes in which tensors travel when they are resharded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from jaxplan.ir import Tensor
from jaxplan.xla._found import Found
from jaxplan.xla._plan_effects import TravelAs, TravelRounded


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferDtypes:
    """Of the tensors of a step, where these are not the tensors' own.

    Attributes:
      sources: tensor -> the narrower one that it was cast from, which travels in its place.
      rounded: tensors that travel rounded to the readers that round them.
    """

    sources: Mapping[int, int] = field(default_factory=dict)
    rounded: Mapping[int, TravelRounded] = field(default_factory=dict)

    @classmethod
    def of(cls, found: Found) -> TransferDtypes:
        """By the effects of the rules."""
        return cls(
            sources={effect.tensor: effect.source for effect in found.of(TravelAs)},
            rounded={effect.tensor: effect for effect in found.of(TravelRounded)},
        )

    def source(self, t: int) -> int:
        """The tensor that travels when one is resharded: itself, or the narrower one that it was cast from."""
        return self.sources.get(t, t)

    def tensor(self, tensors: tuple[Tensor, ...], t: int, readers: Iterable[int], end: int) -> Tensor:
        """A tensor as it travels to some of its readers (equations; ``end`` for outputs of the program)."""
        tensor = tensors[t]
        if t in self.sources:
            return replace(tensor, itemsize=tensors[self.sources[t]].itemsize)
        equations = [e for e in readers if e < end] if t in self.rounded else []
        if equations and self.rounded[t].readers.issuperset(equations):
            return replace(tensor, itemsize=self.rounded[t].itemsize)
        return tensor
