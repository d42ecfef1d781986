"""The compiler in the loop: the points of a frontier near the choice, compiled, and the frontier put right by it.

A compiled point counts with its compiled memory and with the collectives that its program has, priced by the planner;
arithmetic keeps its predicted time. Points that were not compiled keep their predictions, but have to hold their own
against compiled ones after a correction by the compiled ones' median ratio of compiled to predicted figures.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import TYPE_CHECKING

from jaxplan.core import _compat
from jaxplan.core._log import logger, until_interrupted
from jaxplan.errors import ArgumentError, AuditError, JaxplanError
from jaxplan.partition._verified import Verified
from jaxplan.plans._frontier import Frontier
from jaxplan.plans._infeasible import infeasible_error
from jaxplan.plans._undominated import undominated

if TYPE_CHECKING:
    from jaxplan.audit import CompiledReport
    from jaxplan.mesh import Topology
    from jaxplan.plans._plan import Plan

AUTO = "auto"
"""The option that verifies only where a choice is near the limit."""
NEAR = 1
"""Points on either side of the choice that are compiled with it."""
MOST_COMPILED = 8
"""Plans compiled at most, should corrections move the choice on and on."""
_JOBS = 2  # compilers at a time: each uses several threads and a few GB
_MOST_REMEMBERED = 256
_DOES_NOT_FIT = "RESOURCE_EXHAUSTED"  # how XLA for TPU refuses a program that is too large
_ABOUT_THE_SEARCH = ("name", "outline", "prediction", "lower_bound_seconds", "gap", "most_configurations", "verified")

_remembered: dict[tuple[str, str], Verified | None] = {}


def check_verifiable(topology: Topology) -> str:
    """The platform to compile for. Raise now the error that compiling for the topology would raise after the search.

    UnsupportedError: the compiler has no target for the chip. MissingExtraError: it is not installed; names the extra.
    """
    from jaxplan.audit import require_compiler

    return require_compiler(topology)


def verify(
    frontier: Frontier,
    which: str | int = "fastest",
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    progress: Callable[[str, float], object] = lambda stage, fraction: None,
) -> Frontier:
    """Return the frontier with the points near a choice compiled, and corrected by that.

    Compiled are the choice, its neighbours and the best reference that fits; then, while the correction makes another
    point the choice, that one and its neighbours.

    Args:
      which: the choice, as `Frontier.choose` takes it.
      cache_dir: folder to keep compiled programs in; within a process every plan is compiled once in any case.

    Raises:
      AuditError: a plan does not compile.
      InfeasibleError: by the compiler's memory no plan fits.
    """
    found: dict[str, Verified | None] = {}
    corrected = frontier
    with until_interrupted("verification"):
        while wanted := _wanted(corrected, which, found, first=not found):
            progress("verify", len(found) / MOST_COMPILED)
            for key, seen in _compiled(wanted[: MOST_COMPILED - len(found)], cache_dir):
                found[key] = seen
            corrected = _corrected(frontier, found)
            if isinstance(which, int) or len(found) >= MOST_COMPILED:
                break
        progress("verify", 1.0)
    corrected = _corrected(frontier, found)  # an interrupt may have come before the last of them
    return dataclasses.replace(corrected, notes=(*frontier.notes, _note(frontier, corrected, found)))


def _wanted(
    frontier: Frontier, which: str | int, found: dict[str, Verified | None], *, first: bool
) -> list[Plan]:
    """The choice, its neighbours and the best reference, unless they were compiled; nothing once the choice was."""
    choice = frontier.choose(which)
    if not first and plan_key(choice) in found:
        return []
    plans = [choice]
    if choice in frontier.points:
        place = frontier.points.index(choice)
        plans += frontier.points[max(place - NEAR, 0) : place + NEAR + 1]
    limit = frontier.memory_limit_bytes
    rivals = [p for p in frontier.references.values() if limit is None or p.memory_bytes <= limit]
    plans += [min(rivals, key=lambda plan: plan.time_seconds)] if rivals else []
    whole = [plan for plan in plans if not plan.stages]  # stages are several programs: `audit` compiles each
    return list({key: plan for plan in whole if (key := plan_key(plan)) not in found}.values())


def _compiled(
    plans: Sequence[Plan], cache_dir: str | os.PathLike[str] | None
) -> Iterator[tuple[str, Verified | None]]:
    """Each plan's key with the compiler's figures; an interrupt ends the compilers."""
    cancelled, pool = threading.Event(), ThreadPoolExecutor(_JOBS)
    try:
        for plan, seen in [(plan, pool.submit(_look, plan, cache_dir, cancelled)) for plan in plans]:
            yield plan_key(plan), seen.result()
    finally:
        cancelled.set()
        pool.shutdown(wait=False, cancel_futures=True)


def _look(
    plan: Plan, cache_dir: str | os.PathLike[str] | None, cancelled: threading.Event
) -> Verified | None:
    """The compiler's figures of a plan; None where it refuses the program for its size."""
    from jaxplan.audit import compile_plan

    key = plan_key(plan), "" if cache_dir is None else os.fspath(cache_dir)
    if key not in _remembered:
        try:
            seen = verified_by(compile_plan(plan, cache_dir=key[1] or None, cancelled=cancelled), plan.topology)
        except AuditError as error:
            if _DOES_NOT_FIT not in str(error):
                raise
            seen = None
        while len(_remembered) >= _MOST_REMEMBERED:
            _remembered.pop(next(iter(_remembered)))
        _remembered[key] = seen
    return _remembered[key]


