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


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One sentence of an evaluation section.

    Attributes:
      source: paper, section, table or figure.
      published: the sentence, or its figures.
      judge: reads the rows; None where the claim is not covered.
      reason: why it disagrees, or is not covered.
      shown_by: the command that shows the reason of a disagreement.
    """

    source: str
    published: str
    judge: Judge | None = None
    reason: str = ""
    shown_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The outcome for one claim, with our figures."""

    claim: Claim
    outcome: Outcome
    ours: str


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

    def verdicts(self, rows: Sequence[Row]) -> list[Verdict]:
        """Judge all claims on rows."""
        return [_judged(claim, rows) for claim in self.claims]

    def table(self, rows: Sequence[Row]) -> str:
        """The rows as a table in Markdown."""
        head = "| " + " | ".join(column.heading for column in self.columns) + " |"
        rule = "|" + "---|" * len(self.columns)
        lines = [
            "| " + " | ".join(column.text(row) for column in self.columns) + " |" for row in self.shown(rows)
        ]
        return "\n".join([head, rule, *lines])


def _judged(claim: Claim, rows: Sequence[Row]) -> Verdict:
    if claim.judge is None:
        return Verdict(claim=claim, outcome="not covered", ours="")
    holds, ours = claim.judge(rows)
    return Verdict(claim=claim, outcome="agrees" if holds else "disagrees", ours=ours)
