"""A plan as an engineer would say it: data, tensor, state, gathers, recomputed blocks."""

from __future__ import annotations

from dataclasses import dataclass

MAIN = 0.9
"""A statement is made when it holds for this share: small parameters stay whole, and a few gathers are kept."""
_MAIN_SPLIT = 0.95
"""A split of at least this share of the arithmetic is said to be the split of the plan."""


CELLS = ("split", "state", "params", "remat")
"""Most of the arithmetic; shares of optimizer state and of parameters that a device holds; recomputed blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """How some of the step's arithmetic is divided: ``data 4 x tensor 2``, and which share of it."""

    text: str
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """The splits of a plan, in the words of the field.

    Attributes:
      splits: of the arithmetic in contractions, the largest share first.
      state_ways: over how many devices optimizer slots and other state are sharded; the number of most bytes, or
        else all bytes over those that one device holds. 1 where there is no state, or it is whole.
      parameter_ways: the same of parameters.
      gathered_once: gathers of parameters with a copy that is kept for the backward pass.
      gathered_twice: those that are done for the forward pass and again for the backward pass.
      recomputed: which blocks the backward pass recomputes, such as ``blocks 1-6 of 12``; empty for none.
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
        if first.share >= _MAIN_SPLIT or not others:
            return first.text
        rest = others[:1] if others[0].share >= 1 - _MAIN_SPLIT else []
        return " and ".join(f"{split.text} ({split.share:.0%} of the arithmetic)" for split in (first, *rest))

    def _state(self) -> str:
        sharded = _sharded(self.state_ways)
        return f"optimizer state {sharded}" if sharded else ""

    def _parameters(self) -> str:
        sharded = _sharded(self.parameter_ways)
        gathered = {"layer": "gathered per layer", "once": "gathered once", "both": "some gathered per layer"}
        parts = (sharded, gathered.get(self._gathers(), ""))
        return f"parameters {', '.join(filter(None, parts))}" if any(parts) else ""

    def _gathers(self) -> str:
        """``layer`` where most gathers are repeated, ``once`` where most are kept, ``both``, or nothing."""
        total = self.gathered_once + self.gathered_twice
        if not total:
            return ""
        share = self.gathered_twice / total
        return "layer" if share >= MAIN else "once" if share <= 1 - MAIN else "both"

    def cells(self) -> tuple[str, str, str, str]:
        """The same in four columns of a table, `CELLS`."""
        split = self.splits[0].text if self.splits else "replicated"
        if self.splits and self.splits[0].share < _MAIN_SPLIT:
            split += f" +{len(self.splits) - 1}"
        gathered = f" {self._gathers()}".rstrip()
        blocks = " ".join(filter(None, (_short(self.recomputed), self.partly and f"{_short(self.partly)}*")))
        return split, _ways(self.state_ways), _ways(self.parameter_ways) + gathered, blocks or "-"


    def short(self) -> str:
        """Those of the columns that say something, such as ``data 8, state 1/8, params 1/8 layer``."""
        split, *others = self.cells()
        return ", ".join([split, *[f"{name} {cell}" for name, cell in zip(CELLS[1:], others) if cell != "-"]])


def _sharded(ways: float) -> str:
    """In words: ``sharded 8 ways``, or where arrays differ the share that a device holds."""
    if ways <= 1:
        return ""
    return f"sharded {ways:.0f} ways" if ways == round(ways) else f"partly sharded ({1 / ways:.0%} on each device)"


def _ways(ways: float) -> str:
    return f"1/{ways:.3g}" if ways > 1 else "-"


def _short(blocks: str) -> str:
    return blocks.removeprefix("blocks ").removeprefix("block ").partition(" of ")[0]