def plan_key(plan: Plan) -> str:
    """Equal for plans that are one program on one machine: a hash of the parts of its file that say so."""
    said = {name: value for name, value in plan.to_json().items() if name not in _ABOUT_THE_SEARCH}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def verified_by(report: CompiledReport, topology: Topology) -> Verified:
    """The figures of a compiled program."""
    from jaxplan.audit import varying_axes
    from jaxplan.mesh import collective_seconds

    sizes = tuple(axis.size for axis in topology.axes)
    seconds = 0.0
    for found in report.collectives:
        kind = "all-gather" if found.kind == "collective-broadcast" else found.kind
        axes = varying_axes(sizes, found.groups)
        seconds += found.count * float(collective_seconds(topology, kind, found.num_bytes, axes))
    return Verified(
        memory_bytes=report.memory_bytes,
        communication_seconds=seconds,
        rematerialised=report.rematerialised,
    )


def _corrected(frontier: Frontier, found: dict[str, Verified | None]) -> Frontier:
    """The frontier with compiled figures; a plan that the compiler refused is left out."""

    def seen(plan: Plan) -> Plan:
        verified = found.get(plan_key(plan))
        return plan if verified is None else dataclasses.replace(plan, verified=verified)

    references = {name: seen(plan) for name, plan in frontier.references.items()}
    refused = {key for key, verified in found.items() if verified is None}
    everything = [seen(plan) for plan in frontier.points]
    points = [plan for plan in everything if plan_key(plan) not in refused]
    compiled = [plan for plan in (*points, *references.values()) if plan.verified is not None]
    limit = frontier.memory_limit_bytes
    merged = merge(compiled, [plan for plan in points if plan.verified is None], limit)
    if not merged:
        raise infeasible_error(compiled or everything, limit or 0)
    return dataclasses.replace(frontier, points=tuple(merged), references=references)


