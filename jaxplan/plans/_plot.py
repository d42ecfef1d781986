"""A frontier as a picture, where matplotlib is installed."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jaxplan.core._files import check_writable, write_whole
from jaxplan.core._units import format_bytes
from jaxplan.errors import ArgumentError, MissingExtraError
from jaxplan.plans._labels import Box, Canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from jaxplan.plans._frontier_data import FrontierData
    from jaxplan.plans._plan_data import PlanData

_ENDINGS: dict[str, dict[str, Any]] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {}}
_LOG_AXIS_RATIO = 5.0  # an axis is logarithmic when its ends differ by more than this factor
LOG_TICKS = (1, 1.5, 2, 3, 5, 7)  # of each decade
_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
_SIZES = ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"))
_FONT_SIZE = 9
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
    figure.legend(fontsize=_FONT_SIZE, loc="outside upper center", ncols=3, frameon=False)
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


def is_logarithmic(values: Sequence[float]) -> bool:
    """Whether an axis with these values is logarithmic: where they are far apart."""
    return max(values) > _LOG_AXIS_RATIO * min(values) > 0


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
        axes.hlines(y, low, high, color="tab:blue", alpha=0.25, linewidth=4, label="9 of 10 such plans, compiled")


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
        if is_logarithmic(values):
            scale("log")
            many = max(values) > 100 * min(values)
            axis.set_major_locator(LogLocator(subs=(1, 3) if many else LOG_TICKS))
            axis.set_minor_formatter(NullFormatter())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.6g}"))
    axes.set_xlabel(f"peak memory per device ({units[1]})")
    axes.set_ylabel(f"time of a step ({units[0]})")
    axes.margins(x=0.12, y=0.12)  # room for the labels
    axes.grid(True, alpha=0.3)


def _place_labels(
    figure: Figure,
    axes: Axes,
    named: Sequence[tuple[str, tuple[float, float]]],
    points: Sequence[tuple[float, float]],
) -> None:
    """Write each name at the nearest free place around its marker, with a line to it."""
    from matplotlib.text import Text

    unit = figure.dpi / 72

    def on_screen(at: tuple[float, float]) -> tuple[float, float]:
        x, y = axes.transData.transform(at)
        return float(x), float(y)

    at = {on_screen(place): place for _, place in named}
    canvas = Canvas(
        inside=Box(*axes.get_window_extent().extents), points=(*map(on_screen, points), *at), unit=unit
    )
    labels = [
        axes.annotate(
            text, at[place], xytext=(0, 0), textcoords="offset points", fontsize=_FONT_SIZE, ha="center", va="center",
            arrowprops={"arrowstyle": "-", "color": "gray", "linewidth": 0.6, "shrinkA": 0, "shrinkB": 3},
        )
        for text, place in canvas.joined([(text, on_screen(place)) for text, place in named])
    ]  # fmt: skip
    boxes = [Text.get_window_extent(label) for label in labels]  # without the lines
    sizes = [((box.width, box.height), on_screen(label.xy)) for box, label in zip(boxes, labels, strict=True)]
    for label, (dx, dy) in zip(labels, canvas.placed(sizes), strict=True):
        label.set_position((dx / unit, dy / unit))
