"""A frontier as one HTML page that needs no network, where plotly and jinja2 are installed."""

from __future__ import annotations

import os
from importlib.resources import files
from typing import Any

from jaxplan.core._files import check_writable, write_whole
from jaxplan.core._interner import distinct
from jaxplan.core._units import format_bytes, format_seconds
from jaxplan.errors import ArgumentError, MissingExtraError, UnsupportedError
from jaxplan.plans._frontier_data import FrontierData, spread
from jaxplan.plans._plan_data import PlanData

_MOST_PLANS = 12
_STAGES_MSG = (
    "the report is of plans that are one program, and all plans of this frontier run in stages.\n"
    "  fix: plan.explain(), or a frontier with stages=True or False"
)
_NOT_SHOWN = -1
_TEMPLATE = "report.html.j2"
_DIV = "frontier"


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

    from jaxplan.plans._report_data import plan_data

    shown = _shown(frontier, frontier.choose(choose))
    template = files("jaxplan.plans").joinpath("templates", _TEMPLATE).read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    page = environment.from_string(template).render(
        title=f"{len(frontier)} plans on {frontier.points[0].topology.name}",
        footer=_footer(frontier),
        rows=_rows(frontier, shown),
        figure=_figure(frontier, shown),
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


def _figure(frontier: FrontierData[PlanData], shown: list[PlanData]) -> str:
    """The interactive picture with plotly.js inside; the last trace marks the plan that is told below."""
    import plotly.graph_objects as go
    from plotly.io import to_html

    from jaxplan.plans._plot import units

    time, size = units(frontier)

    def trace(plans: list[PlanData], **fields: Any) -> go.Scatter:
        return go.Scatter(
            x=[plan.memory_bytes / size[0] for plan in plans],
            y=[plan.time_seconds / time[0] for plan in plans],
            customdata=[_index(shown, plan) for plan in plans],
            text=[f"{_plain(_name(frontier, plan))}<br>{_plain(plan.summary)}" for plan in plans],
            hovertemplate=f"%{{text}}<br>%{{x:.4g}} {size[1]}, %{{y:.4g}} {time[1]}<extra></extra>",
            **fields,
        )

    references = list(frontier.references.values())
    figure = go.Figure(
        [
            trace(list(frontier.points), name="frontier", mode="lines+markers", line={"shape": "hv"}),
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
    if limit is not None and limit <= 2 * frontier.fastest().memory_bytes:
        figure.add_vline(x=limit / size[0], line_dash="dash", annotation_text="memory limit")
    figure.update_layout(
        xaxis_title=f"peak memory per device ({size[1]})",
        yaxis_title=f"time of a step ({time[1]})",
        height=420,
        margin={"l": 60, "r": 20, "t": 30, "b": 50},
        template="plotly_white",
        legend={"orientation": "h", "y": 1.1},
    )
    config = {"displaylogo": False, "responsive": True}
    return to_html(figure, full_html=False, include_plotlyjs=True, div_id=_DIV, config=config)


def _plain(text: str) -> str:
    """Text in which plotly finds no tags."""
    return text.replace("&", "&amp;").replace("<", "&lt;")
