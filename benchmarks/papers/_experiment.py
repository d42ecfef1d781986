"""An experiment of a paper: rows of figures, ours beside the published ones, and claims that are judged on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Row = Mapping[str, Any]
"""One line of an experiment: numbers, strings and booleans by the name of a column."""
Outcome = Literal["agrees", "disagrees", "not covered"]
Judge = Callable[[Sequence[Row]], tuple[bool, str]]
"""From the rows of an experiment to whether its claim holds there, and the figures that say so."""
Cause = Callable[[Sequence[Row], Sequence[Row]], tuple[bool, str]]
"""From the rows and those measured for causes to whether they confirm a reason, and the figures that say so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One sentence of an evaluation section.

    Attributes:
      source: paper, section, table or figure.
      published: the sentence, or its figures.
      judge: reads the rows; None where the claim is not covered.
      reason: why it disagrees, or is not covered.
      cause: measures the reason of a disagreement: the cause switched off, or the quantities that differ.
    """

    source: str
    published: str
    judge: Judge | None = None
    reason: str = ""
    cause: Cause | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The outcome for one claim, with our figures.

    Attributes:
      why: of one that does not agree, the reason and the figures that were measured for it.
      confirmed: whether these figures confirm the reason; None where none is needed.
    """

    claim: Claim
    outcome: Outcome
    ours: str
    why: str = ""
    confirmed: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of an experiment's table: the key of its rows, a heading, and how a number is written."""

    key: str
    heading: str
    digits: int | None = None

    def text(self, row: Row) -> str:
        """The cell of a row; a dash where it has none."""
        value = row.get(self.key)
        if value is None:
            return "-"
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, float):
            return f"{value:,.{2 if self.digits is None else self.digits}f}"
        return f"{value:,}" if isinstance(value, int) else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A figure or table of a paper.

    Attributes:
      name: as on the command line.
      title: paper, figure or table, and its subject.
      setting: networks, machine and everything that the paper leaves open.
      run: makes the rows; keyword arguments, if any, make it smaller.
      measure_causes: makes the rows that reasons of disagreements are read off, if the others do not hold them.
      columns: of the table.
      claims: judged on the rows.
      shown: the rows of the table; all by default.
    """

    name: str
    title: str
    setting: str
    run: Callable[..., list[Row]]
    columns: Sequence[Column]
    claims: Sequence[Claim]
    shown: Callable[[Sequence[Row]], Sequence[Row]] = list
    measure_causes: Callable[[], list[Row]] | None = None

    def verdicts(self, rows: Sequence[Row], causes: Sequence[Row] = ()) -> list[Verdict]:
        """Judge all claims on rows; reasons of those that do not hold are read off both."""
        return [_judged(claim, rows, causes) for claim in self.claims]

    def table(self, rows: Sequence[Row]) -> str:
        """The rows as a table in Markdown."""
        head = "| " + " | ".join(column.heading for column in self.columns) + " |"
        rule = "|" + "---|" * len(self.columns)
        lines = [
            "| " + " | ".join(column.text(row) for column in self.columns) + " |" for row in self.shown(rows)
        ]
        return "\n".join([head, rule, *lines])


def _judged(claim: Claim, rows: Sequence[Row], causes: Sequence[Row]) -> Verdict:
    if claim.judge is None:
        return Verdict(claim=claim, outcome="not covered", ours="", why=claim.reason)
    holds, ours = claim.judge(rows)
    if holds:
        return Verdict(claim=claim, outcome="agrees", ours=ours)
    if claim.cause is None:
        return Verdict(claim=claim, outcome="disagrees", ours=ours, why=claim.reason)
    confirmed, figures = claim.cause(rows, causes)
    why = f"{claim.reason}. Measured: {figures}"
    return Verdict(claim=claim, outcome="disagrees", ours=ours, why=why, confirmed=confirmed)
