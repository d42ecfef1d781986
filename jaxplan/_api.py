"""The ways in: `plan`, and on parts of a machine `min_devices` and `scaling`; `auto` has a module of its own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxplan.core._files import check_folder
from jaxplan.core._interrupt import current, interruptible
from jaxplan.core._units import parse_limit
from jaxplan.errors import ArgumentError
from jaxplan.frontend._arguments import argnames, argnums, check_call, step_name
from jaxplan.frontend._pins import parse_pins
from jaxplan.plans._choice import check_choice
from jaxplan.search._scaling import MinDevices, Scaling, checked_counts, find_fewest, scale

if TYPE_CHECKING:
    from jaxplan.mesh import Topology
    from jaxplan.plans._frontier import Frontier
    from jaxplan.search._compare import Comparison
    from jaxplan.search._planner import Job, Search


def plan(
    step: Callable[..., Any],
    *args: Any,
    topology: str | Topology | None = None,
    memory: int | str | None = None,
    solver: str = "auto",
    donate_argnums: int | Sequence[int] | None = None,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    pins: Any = None,
    axes: Mapping[str, int] | None = None,
    references: Mapping[str, Any] | None = None,
    microbatches: bool | int | None = None,
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
      donate_argnums: arguments whose buffers the step may reuse; default: those that its own `jax.jit` donates, else
        every argument that comes back updated (docs/state.md).
      static_argnums, static_argnames: arguments that are Python values, by number and by name, as `jax.jit` takes them.
        A step that is jitted already keeps its own.
      pins: parts of the plan that are fixed: paths, hints, named dimensions or families (docs/steering.md).
      axes: names and sizes of mesh axes that pins speak of, outermost first, such as ``{"data": 4, "tensor": 2}``.
      references: strategies of your own by name, each the shardings of the arguments: trees of `NamedSharding`.
      microbatches: slices in which the batch is worked through, gradients added up (docs/microbatches.md): a number;
        True: plans with some are looked for; False: none; default: where no plan fits otherwise.
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
        "static_argnames": static_argnames,
        "pins": pins,
        "axes": axes,
        "references": references,
        "microbatches": microbatches,
        "progress": progress,
        "remat": remat,
        "overlap": overlap,
        "verify": verify,
        "cache_dir": cache_dir,
    }
    return plan_with_options(step, args, kwargs, options, entry="jaxplan.plan")


def min_devices(
    step: Callable[..., Any],
    *args: Any,
    topology: str | Topology | None = None,
    memory: int | str | None = None,
    solver: str = "auto",
    donate_argnums: int | Sequence[int] | None = None,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
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
      The number of devices (``int(found)``, ``found.num_devices``), with its plans (``found.plan``, the fastest
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
        "static_argnames": static_argnames,
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
    static_argnames: str | Sequence[str] = (),
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
        "static_argnames": static_argnames,
        "progress": progress,
        "remat": remat,
        "overlap": overlap,
    }
    step = _callable_step(step, "jaxplan.scaling")
    with _scaled(step, args, kwargs, options, "jaxplan.scaling") as job:
        return scale(job.topology, job.memory_limit_bytes, job.plan_on, device_counts)


def compare(
    step: Callable[..., Any],
    *args: Any,
    topologies: Sequence[str | Topology],
    prices: Mapping[str, float] | None = None,
    memory: int | str | None = None,
    solver: str = "auto",
    donate_argnums: int | Sequence[int] | None = None,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    pins: Any = None,
    progress: Any = None,
    remat: bool | None = None,
    overlap: bool = False,
    **kwargs: Any,
) -> Comparison:
    """Plan a step on several machines, to see which one to rent; it is traced once.

    Args:
      topologies: the machines, such as ``["h100:8", "a100:16", "v5e:4x4"]``.
      prices: of one device for one hour, in any currency, by chip (``"h100"``) or by topology (``"h100:2x8"``).
      memory: limit per device, as in `plan`; default: that of each machine. So are the other arguments.

    Returns:
      An offer for each machine (``found["h100:8"].plan``, ``found.fastest()``, ``found.cheapest()``,
      ``found.table()``); one on which nothing fits says so.

    Raises:
      ArgumentError: no machines, or prices that name none of them.
      TraceError, TopologyError: as `plan`.
    """
    from jaxplan.core._progress import Progress
    from jaxplan.search._compare import compare_on
    from jaxplan.search._planner import analyse_step, parse_topology, plan_graph

    options = {
        "memory": memory,
        "solver": solver,
        "donate_argnums": donate_argnums,
        "static_argnums": static_argnums,
        "static_argnames": static_argnames,
        "pins": pins,
        "progress": progress,
        "remat": remat,
        "overlap": overlap,
    }
    step = _callable_step(step, "jaxplan.compare")
    check_call(step, args, kwargs, options=options, entry="jaxplan.compare")
    with interruptible(), Progress(progress) as report:
        graph = analyse_step(
            step,
            args,
            kwargs,
            donate_argnums=argnums(donate_argnums, "donate_argnums"),
            static_argnums=argnums(static_argnums, "static_argnums") or (),
            static_argnames=argnames(static_argnames, "static_argnames"),
            report=report,
        )

        def plan_on(machine: Topology) -> Frontier:
            stages = Progress(lambda stage, fraction: report(f"{stage} on {machine.name}", fraction))
            with stages:
                search = _search(options, machine)
                return plan_graph(graph, topology=machine, search=search, report=stages, name=step_name(step))

        return compare_on(topologies, prices, parse_topology, plan_on)


def _callable_step(step: Any, entry: str) -> Callable[..., Any]:
    """The step itself, undecorated; an error where it is none."""
    from jaxplan._auto import Auto

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
    """The step, traced, and a function that plans it on a topology."""
    from jaxplan.search._planner import parse_topology, traced_job

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
        static_argnames=argnames(options["static_argnames"], "static_argnames"),
        progress=options["progress"],
    ) as job:
        yield job


@interruptible()
def plan_with_options(
    step: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
    entry: str,
) -> Frontier:
    """`plan`, where keywords of the step may have the names of options."""
    from jaxplan.search import _verify
    from jaxplan.search._planner import parse_topology, plan_step

    check_call(step, args, kwargs, options=options, entry=entry)
    static = argnums(options.get("static_argnums", ()), "static_argnums") or ()
    where = parse_topology(options.get("topology"))
    around = _verify.checked_choice(options.get("verify", False), options.get("choose", "fastest"))
    for which in (options.get("choose", "fastest"), around):
        if which is not None:
            check_choice(which, where)
    if around is not None:
        _verify.check_verifiable(where)
        if options.get("cache_dir") is not None:
            check_folder(options["cache_dir"])
    frontier = plan_step(
        step,
        args,
        kwargs,
        topology=where,
        search=_search(options, where),
        donate_argnums=argnums(options.get("donate_argnums"), "donate_argnums"),
        static_argnums=static,
        static_argnames=argnames(options.get("static_argnames", ()), "static_argnames"),
        progress=options.get("progress"),
    )
    if around is None or current().happened:
        return frontier
    from jaxplan.core._progress import Progress

    with Progress(options.get("progress")) as report:
        return _verify.verify(frontier, around, cache_dir=options.get("cache_dir"), progress=report)


def _search(options: Mapping[str, Any], topology: Topology) -> Search:
    """How to search, of the options of an entry point."""
    from jaxplan.search._microbatches import check_microbatches
    from jaxplan.search._planner import Search
    from jaxplan.strategies import checked_names

    memory, overlap = options.get("memory"), options.get("overlap", False)
    if not isinstance(overlap, bool):
        raise ArgumentError(
            f"overlap is {overlap!r}; expected True (times with communication beside compute) or False (their sum)"
        )
    solver = options.get("solver", "auto")
    if not isinstance(solver, str):
        raise ArgumentError(f"solver is {solver!r}; expected a name, one of jaxplan.solvers.SOLVERS, such as 'auto'")
    return Search(
        memory_limit_bytes=topology.memory_limit_bytes if memory is None else parse_limit(memory),
        solver=solver,
        remat=_remat(options.get("remat")),
        overlap=overlap,
        pins=parse_pins(options.get("pins")),
        axes=options.get("axes"),
        microbatches=check_microbatches(options.get("microbatches")),
        own_references=checked_names(options.get("references"), topology),
    )


def _remat(value: Any) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise ArgumentError(
            f"remat is {value!r}; expected True (look for plans that compute blocks of the forward pass again), "
            "False, or None (where memory is short)"
        )
    return value
