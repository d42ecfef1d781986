"""A frontier as a picture, where matplotlib is installed."""

from __future__ import annotations

import io
import itertools
import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jaxplan.core._files import check_writable, write_whole
from jaxplan.core._units import format_bytes
from jaxplan.errors import ArgumentError, MissingExtraError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

    from jaxplan.plans._frontier_data import FrontierData
    from jaxplan.plans._plan_data import PlanData

_ENDINGS: dict[str, dict[str, Any]] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {}}
_LOG_AXIS_RATIO = 5.0  # an axis is logarithmic when its ends differ by more than this factor
_TICKS = (1, 1.5, 2, 3, 5, 7)  # of each decade
_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
_SIZES = ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"))
_FONT_SIZE = 9
_NEAR = 6  # points of the screen: markers closer than that share a label
_DISTANCES = (9, 18, 30, 44, 60, 80)  # points of the screen from a marker to its label
_DIRECTIONS = 16
_PNG_DPI = 150


def check_plot(path: str | os.PathLike[str]) -> str:
    """Raise now what a plot to this path would raise later; return its ending, such as ``.svg``.

    ArgumentError: no known format. MissingExtraError: matplotlib is missing. SaveError: the file cannot be written.
    """
    if not isinstance(path, str | os.PathLike):
        raise ArgumentError(
            f"plot path {path!r} is of type {type(path).__name__}; expected a string or a Path"
        )
    ending = os.path.splitext(os.fspath(path))[1].lower()
    if ending not in _ENDINGS:
        raise ArgumentError(f"plot path {os.fspath(path)!r} must end in one of {', '.join(_ENDINGS)}")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            "Frontier.plot needs matplotlib, which is not installed.\n  fix: pip install 'jaxplan[plot]'"
        ) from error
    check_writable(path)
    return ending


def draw_plot(frontier: FrontierData[PlanData], path: str | os.PathLike[str], choose: str | int) -> None:
    """Draw the frontier, its named points, the choice and the references; equal frontiers give equal files."""
    ending = check_plot(path)
    import matplotlib

    # The salt makes the ids in an SVG repeatable.
    with matplotlib.rc_context({"svg.hashsalt": "jaxplan"}):
        drawn = io.BytesIO()
        dpi = _PNG_DPI if ending == ".png" else "figure"
        figure_of(frontier, choose).savefig(drawn, format=ending[1:], metadata=_ENDINGS[ending], dpi=dpi)
    write_whole(path, drawn.getvalue())


