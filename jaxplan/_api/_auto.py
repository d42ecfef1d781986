"""The decorator `auto`: a step that is planned at its first call, and runs as planned."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack, overload

from jaxplan.core import _compat
from jaxplan.core._log import warn_once
from jaxplan.errors import ArgumentError, InfeasibleError, PlanMismatchError
from jaxplan.frontend._arguments import check_call, step_name
from jaxplan.frontend._call import Call, opened_call
from jaxplan.frontend._call_key import CallKey
from jaxplan.frontend._options import ALL, Keywords, Options, only, takes_options
from jaxplan.frontend._step_options import StepOptions
from jaxplan.mesh import Topology, parse_topology
from jaxplan.plans._choice import POINT_NAMES, point_number
from jaxplan.plans._plan_cache import CacheInfo, PlanCache, Ready

if TYPE_CHECKING:
    from jaxplan.partition import PlannedFunction
    from jaxplan.plans._frontier import Frontier
    from jaxplan.plans._plan import Plan

P = ParamSpec("P")
R = TypeVar("R")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How often a decorated step was traced and planned, and compiled."""

    plans: int = 0
    compiles: int = 0


@overload
def auto(step: Callable[P, R], /, **options: Unpack[Keywords]) -> Auto[P, R]: ...
@overload
def auto(**options: Unpack[Keywords]) -> Callable[[Callable[P, R]], Auto[P, R]]: ...
def auto(step: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Decorate a single-device step so that it runs on all devices, planned at its first call.

    The first call traces, plans, places the arguments, compiles and runs; later calls with arguments of the same
    structure, shapes and dtypes only run. The memory of the compiled program is read before it runs: above the limit,
    the next plan of the frontier that fits is taken, and a warning says so (docs/behaviour.md).

    Args:
      step: the step; left out where options are given: ``@jaxplan.auto(choose="knee")``.
      {options}

    >>> import jax, jax.numpy as jnp, jaxplan
    >>> @jaxplan.auto(topology="cpu:1")
    ... def step(w, x):
    ...     return w - 0.1 * jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)
    >>> step(jnp.zeros((8, 4)), jnp.ones((16, 8))).shape
    (8, 4)
    >>> step.cache_info().plans
    1
    """
    checked = only(options, ALL, "auto")
    if step is None:
        return functools.partial(Auto, options=checked)
    if not callable(step):
        raise ArgumentError(
            f"auto decorates a function, and was given {step!r}; options are keywords: @auto(choose='knee')"
        )
    return Auto(step, options=checked)


auto = takes_options(ALL)(auto)

_DISABLED_MSG = (
    "jit is disabled (jax.disable_jit): {step} runs operator by operator, as written and without its plan. Arguments "
    "that lie on one device stay there"
)
_MOVES_MSG = (
    "{step}: no plan for these arguments fits the memory with the layout that the state has: it moves to another. "
    "Likely cause: a larger batch. Give more memory, or keep_layout=False to plan each kind of arguments by itself"
)
_OTHER_BATCH_MSG = (
    "{step}: the plan that was given is for another batch ({changed}): this call is planned anew, {layout}"
)


class Auto(Generic[P, R]):
    """A decorated step; call it like the step itself.

    Attributes:
      plan, frontier: of the last new kind of arguments; errors before the first call.
      counts: how often it planned and compiled; `cache_info()` says more.
      graph: the analysed program of that plan.
    """

    def __init__(self, step: Callable[P, R], *, options: Options) -> None:
        functools.update_wrapper(self, step)
        if options.plan is not None and options.like is not None:
            raise ArgumentError(
                "auto is given both plan= and like=; expected one of them.\n"
                "  likely cause: a plan that is given is not searched, so it cannot be made like another\n"
                "  fix: leave one out"
            )
        self._step, self._options = step, options
        self._takes = StepOptions.of(step, **options.trace_arguments)
        self._spelling: tuple[int, tuple[str, ...]] | None = None
        self._lock = threading.RLock()
        self._plans = PlanCache(repr(self), options.max_plans)
        self._latest: tuple[Frontier, PlannedFunction] | None = None
        self._repeated: PlannedFunction | None = None

    def __repr__(self) -> str:
        return f"jaxplan.auto({getattr(self._step, '__qualname__', self._step)!s})"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        latest = self._repeated
        if latest is not None and (repeated := latest.repeated) is not None:
            results = repeated(args, kwargs)
            if results is not NotImplemented:
                self._plans.hits += 1
                return results
        if _compat.setting("jax_disable_jit"):
            warn_once(_DISABLED_MSG.format(step=step_name(self._step)))
            return self._step(*args, **kwargs)
        given: tuple[Any, Any] = (args, kwargs)
        if self._spelling is None:
            self._spelling = (len(args), tuple(kwargs))
        else:
            given = self._takes.spelled_as(self._spelling, args, kwargs)
        with opened_call(self._step, self._takes, *given) as call:
            key = CallKey.of(call, self._topology)
            ready = self._plans.get(key)
            if ready is None or not ready.fits:
                call.check_alive()
                with self._lock:
                    ready = self._prepare(key, call)
            self._repeated = ready.run
            return ready.run.run(call, ready.results_of)

    def plan_for(self, *args: Any, **kwargs: Any) -> Plan:
        """The plan of a call with such arguments, arrays or `jax.ShapeDtypeStruct`, before any array exists.

        The call itself then needs no planning.
        """
        return self._ready_for(args, kwargs).run.plan

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """`jax.stages.Lowered` of the planned step over flat leaves; see `PlannedFunction.lower`."""
        return self._ready_for(args, kwargs).run.lower(*args, **kwargs)

    def _ready_for(self, args: Any, kwargs: Any) -> Ready:
        """The planned step for such arguments, neither compiled nor run."""
        if self._spelling is None:
            self._spelling = (len(args), tuple(kwargs))
        args, kwargs = self._takes.spelled_as(self._spelling, args, kwargs)
        with opened_call(self._step, self._takes, args, kwargs) as call, self._lock:
            return self._planned(CallKey.of(call, self._topology), call)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    @property
    def plan(self) -> Plan:
        return self._last("plan")[1].plan

    @property
    def frontier(self) -> Frontier:
        return self._last("frontier")[0]

    @property
    def graph(self) -> Any:
        return None if self._latest is None else self._latest[1].plan.graph

    @property
    def counts(self) -> Counts:
        return Counts(plans=self._plans.plans, compiles=self._plans.compiles)

    def cache_info(self) -> CacheInfo:
        """The plans that are kept, and how often that served a call."""
        return self._plans.info()

    def cache_clear(self) -> None:
        """Forget all plans and their compiled programs; the next call plans anew."""
        with self._lock:
            self._plans.clear()
            self._latest = self._repeated = None

    def _last(self, what: str) -> tuple[Frontier, PlannedFunction]:
        if self._latest is None:
            raise ArgumentError(
                f"{self!r} has no {what} yet: it is planned at its first call.\n"
                "  fix: call it, or use jaxplan.plan(step, *args) to plan without running"
            )
        return self._latest

    @property
    def _topology(self) -> Any:
        """The machine that was asked for, in options or by the plan to follow; None: the devices present."""
        followed = self._options.plan if hasattr(self._options.plan, "topology") else None
        if self._options.topology is None and self._options.like is not None:
            followed = followed_plan(self._options.like)
        return followed.topology if followed is not None else self._options.topology

    def _planned(self, key: CallKey, call: Call) -> Ready:
        """The plan of a new kind of call: a known one, where the step is the same program, or a new one."""
        ready = self._plans.peek(key)  # another thread may have been quicker
        if ready is None:
            self._plans.misses += 1
            ready = self._shared(key, call) or self._new(call)
            self._plans.put(key, ready)
        return ready

    def _prepare(self, key: CallKey, call: Call) -> Ready:
        """The planned function of a new kind of call, compiled, with its memory read."""
        from jaxplan.partition import check_equal_arguments, device_mesh, runs_as_planned

        if runs_as_planned(call):
            check_equal_arguments(call, device_mesh(parse_topology(self._topology)).devices.flat)
        ready = self._planned(key, call)
        if ready.fits or not runs_as_planned(call):
            return ready
        return self._fitted(ready, call)

    def _fitted(self, ready: Ready, call: Call) -> Ready:
        """Compile the planned step and read its memory; above the limit, the next plan takes its place."""
        from jaxplan.search._fitting import fitting_run  # the search is imported when it is first used

        frontier = ready.frontier
        run, num_others = fitting_run(frontier, ready.run, call, step_name(self._step))
        self._plans.count_compiles(num_others)
        self._plans.replace(ready.run, run)
        if self._latest is not None and self._latest[1] is ready.run:
            self._latest = (frontier, run)
        return dataclasses.replace(ready, run=run, fits=True)

    def _shared(self, key: CallKey, call: Call) -> Ready | None:
        """A plan made for other settings than the call's: a closure that was defined again is another object."""
        others = {ready.run: ready for other, ready in self._plans.items() if other.may_share(key)}
        if not others:
            return None
        check_call(self._step, call.args, call.kwargs, entry=step_name(self._step))
        program = next(iter(others)).calls.trace(call)
        for run, ready in others.items():
            results_of = run.calls.admit(call, program)
            if results_of is not None:
                return dataclasses.replace(ready, results_of=results_of)
        return None

    def _new(self, call: Call) -> Ready:
        from jaxplan.partition import device_mesh

        check_call(self._step, call.args, call.kwargs, entry=step_name(self._step))
        if self._options.plan is not None:
            frontier, plan = self._given(call)
        else:
            device_mesh(parse_topology(self._topology))  # too few devices: said before the search
            frontier = self._searched(call)
            plan = frontier.choose(self._options.choose)
        run = plan.jit(backend=self._options.backend)
        self._latest = (frontier, run)
        self._plans.plans += 1
        return Ready(run=run, results_of=run.calls.results_of(call), frontier=frontier)

    def _given(self, call: Call) -> tuple[Frontier, Plan]:
        """The plan that was given; for another batch a new one, in which the state has the layout of that plan."""
        from jaxplan.search._bind import given_plan
        from jaxplan.search._other_batch import plan_of_other_batch

        given = self._step, call.args, call.kwargs, self._options
        try:
            return given_plan(*given)
        except PlanMismatchError as mismatch:
            before = plan_of_other_batch(*given, mismatch)
            changed = next(line.strip() for line in str(mismatch).splitlines() if "differs:" in line)
        layout = "with the layout of the state as it is there" if self._options.keep_layout else "by itself"
        warn_once(_OTHER_BATCH_MSG.format(step=step_name(self._step), changed=changed, layout=layout))
        frontier = self._searched(call, before)
        return frontier, frontier.choose(self._options.choose)

    def _searched(self, call: Call, before: Plan | None = None) -> Frontier:
        """A new frontier; state keeps the layout of the last plan, or of ``before``, or is laid out as in ``like``."""
        from jaxplan.search._entry import StepToPlan
        from jaxplan.search._every_process import plan_everywhere
        from jaxplan.search._fixed import shardings_of

        verify = False if self._options.verify == "auto" else self._options.verify  # it reads what it compiles to run
        topology = self._topology if before is None else self._topology or before.topology
        options = dataclasses.replace(self._options, topology=topology, verify=verify)
        step = StepToPlan(self._step, call.args, call.kwargs, options)
        if options.like is not None:
            kept = shardings_of(_on_same_axes(followed_plan(options.like), parse_topology(self._topology)))
            return plan_everywhere(step, dataclasses.replace(options, kept=kept))
        is_point = options.choose in POINT_NAMES or point_number(options.choose) is not None
        latest = before if self._latest is None else self._latest[1].plan
        if options.keep_layout and is_point and latest is not None and not latest.stages:
            try:
                return plan_everywhere(step, dataclasses.replace(options, kept=shardings_of(latest)))
            except InfeasibleError:
                warn_once(_MOVES_MSG.format(step=step_name(self._step)))
        return plan_everywhere(step, options)


def _on_same_axes(like: Plan, topology: Topology) -> Plan:
    """The plan to be like, which has to be for devices that are arranged alike: its axes split the state here too."""
    if [axis.size for axis in like.topology.axes] != [axis.size for axis in topology.axes]:
        raise ArgumentError(
            f"the plan given by like is for {like.topology.name}, and this step for {topology.name}.\n"
            f"  expected: a plan for {topology.num_devices} devices that are arranged alike\n"
            "  likely cause: the two were planned for different machines\n"
            "  fix: give both the same topology"
        )
    return like


def followed_plan(like: Any) -> Plan:
    """The plan that ``like`` names: a decorated step that has been planned, or a plan.

    Raises:
      ArgumentError: it is neither.
    """
    from jaxplan.plans._plan import Plan

    if isinstance(like, Auto):
        return like.plan
    if isinstance(like, Plan) and like.graph is not None:
        return like
    raise ArgumentError(
        f"like is {like!r}, of type {type(like).__name__}; expected a step decorated with jaxplan.auto, or a plan with "
        "its program"
    )
