"""A plan as an engineer would say it: data, tensor, state, gathers, recomputed blocks."""

from __future__ import annotations

from dataclasses import dataclass

_ALIKE = 1.005
"""Ways of sharding that differ by less are said as one number: small parameters stay whole."""
_MAIN = 0.95
"""A split of at least this share of the arithmetic is said to be the split of the plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """How some of the step's arithmetic is divided: ``data 4 x tensor 2``, and which share of it."""

    text: str
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """What a plan splits, in the words of the field.

    Attributes:
      splits: of the arithmetic in contractions, the largest share first.
      state_ways: bytes of optimizer slots and other state, over those that one device holds; 1 where there is none.
      parameter_ways: the same of parameters.
      gathered_once: gathers of parameters whose copy is kept for the backward pass.
      gathered_twice: those that are done for the forward pass and again for the backward pass.
      recomputed: which blocks the backward pass computes again, such as ``blocks 1-6 of 12``; empty for none.
      partly: those of which the results of dots are kept.

    Example:
      >>> str(Outline(splits=(Split(text="data 4 x tensor 2", share=1.0),), state_ways=8.0, recomputed="blocks 1-6"))
      'data 4 x tensor 2, optimizer state sharded 8 ways, blocks 1-6 recomputed'
    """

    splits: tuple[Split, ...] = ()
    state_ways: float = 1.0
    parameter_ways: float = 1.0
    gathered_once: int = 0
    gathered_twice: int = 0
    recomputed: str = ""
    partly: str = ""

    def __str__(self) -> str:
        clauses = [self._splits(), self._state(), self._parameters()]
        clauses.append(f"{self.recomputed} recomputed" if self.recomputed else "")
        clauses.append(f"{self.partly} recomputed but for dots" if self.partly else "")
        return ", ".join(filter(None, clauses))

    def _splits(self) -> str:
        if not self.splits:
            return "replicated"
        first, *others = self.splits
        if first.share >= _MAIN:
            return first.text
        rest = others[:1] if others[0].share >= 1 - _MAIN else []
        return " and ".join(f"{split.text} ({split.share:.0%} of the arithmetic)" for split in (first, *rest))

    def _state(self) -> str:
        return f"optimizer state sharded {self.state_ways:.3g} ways" if self.state_ways > _ALIKE else ""

    def _parameters(self) -> str:
        sharded = f"sharded {self.parameter_ways:.3g} ways" if self.parameter_ways > _ALIKE else ""
        if self.gathered_twice and self.gathered_once:
            gathered = f"gathered per layer ({self.gathered_twice}) or once ({self.gathered_once})"
        elif self.gathered_twice:
            gathered = "gathered per layer"
        else:
            gathered = "gathered once" if self.gathered_once else ""
        both = ", ".join(filter(None, (sharded, gathered)))
        return f"parameters {both}" if both else ""

    def cells(self) -> tuple[str, str, str, str]:
        """The same in four columns of a table: split, state, parameters and their gathers, recomputed."""
        split = self.splits[0].text if self.splits else "replicated"
        if self.splits and self.splits[0].share < _MAIN:
            split += f" +{len(self.splits) - 1}"
        gathers = "layer" if self.gathered_twice and not self.gathered_once else "once" if not self.gathered_twice else "both"
        gathered = f" {gathers}" if self.gathered_once or self.gathered_twice else ""
        blocks = " ".join(filter(None, (_short(self.recomputed), self.partly and f"{_short(self.partly)}*")))
        return split, _ways(self.state_ways), _ways(self.parameter_ways) + gathered, blocks or "-"


def _ways(ways: float) -> str:
    return f"1/{ways:.3g}" if ways > _ALIKE else "-"


def _short(blocks: str) -> str:
    return blocks.removeprefix("blocks ").removeprefix("block ").partition(" of ")[0]
