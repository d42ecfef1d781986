"""A frontier as one HTML page that needs no network, where plotly and jinja2 are installed."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from jaxplan.core._files import check_writable, write_whole
from jaxplan.core._interner import distinct
from jaxplan.core._units import format_bytes, format_seconds
from jaxplan.errors import ArgumentError, MissingExtraError, UnsupportedError
from jaxplan.plans._frontier_data import FrontierData, spread
from jaxplan.plans._labels import Box, Canvas
from jaxplan.plans._plan_data import PlanData
from jaxplan.plans._plot import LOG_TICKS, is_logarithmic, units

if TYPE_CHECKING:
    import plotly.graph_objects as go

_MOST_PLANS = 12
_STAGES_MSG = (
    "the report is of plans that are one program, and all plans of this frontier run in stages.\n"
    "  fix: plan.explain(), or a frontier with stages=True or False"
)
_NOT_SHOWN = -1
_TEMPLATE = "report.html.j2"
_EMBEDDED = {
    "full_html": False, "include_plotlyjs": True, "div_id": "frontier",
    "config": {"displaylogo": False, "responsive": True},
}  # fmt: skip
"""How plotly writes the picture: with plotly.js inside."""
_WIDTH, _HEIGHT = 1060, 360
"""Pixels of the interactive picture between its axes, in a window that is wide enough."""
_MARGINS = {"l": 60, "r": 20, "t": 30, "b": 50}
_ROOM = 0.08
"""Of an axis, left free at either end."""
_LETTER_WIDTH, _LETTER_HEIGHT = 6.5, 16
"""Pixels of a letter, and of a line, of the names in it."""


def check_report(path: str | os.PathLike[str]) -> None:
    """Raise now the error that a report to this path would raise later.

    ArgumentError: no HTML file. MissingExtraError: plotly or jinja2 is missing. SaveError: the file cannot be written.
    """
    if not isinstance(path, str | os.PathLike):
        raise ArgumentError(
            f"report path {path!r} is of type {type(path).__name__}; expected a string or a Path"
        )
    if os.path.splitext(os.fspath(path))[1].lower() not in (".html", ".htm"):
        raise ArgumentError(f"report path {os.fspath(path)!r} must end in .html or .htm")
    try:
        import jinja2  # noqa: F401
        import plotly  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            f"Frontier.report needs {error.name or 'plotly and jinja2'}, which is not installed.\n"
            "  fix: pip install 'jaxplan[plot]'"
        ) from error
    check_writable(path)


def write_report(frontier: FrontierData[PlanData], path: str | os.PathLike[str], choose: str | int) -> None:
    """Write the page; at most a dozen plans are told in full, the chosen one among them."""
    check_report(path)
    import jinja2
    from plotly.io import to_html

    from jaxplan.plans._report_data import plan_data

    shown = _shown(frontier, frontier.choose(choose))
    template = files("jaxplan.plans").joinpath("templates", _TEMPLATE).read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    page = environment.from_string(template).render(
        title=f"{len(frontier)} plans on {frontier.points[0].topology.name}",
        footer=_footer(frontier),
        rows=_rows(frontier, shown),
        figure=to_html(figure_of(frontier, shown), **_EMBEDDED),
        plans=[plan_data(plan, _name(frontier, plan), frontier) for plan in shown],
        not_shown=_NOT_SHOWN,
    )
    write_whole(path, page)


def _shown(frontier: FrontierData[PlanData], chosen: PlanData) -> list[PlanData]:
    """The chosen plan first, then points, then references as far as there is room."""
    points = [frontier.points[i] for i in spread(frontier, _MOST_PLANS - 1)]
    ordered = [chosen, *points, *frontier.references.values()]
    shown = distinct([plan for plan in ordered if not plan.stages])[:_MOST_PLANS]
    if not shown:
        raise UnsupportedError(_STAGES_MSG)
    return shown


def _name(frontier: FrontierData[PlanData], plan: PlanData) -> str:
    """Number and marks of a point, the name of a reference."""
    for number, point in enumerate(frontier.points):
        if point is plan:
            return " ".join([f"#{number}", *frontier.marks(plan)])
    return next(name for name, reference in frontier.references.items() if reference is plan)


def _index(shown: list[PlanData], plan: PlanData) -> int:
    return next((i for i, other in enumerate(shown) if other is plan), _NOT_SHOWN)


def _rows(frontier: FrontierData[PlanData], shown: list[PlanData]) -> list[dict[str, Any]]:
    limit = frontier.memory_limit_bytes
    return [
        {
            "index": _index(shown, plan),
            "kind": kind,
            "cells": (
                _name(frontier, plan),
                format_seconds(plan.time_seconds),
                format_bytes(plan.memory_bytes)
                + (" (over the limit)" if limit and plan.memory_bytes > limit else ""),
                format_seconds(plan.compute_seconds),
                format_seconds(plan.communication_seconds),
                format_seconds(plan.hidden_seconds),
                plan.summary,
            ),
        }
        for kind, plans in (("point", frontier.points), ("reference", frontier.references.values()))
        for plan in plans
    ]


def _footer(frontier: FrontierData[PlanData]) -> list[str]:
    limit = frontier.memory_limit_bytes
    lines = [] if limit is None else [f"memory limit {format_bytes(limit)} per device"]
    return [
        *lines,
        *frontier.notes,
        *(f"{name} does not apply: {why}" for name, why in frontier.absent.items()),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axis:
    """An axis of the interactive picture, ``pixels`` long; ``ends`` are exponents of ten where it is logarithmic."""

    title: str
    logarithmic: bool
    ends: tuple[float, float]
    pixels: float

    @classmethod
    def of(cls, title: str, values: Sequence[float], pixels: float) -> _Axis:
        logarithmic = is_logarithmic(values)
        found = [math.log10(value) for value in values] if logarithmic else values
        room = _ROOM * (max(found) - min(found) or max(abs(min(found)), 1.0))
        return cls(title=title, logarithmic=logarithmic, ends=(min(found) - room, max(found) + room), pixels=pixels)

    @property
    def layout(self) -> dict[str, Any]:
        if not self.logarithmic:
            return {"title": self.title, "type": "linear", "range": self.ends}
        first, last = (math.floor(end) for end in self.ends)
        ticks = [factor * 10.0**power for power in range(first, last + 1) for factor in LOG_TICKS]
        texts = [f"{tick:g}" for tick in ticks]
        return {"title": self.title, "type": "log", "range": self.ends, "tickvals": ticks, "ticktext": texts}

    def at(self, value: float) -> float:
        """Where an annotation stands, which plotly takes as exponents too."""
        return math.log10(value) if self.logarithmic else value

    def pixel(self, value: float) -> float:
        return self.pixels * (self.at(value) - self.ends[0]) / (self.ends[1] - self.ends[0])


def figure_of(frontier: FrontierData[PlanData], shown: list[PlanData]) -> go.Figure:
    """The interactive picture; its last trace marks the plan that is told below."""
    import plotly.graph_objects as go

    time, size = units(frontier)

    def place(plan: PlanData) -> tuple[float, float]:
        return plan.memory_bytes / size[0], plan.time_seconds / time[0]

    def trace(plans: list[PlanData], **fields: Any) -> go.Scatter:
        return go.Scatter(
            x=[place(plan)[0] for plan in plans],
            y=[place(plan)[1] for plan in plans],
            customdata=[_index(shown, plan) for plan in plans],
            text=[f"{_plain(_name(frontier, plan))}<br>{_plain(plan.summary)}" for plan in plans],
            hovertemplate=f"%{{text}}<br>%{{x:.4g}} {size[1]}, %{{y:.4g}} {time[1]}<extra></extra>",
            **fields,
        )

    points, references = list(frontier.points), list(frontier.references.values())
    figure = go.Figure(
        [
            trace(points, name="frontier", mode="lines+markers", line={"shape": "hv"}),
            trace(
                references,
                name="reference strategies",
                mode="markers",
                marker={"symbol": "square-open", "size": 9},
            ),
            trace(shown[:1], name="shown below", mode="markers", marker={"symbol": "star", "size": 16}),
        ]
    )
    limit = frontier.memory_limit_bytes
    places = [place(plan) for plan in (*points, *references)]
    drawn = [limit / size[0]] if limit is not None and limit / size[0] <= 2 * max(x for x, _ in places) else []
    x = _Axis.of(f"peak memory per device ({size[1]})", [x for x, _ in places] + drawn, _WIDTH)
    y = _Axis.of(f"time of a step ({time[1]})", [y for _, y in places], _HEIGHT)
    for at in drawn:
        figure.add_shape(type="line", x0=at, x1=at, y0=0, y1=1, yref="paper", line={"dash": "dash", "width": 1})
    named = [(", ".join(frontier.marks(plan)), place(plan)) for plan in points if frontier.marks(plan)]
    named += [(name, place(plan)) for name, plan in frontier.references.items()]
    figure.update_layout(
        xaxis=x.layout,
        yaxis=y.layout,
        annotations=[
            *({"text": "memory limit", "x": x.at(at), "y": 1, "yref": "paper", "yanchor": "bottom", "showarrow": False}
              for at in drawn),
            *_labels(named, places, x, y),
        ],
        height=_HEIGHT + _MARGINS["t"] + _MARGINS["b"],
        margin=_MARGINS,
        template="plotly_white",
        legend={"orientation": "h", "y": 1.1},
    )  # fmt: skip
    return figure


def _labels(
    named: Sequence[tuple[str, tuple[float, float]]], points: Sequence[tuple[float, float]], x: _Axis, y: _Axis
) -> list[dict[str, Any]]:
    """Names beside their points, placed for a page as wide as it gets."""

    def pixel(at: tuple[float, float]) -> tuple[float, float]:
        return x.pixel(at[0]), y.pixel(at[1])

    data = {pixel(at): at for _, at in named}
    canvas = Canvas(inside=Box(0, 0, x.pixels, y.pixels), points=tuple(map(pixel, points)))
    labels = canvas.joined([(text, pixel(at)) for text, at in named])
    sizes = [((len(text) * _LETTER_WIDTH, _LETTER_HEIGHT), at) for text, at in labels]
    return [
        {
            "text": _plain(text), "x": x.at(data[at][0]), "y": y.at(data[at][1]), "ax": dx, "ay": -dy,
            "font": {"size": _LETTER_HEIGHT - 4}, "borderpad": 0, "arrowhead": 0, "arrowwidth": 0.6, "standoff": 4,
        }
        for (text, at), (dx, dy) in zip(labels, canvas.placed(sizes), strict=True)
    ]  # fmt: skip


def _plain(text: str) -> str:
    """Text in which plotly finds no tags."""
    return text.replace("&", "&amp;").replace("<", "&lt;")
