"""The decorator `auto`: a step that is planned at its first call, and runs as planned."""

from __future__ import annotations

import dataclasses
import functools
import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from jaxplan import _compat
from jaxplan._api import plan_with_options
from jaxplan._arguments import check_call, step_name
from jaxplan._call import Call, opened_call
from jaxplan._call_key import CallKey
from jaxplan._errors import ArgumentError
from jaxplan._log import warn_once
from jaxplan._step_options import StepOptions

if TYPE_CHECKING:
    from jaxplan._frontier import Frontier
    from jaxplan._plan import Plan
    from jaxplan.mesh import Topology
    from jaxplan.partition import PlannedFunction, Results

P = ParamSpec("P")
R = TypeVar("R")


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
    static_argnames: str | Sequence[str] = (),
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
    static_argnames: str | Sequence[str] = (),
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

_NAMES_OF_ARGUMENTS = ("static_argnums", "static_argnames", "donate_argnums")
_OPTIONS = frozenset(
    {"topology", "memory", "choose", "solver", "progress", "remat", "overlap", "verify", "cache_dir"}
    | {*_NAMES_OF_ARGUMENTS}
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
        self._takes = StepOptions.of(
            step, **{name: self._options[name] for name in _NAMES_OF_ARGUMENTS if name in self._options}
        )
        self._spelling: tuple[int, tuple[str, ...]] | None = None
        self._lock = threading.Lock()
        self._ready: dict[CallKey, tuple[PlannedFunction, Results]] = {}
        self._frontiers: list[Frontier] = []
        self._plans: list[Plan] = []

    def __repr__(self) -> str:
        return f"jaxplan.auto({getattr(self._step, '__qualname__', self._step)!s})"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if _compat.setting("jax_disable_jit"):
            warn_once(_DISABLED_MSG.format(step=step_name(self._step)))
            return self._step(*args, **kwargs)
        given: tuple[Any, Any] = (args, kwargs)
        if self._spelling is None:
            self._spelling = (len(args), tuple(kwargs))
        else:
            given = self._takes.spelled_as(self._spelling, args, kwargs)
        with opened_call(self._step, self._takes, *given) as call:
            key = CallKey.of(call, self._options.get("topology"))
            ready = self._ready.get(key)
            if ready is None:
                call.check_alive()
                with self._lock:
                    ready = self._ready.get(key) or self._prepare(key, call)
            run, results_of = ready
            return run.run(call, results_of)

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
        return Counts(plans=len(self._plans), compiles=sum(run.num_compilations for run in self._planned()))

    def _last(self, items: list[Any], what: str) -> Any:
        if not items:
            raise ArgumentError(
                f"{self!r} has no {what} yet: it is planned at its first call.\n"
                "  fix: call it, or use jaxplan.plan(step, *args) to plan without running"
            )
        return items[-1]

    def _planned(self) -> list[PlannedFunction]:
        """The planned steps, each once: several kinds of calls may share one."""
        return list(dict.fromkeys(run for run, _ in self._ready.values()))

    def _prepare(self, key: CallKey, call: Call) -> tuple[PlannedFunction, Results]:
        """What serves a new kind of call: a plan that is there, where the step is the same program, or a new one."""
        ready = self._shared(key, call) or self._new(call)
        self._ready[key] = ready
        return ready

    def _shared(self, key: CallKey, call: Call) -> tuple[PlannedFunction, Results] | None:
        """A plan made for other settings than the call's: a closure that was made anew is another object."""
        others = [run for other, (run, _) in self._ready.items() if other.may_share(key)]
        if not others:
            return None
        check_call(self._step, call.args, call.kwargs, entry=step_name(self._step))
        program = others[0].calls.trace(call)
        for run in dict.fromkeys(others):
            results_of = run.calls.admit(call, program)
            if results_of is not None:
                return run, results_of
        return None

    def _new(self, call: Call) -> tuple[PlannedFunction, Results]:
        from jaxplan._planner import parse_topology
        from jaxplan.partition import device_mesh

        device_mesh(parse_topology(self._options.get("topology")))  # too few devices: said before the search
        options = {**self._options, "choose": self._choose}
        frontier = plan_with_options(self._step, call.args, call.kwargs, options, entry=step_name(self._step))
        chosen = frontier.choose(self._choose)
        run = chosen.jit()
        self._frontiers.append(frontier)
        self._plans.append(chosen)
        return run, run.calls.results_of(call)