def figure_of(frontier: FrontierData[PlanData], choose: str | int) -> Figure:
    """The picture as a matplotlib figure, made without pyplot: no global state, no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    chosen = frontier.choose(choose)
    time, size = units(frontier)
    figure = Figure(figsize=(8.0, 5.0), layout="constrained")
    FigureCanvasAgg(figure)  # measures text
    axes = figure.add_subplot()
    points = [(plan.memory_bytes / size[0], plan.time_seconds / time[0]) for plan in frontier]
    references = [
        (name, (plan.memory_bytes / size[0], plan.time_seconds / time[0]))
        for name, plan in frontier.references.items()
    ]
    named = [
        (", ".join(frontier.marks(plan)), at) for plan, at in zip(frontier, points) if frontier.marks(plan)
    ]
    _draw_intervals(axes, frontier, points, size[0])
    _draw_points(axes, points, (chosen.memory_bytes / size[0], chosen.time_seconds / time[0]))
    _draw_references(axes, [at for _, at in references])
    _draw_limit(axes, frontier.memory_limit_bytes, size[0])
    _finish_axes(axes, (time[1], size[1]), [*points, *(at for _, at in references)])
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # labels are placed on the screen: nothing may move from here on
    _place_labels(figure, axes, [*named, *references], points)
    return figure


def units(frontier: FrontierData[PlanData]) -> tuple[tuple[float, str], tuple[float, str]]:
    """Of time and of memory, so that the largest number of the frontier is at least 1."""
    time, size = frontier.leanest().time_seconds, frontier.fastest().memory_bytes
    return (
        next((unit for unit in _TIMES if time >= unit[0]), _TIMES[-1]),
        next((unit for unit in _SIZES if size >= unit[0]), _SIZES[-1]),
    )


def _draw_points(axes: Axes, points: Sequence[tuple[float, float]], chosen: tuple[float, float]) -> None:
    # A plan is also possible at every larger memory: the frontier is a staircase.
    x, y = zip(*points)
    axes.step(x, y, where="post", color="tab:blue", alpha=0.4)
    axes.plot(x, y, "o", color="tab:blue", label="frontier")
    axes.plot(
        *([v] for v in chosen),
        "*",
        color="tab:orange",
        markersize=15,
        markeredgecolor="black",
        label="chosen plan",
    )


def _draw_intervals(
    axes: Axes, frontier: FrontierData[PlanData], points: Sequence[tuple[float, float]], unit: float
) -> None:
    """A bar for each predicted point over the memory that nine of ten compiled plans like it take."""
    bars = [
        (*(bound / unit for bound in plan.memory_interval_bytes), y)
        for plan, (_, y) in zip(frontier, points, strict=True)
        if plan.verified is None and plan.memory_interval_bytes is not None
    ]
    if bars:
        low, high, y = zip(*bars, strict=True)
        axes.hlines(y, low, high, color="tab:blue", alpha=0.25, linewidth=4, label="holds 9 of 10 such plans, compiled")


def _draw_references(axes: Axes, references: Sequence[tuple[float, float]]) -> None:
    if references:
        x, y = zip(*references)
        axes.plot(
            x, y, "s", color="tab:red", markerfacecolor="none", linestyle="none", label="reference strategies"
        )


def _draw_limit(axes: Axes, limit_bytes: int | None, unit: float) -> None:
    """A line, or where it lies so far to the right that it would squeeze the points, words alone."""
    if limit_bytes is None:
        return
    if limit_bytes / unit <= 2 * axes.dataLim.x1:
        axes.axvline(limit_bytes / unit, color="gray", linestyle="--", label="memory limit")
    else:
        text = f"memory limit {format_bytes(limit_bytes)}: to the right"
        axes.plot([], [], color="gray", linestyle="--", label=text)


def _finish_axes(axes: Axes, units: tuple[str, str], points: Sequence[tuple[float, float]]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for axis, values, scale in (
        (axes.xaxis, [x for x, _ in points], axes.set_xscale),
        (axes.yaxis, [y for _, y in points], axes.set_yscale),
    ):
        if max(values) > _LOG_AXIS_RATIO * min(values) > 0:
            scale("log")
            many = max(values) > 100 * min(values)
            axis.set_major_locator(LogLocator(subs=(1, 3) if many else _TICKS))
            axis.set_minor_formatter(NullFormatter())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.6g}"))
    axes.set_xlabel(f"peak memory per device ({units[1]})")
    axes.set_ylabel(f"time of a step ({units[0]})")
    axes.margins(x=0.12, y=0.12)  # room for the labels
    axes.grid(True, alpha=0.3)
    axes.legend(fontsize=_FONT_SIZE, loc="upper center", bbox_to_anchor=(0.5, 1.12), ncols=4, frameon=False)


def _place_labels(
    figure: Figure,
    axes: Axes,
    named: Sequence[tuple[str, tuple[float, float]]],
    points: Sequence[tuple[float, float]],
) -> None:
    """Write each name at the nearest free place around its marker, with a line to it where that is not beside it."""
    from matplotlib.text import Text
    from matplotlib.transforms import Bbox

    scale = figure.dpi / 72
    where = [tuple(map(float, axes.transData.transform(at))) for at in points]
    where += [tuple(map(float, axes.transData.transform(at))) for _, at in named]
    radius = _NEAR * scale
    taken = [Bbox.from_extents(x - radius, y - radius, x + radius, y + radius) for x, y in where]
    inside = axes.get_window_extent()
    for text, at in _joined(axes, named, radius):
        label = axes.annotate(
            text, at, xytext=(0, 0), textcoords="offset points", fontsize=_FONT_SIZE, ha="center", va="center",
            arrowprops={"arrowstyle": "-", "color": "gray", "linewidth": 0.6, "shrinkA": 0, "shrinkB": 3},
        )  # fmt: skip
        extent = Text.get_window_extent(label)  # without the line
        size, centre = (extent.width, extent.height), axes.transData.transform(at)
        offset, box = _free_place(size, centre, scale, inside, taken)
        label.set_position((offset[0] / scale, offset[1] / scale))
        taken.append(box)


def _joined(
    axes: Axes, named: Sequence[tuple[str, tuple[float, float]]], radius: float
) -> list[tuple[str, tuple[float, float]]]:
    """Names of markers that lie on each other in one label."""
    found: list[tuple[list[str], tuple[float, float]]] = []
    for text, at in named:
        here = axes.transData.transform(at)
        for texts, other in found:
            if math.dist(here, axes.transData.transform(other)) < radius:
                texts.append(text)
                break
        else:
            found.append(([text], at))
    return [(", ".join(texts), at) for texts, at in found]


def _free_place(
    size: tuple[float, float], centre: Any, scale: float, inside: Bbox, taken: Sequence[Bbox]
) -> tuple[tuple[float, float], Bbox]:
    """The offset of a label and its box: the nearest of those that overlap nothing, or else the least."""
    from matplotlib.transforms import Bbox

    best: tuple[float, tuple[float, float], Bbox] | None = None
    for distance, step in itertools.product(_DISTANCES, range(_DIRECTIONS)):
        angle = math.pi / 4 + step * 2 * math.pi / _DIRECTIONS
        dx = math.cos(angle) * (distance * scale + size[0] / 2)
        dy = math.sin(angle) * (distance * scale + size[1] / 2)
        x, y = centre[0] + dx, centre[1] + dy
        box = Bbox.from_extents(x - size[0] / 2, y - size[1] / 2, x + size[0] / 2, y + size[1] / 2)
        overlap = sum(_overlap(box, other) for other in taken)
        overlap += size[0] * size[1] - _overlap(box, inside)
        if best is None or overlap < best[0] - 1e-6:
            best = (overlap, (dx, dy), box)
        if best[0] <= 1e-6:
            break
    assert best is not None
    return best[1], best[2]


def _overlap(one: Bbox, other: Bbox) -> float:
    """Area that two boxes share."""
    width = min(one.x1, other.x1) - max(one.x0, other.x0)
    height = min(one.y1, other.y1) - max(one.y0, other.y0)
    return max(width, 0.0) * max(height, 0.0)