def merge(compiled: Sequence[Plan], predicted: Sequence[Plan], limit_bytes: int | None) -> list[Plan]:
    """The points of a frontier, by ascending memory, of compiled plans and of plans with predictions only.

    A predicted plan stays where its figures, corrected by the median ratios of the compiled ones, fit and are beaten by
    no compiled plan, and where its figures as they are keep the order.
    """
    fits = [plan for plan in compiled if limit_bytes is None or plan.memory_bytes <= limit_bytes]
    best = undominated(fits)
    memory_ratio = median([p.memory_bytes / p.prediction.memory_bytes for p in compiled] or [1.0])
    time_ratio = median([p.time_seconds / p.prediction.time_seconds for p in compiled] or [1.0])

    def stays(plan: Plan) -> bool:
        memory, seconds = plan.memory_bytes * memory_ratio, plan.time_seconds * time_ratio
        beaten = any(p.memory_bytes <= memory and p.time_seconds <= seconds for p in best)
        in_order = all(
            (p.memory_bytes < plan.memory_bytes and p.time_seconds > plan.time_seconds)
            or (p.memory_bytes > plan.memory_bytes and p.time_seconds < plan.time_seconds)
            for p in best
        )
        return (limit_bytes is None or memory <= limit_bytes) and not beaten and in_order

    return sorted([*best, *filter(stays, predicted)], key=lambda plan: plan.memory_bytes)


def _note(before: Frontier, after: Frontier, found: dict[str, Verified | None]) -> str:
    """Which plans were compiled, their distance from the prediction, and the changes that follow."""
    plans = (*before.points, *before.references.values())
    predicted = {plan_key(plan): plan.prediction.memory_bytes for plan in plans}
    ratios = [v.memory_bytes / predicted[key] - 1 for key, v in found.items() if v is not None]
    said = f"{len(found)} plan{'s' if len(found) > 1 else ''} compiled for {before.points[0].topology.name}"
    if ratios:
        said += f", memory {min(ratios):+.1%} to {max(ratios):+.1%} of the prediction"
    kept = {plan_key(plan) for plan in after.points}
    dropped = sum(plan_key(plan) not in kept for plan in before.points)
    said += f"; {dropped} point{'s' if dropped > 1 else ''} left out" if dropped else ""
    if any(v is not None and v.rematerialised for v in found.values()):
        said += "; the compiler computed values again to save memory"
    return f"verified: {said}"


def is_near_limit(frontier: Frontier, which: str | int) -> bool:
    """Whether a choice fits by its prediction, and the limit lies within its interval."""
    limit, between = frontier.memory_limit_bytes, frontier.choose(which).memory_interval_bytes
    return limit is not None and between is not None and between[0] <= limit < between[1]


def can_verify(topology: Topology) -> bool:
    """Whether the compiler of the topology is installed, and its devices are not those of this process."""
    try:
        platform = check_verifiable(topology)
    except JaxplanError:
        return False
    return not _compat.runs_on(platform)


def verified_near_limit(
    frontier: Frontier,
    which: str | int,
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    progress: Callable[[str, float], object] = lambda stage, fraction: None,
) -> Frontier:
    """`verify` where a choice is near the limit and the compiler is installed, else the frontier as it is.

    A plan that does not compile leaves a note on the frontier, which is logged too.
    """
    if not is_near_limit(frontier, which) or not can_verify(frontier.points[0].topology):
        return frontier
    try:
        return verify(frontier, which, cache_dir=cache_dir, progress=progress)
    except AuditError as error:
        note = f"not verified, although the choice is near the limit: {str(error).splitlines()[0]}"
        logger.warning("%s", note)
        return dataclasses.replace(frontier, notes=(*frontier.notes, note))


def checked_choice(verify: bool | str, choose: str | int = "fastest") -> str | int | None:
    """The choice to verify around: `choose` for True, None for False and ``"auto"``.

    Raises ArgumentError for anything that is neither a bool nor a name.
    """
    if isinstance(verify, bool):
        return choose if verify else None
    if isinstance(verify, str):
        return None if verify == AUTO else verify
    raise ArgumentError(
        f"verify={verify!r} is not understood.\n"
        "  expected: 'auto' (where the choice is near the limit), True (compile the points near the choice), False, "
        "or the choice by name, such as 'knee'"
    )
