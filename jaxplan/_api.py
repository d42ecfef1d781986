"""The ways in: `plan` and `auto`, and on parts of a machine `min_devices` and `scaling`."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from jaxplan import _compat, _nnx
from jaxplan._arguments import argnums, check_call, check_leaves, step_name
from jaxplan._call_key import CallKey, call_key
from jaxplan._errors import ArgumentError
from jaxplan._log import warn_once
from jaxplan._scaling import MinDevices, Scaling, checked_counts, find_fewest, scale
from jaxplan._units import parse_memory

if TYPE_CHECKING:
    from jaxplan._frontier import Frontier
    from jaxplan._plan import Plan
    from jaxplan._planner import Job, Search
    from jaxplan.mesh import Topology
    from jaxplan.partition import PlannedFunction

P = ParamSpec("P")
R = TypeVar("R")


def plan(
    step: Callable[..., Any],
    *args: Any,
    topology: str | Topology | None = None,
    memory: int | str | None = None,
    solver: str = "auto",
    donate_argnums: int | Sequence[int] | None = None,
    static_argnums: int | Sequence[int] = (),
    pins: Any = None,
    progress: Any = None,
    remat: bool | None = None,
    overlap: bool = False,
    verify: bool | str = False,
    cache_dir: str | os.PathLike[str] | None = None,
    **kwargs: Any,
) -> Frontier:
    """Plan a single-device step for several devices; nothing is allocated, and compiled only to verify.

    Args:
      step: the step, as `jax.jit` accepts it.
      args, kwargs: its arguments: arrays, `jax.ShapeDtypeStruct`, or pytrees of them.
      topology: such as ``"h100:2x8"``; default: the devices present.
      memory: limit per device, bytes or ``"40GiB"``; default: the chip's capacity times its usable fraction.
      solver: one of `jaxplan.solvers.SOLVERS`: ``"auto"``, or an algorithm as published (docs/solvers.md).
      donate_argnums: arguments whose buffers the step may reuse; default: those that it returns updated.
      static_argnums: arguments that are Python values.
      pins: not built yet; must be None.
      progress: True, False, None (shown on a terminal only) or a function of (stage, fraction).
      remat: whether plans may compute blocks of the forward pass again in the backward pass; default: where memory
        is short (docs/remat.md).
      overlap: whether times count communication that runs beside compute, as simulated (docs/prediction.md), in place
        of the sum of both.
      verify: True compiles the fastest plan that fits, its neighbours and the best reference without their devices;
        compiled memory and collectives then count instead of predicted ones (docs/audit.md). The name of another
        choice, such as ``"knee"``, does so around that one.
      cache_dir: with ``verify``, a folder to keep compiled programs in.

    Returns:
      The frontier: every plan that nothing beats in both time and memory, reference strategies beside it.

    Raises:
      TraceError: the step cannot be traced; names the user's line.
      TopologyError: the topology cannot be read.
      InfeasibleError: no plan fits; names the smallest feasible memory.
      MissingExtraError, UnsupportedError: to verify, the compiler of the topology is needed; names the extra.
    """
    step = _callable_step(step, "jaxplan.plan")
    options = {
        "topology": topology,
        "memory": memory,
        "solver": solver,
        "donate_argnums": donate_argnums,
        "static_argnums": static_argnums,
        "pins": pins,
        "progress": progress,
        "remat": remat,
        "overlap": overlap,
        "verify": verify,
        "cache_dir": cache_dir,
    }
    return _plan(step, args, kwargs, options, entry="jaxplan.plan")


def min_devices(
    step: Callable[..., Any],
    *args: Any,
    topology: str | Topology | None = None,
    memory: int | str | None = None,
    solver: str = "auto",
    donate_argnums: int | Sequence[int] | None = None,
    static_argnums: int | Sequence[int] = (),
    progress: Any = None,
    remat: bool | None = None,
    overlap: bool = False,
    **kwargs: Any,
) -> MinDevices:
    """Find the fewest devices of a machine on which the step fits (TensorOpt's mini-parallelism).

    The step is traced once and planned on ever larger even parts of the machine until a plan fits: 1, 2, ... devices
    of one node, by the divisors of its devices; then those numbers of whole nodes that divide the number of nodes; on
    a torus the most compact slices. Parts that could not hold the arguments alone are passed over.

    Args:
      topology: the largest machine to consider, such as ``"h100:16x8"``; default: the devices present.
      memory: limit per device, as in `plan`; so are the other arguments.

    Returns:
      What counts as that number (``int(found)``, ``found.num_devices``), with its plans (``found.plan``, the fastest
      that fits; ``found.frontier``) and all parts that were planned (``found.points``, ``found.table()``).

    Raises:
      InfeasibleError: nothing fits on the whole machine either; names the smallest memory there is.
      TraceError, TopologyError: as `plan`.
    """
    options = {
        "topology": topology,
        "memory": memory,
        "solver": solver,
        "donate_argnums": donate_argnums,
        "static_argnums": static_argnums,
        "progress": progress,
        "remat": remat,
        "overlap": overlap,
    }
    step = _callable_step(step, "jaxplan.min_devices")
    with _scaled(step, args, kwargs, options, "jaxplan.min_devices") as job:
        return find_fewest(job.topology, job.memory_limit_bytes, job.plan_on, job.num_argument_bytes)


def scaling(
    step: Callable[..., Any],
    *args: Any,
    topology: str | Topology | None = None,
    device_counts: Sequence[int] | None = None,
    memory: int | str | None = None,
    solver: str = "auto",
    donate_argnums: int | Sequence[int] | None = None,
    static_argnums: int | Sequence[int] = (),
    progress: Any = None,
    remat: bool | None = None,
    overlap: bool = False,
    **kwargs: Any,
) -> Scaling:
    """Find the best time of the step for each number of devices of a machine (TensorOpt's profiling).

    The step is traced once and planned on a part of the machine for each number: a divisor of the devices of one node,
    or whole nodes; on a torus the most compact slice.

    Args:
      topology: the whole machine; default: the devices present.
      device_counts: numbers of devices; default: all even parts (see `min_devices`).
      memory: limit per device, as in `plan`; so are the other arguments.

    Returns:
      A point for each number, ascending (``found[8].plan``, ``found.table()``); one on which nothing fits says so.

    Raises:
      ArgumentError: ``device_counts`` are no numbers.
      TraceError, TopologyError: as `plan`; TopologyError also names the numbers where the machine has no such part.
    """
    options = {
        "topology": topology,
        "device_counts": device_counts,
        "memory": memory,
        "solver": solver,
        "donate_argnums": donate_argnums,
        "static_argnums": static_argnums,
        "progress": progress,
        "remat": remat,
        "overlap": overlap,
    }
    step = _callable_step(step, "jaxplan.scaling")
    with _scaled(step, args, kwargs, options, "jaxplan.scaling") as job:
        return scale(job.topology, job.memory_limit_bytes, job.plan_on, device_counts)


def _callable_step(step: Any, entry: str) -> Callable[..., Any]:
    """The step itself, undecorated; an error where it is none."""
    if not callable(step):
        raise ArgumentError(
            f"step is {step!r}, of type {type(step).__name__}; expected the function to plan, and then its arguments.\n"
            "  likely cause: the arguments were given without the step, or the step was called\n"
            f"  fix: {entry}(train_step, state, batch)"
        )
    return step._step if isinstance(step, Auto) else step


@contextlib.contextmanager
def _scaled(
    step: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
    entry: str,
) -> Iterator[Job]:
    """The step, traced, and what plans it on a topology."""
    from jaxplan._planner import parse_topology, traced_job

    check_call(step, args, kwargs, options=options, entry=entry)
    where = parse_topology(options["topology"])
    checked_counts(where, options.get("device_counts"))  # before the trace, which takes long
    with traced_job(
        step,
        args,
        kwargs,
        topology=where,
        search=_search(options, where),
        donate_argnums=argnums(options["donate_argnums"], "donate_argnums"),
        static_argnums=argnums(options["static_argnums"], "static_argnums") or (),
        progress=options["progress"],
    ) as job:
        yield job


def _plan(
    step: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
    entry: str,
) -> Frontier:
    """`plan`, where keywords of the step may have the names of options."""
    from jaxplan import _verify
    from jaxplan._planner import check_solver_arguments, parse_topology, plan_step

    check_solver_arguments(options.get("pins"))
    check_call(step, args, kwargs, options=options, entry=entry)
    static = argnums(options.get("static_argnums", ()), "static_argnums") or ()
    where = parse_topology(options.get("topology"))
    around = _verify.checked_choice(options.get("verify", False), options.get("choose", "fastest"))
    if around is not None:
        _verify.check_verifiable(where)
    frontier = plan_step(
        step,
        args,
        kwargs,
        topology=where,
        search=_search(options, where),
        donate_argnums=argnums(options.get("donate_argnums"), "donate_argnums"),
        static_argnums=static,
        progress=options.get("progress"),
    )
    if around is None:
        return frontier
    from jaxplan._progress import Progress

    with Progress(options.get("progress")) as report:
        return _verify.verify(frontier, around, cache_dir=options.get("cache_dir"), progress=report)


def _search(options: Mapping[str, Any], topology: Topology) -> Search:
    """How to search, of the options of an entry point."""
    from jaxplan._planner import Search

    memory, overlap = options.get("memory"), options.get("overlap", False)
    if not isinstance(overlap, bool):
        raise ArgumentError(
            f"overlap is {overlap!r}; expected True (times with communication beside compute) or False (their sum)"
        )
    return Search(
        memory_limit_bytes=topology.memory_limit_bytes if memory is None else parse_memory(memory),
        solver=options.get("solver", "auto"),
        remat=_remat(options.get("remat")),
        overlap=overlap,
    )


def _remat(value: Any) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise ArgumentError(
            f"remat is {value!r}; expected True (look for plans that compute blocks of the forward pass again), "
            "False, or None (where memory is short)"
        )
    return value


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How often a decorated step was traced and planned, and compiled."""

    plans: int = 0
    compiles: int = 0


@overload
def auto(
    step: Callable[P, R],
    /,
    *,
    topology: str | Topology | None = None,
    memory: int | str | None = None,
    choose: str | int = "fastest",
    solver: str = "auto",
    donate_argnums: int | Sequence[int] | None = None,
    static_argnums: int | Sequence[int] = (),
    progress: Any = None,
    remat: bool | None = None,
    overlap: bool = False,
    verify: bool | str = False,
    cache_dir: str | os.PathLike[str] | None = None,
) -> Auto[P, R]: ...
@overload
def auto(
    *,
    topology: str | Topology | None = None,
    memory: int | str | None = None,
    choose: str | int = "fastest",
    solver: str = "auto",
    donate_argnums: int | Sequence[int] | None = None,
    static_argnums: int | Sequence[int] = (),
    progress: Any = None,
    remat: bool | None = None,
    overlap: bool = False,
    verify: bool | str = False,
    cache_dir: str | os.PathLike[str] | None = None,
) -> Callable[[Callable[P, R]], Auto[P, R]]: ...
def auto(step: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Decorate a single-device step so that it runs on all devices, planned at its first call.

    Options are those of `plan`, whose ``verify=True`` compiles around the choice, and ``choose``: ``"fastest"``
    (default), ``"knee"``, ``"leanest"``, the name of a reference strategy (docs/strategies.md) or an index of the
    frontier. The first call traces, plans, places the arguments, compiles and runs; later calls with arguments of the
    same structure, shapes and dtypes only run.
    """
    unknown = sorted(set(options) - _OPTIONS)
    if unknown:
        raise ArgumentError(
            f"auto was given {', '.join(unknown)}; expected options are {', '.join(sorted(_OPTIONS))}"
        )
    if step is None:
        return functools.partial(Auto, options=options)
    if not callable(step):
        raise ArgumentError(
            f"auto decorates a function, and was given {step!r}; options are keywords: @auto(choose='knee')"
        )
    return Auto(step, options=options)


_DISABLED_MSG = (
    "jit is disabled (jax.disable_jit): {step} runs operator by operator, as written and without its plan. Arguments "
    "that lie on one device stay there"
)

_OPTIONS = frozenset(
    {"topology", "memory", "choose", "solver", "donate_argnums", "static_argnums", "progress", "remat", "overlap"}
    | {"verify", "cache_dir"}
)


class Auto(Generic[P, R]):
    """A decorated step; call it like the step itself.

    Attributes:
      plan, frontier: what the last new kind of arguments led to; errors before the first call.
      counts: how often it planned and compiled.
      graph: the analysed program of that plan.
    """

    def __init__(self, step: Callable[P, R], *, options: dict[str, Any]) -> None:
        functools.update_wrapper(self, step)
        self._step = step
        self._options = dict(options)
        self._choose = self._options.pop("choose", "fastest")
        self._static = argnums(self._options.get("static_argnums", ()), "static_argnums") or ()
        self._lock = threading.Lock()
        self._ready: dict[CallKey, PlannedFunction] = {}
        self._frontiers: list[Frontier] = []
        self._plans: list[Plan] = []

    def __repr__(self) -> str:
        return f"jaxplan.auto({getattr(self._step, '__qualname__', self._step)!s})"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if _compat.setting("jax_disable_jit"):
            warn_once(_DISABLED_MSG.format(step=step_name(self._step)))
            return self._step(*args, **kwargs)
        with _nnx.opened(args, kwargs, self._static) as call:
            try:
                key = call_key(call.args, call.kwargs, self._static, self._options.get("topology"))
            except TypeError as error:
                check_leaves(self._step, call.args, call.kwargs, self._static)
                raise error from None
            run = self._ready.get(key)
            if run is None:
                with self._lock:
                    run = self._ready.get(key) or self._prepare(key, args, kwargs)
            return call.close(run.run_opened(call))

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    @property
    def plan(self) -> Plan:
        return self._last(self._plans, "plan")

    @property
    def frontier(self) -> Frontier:
        return self._last(self._frontiers, "frontier")

    @property
    def graph(self) -> Any:
        return self._plans[-1].graph if self._plans else None

    @property
    def counts(self) -> Counts:
        return Counts(
            plans=len(self._plans), compiles=sum(run.num_compilations for run in self._ready.values())
        )

    def _last(self, items: list[Any], what: str) -> Any:
        if not items:
            raise ArgumentError(
                f"{self!r} has no {what} yet: it is planned at its first call.\n"
                "  fix: call it, or use jaxplan.plan(step, *args) to plan without running"
            )
        return items[-1]

    def _prepare(self, key: CallKey, args: Any, kwargs: Any) -> PlannedFunction:
        from jaxplan._planner import parse_topology
        from jaxplan.partition import device_mesh

        device_mesh(parse_topology(self._options.get("topology")))  # too few devices: said before the search
        options = {**self._options, "choose": self._choose}
        frontier = _plan(self._step, args, kwargs, options, entry=step_name(self._step))
        chosen = frontier.choose(self._choose)
        run = chosen.jit()
        self._frontiers.append(frontier)
        self._plans.append(chosen)
        self._ready[key] = run
        return run
