"""The staged form: a step is traced once, and planned on as many machines as one likes."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

import jax

from jaxplan._api._auto import Auto
from jaxplan.core._interrupt import interruptible
from jaxplan.core._progress import Progress
from jaxplan.errors import ArgumentError
from jaxplan.frontend._arguments import check_call, step_name
from jaxplan.frontend._options import PARTS, PLAN, TRACE, Keywords, Options, only, taken, takes_options
from jaxplan.mesh import Topology
from jaxplan.plans._frontier import Frontier
from jaxplan.search._compare import Comparison
from jaxplan.search._entry import StepToPlan, compare_for, min_devices_of, plan_on, scaling_of
from jaxplan.search._scaling import MinDevices, Scaling


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Traced:
    """A traced step; `jaxplan.trace` makes it.

    >>> import jax, jax.numpy as jnp, jaxplan
    >>> def step(w, x):
    ...     return w - 0.1 * jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)
    >>> w, x = jax.ShapeDtypeStruct((256, 64), "float32"), jax.ShapeDtypeStruct((1024, 256), "float32")
    >>> traced = jaxplan.trace(step, w, x)
    >>> [traced.plan(topology=machine).fastest().topology.num_devices for machine in ("h100:8", "v5e:2x4", "cpu:4")]
    [8, 8, 4]
    """

    _step: StepToPlan

    def __repr__(self) -> str:
        return repr(self._step)

    @takes_options(PLAN - TRACE)
    def plan(self, **keywords: Unpack[Keywords]) -> Frontier:
        """Plan the step on one machine; equals `jaxplan.plan` with the same options.

        Args:
          {options}
        """
        return plan_on(self._step, only(keywords, PLAN - TRACE, "plan"))

    @takes_options(PARTS - TRACE)
    def min_devices(self, **keywords: Unpack[Keywords]) -> MinDevices:
        """Find the fewest devices of a machine on which the step fits; equals `jaxplan.min_devices`.

        Args:
          {options}
        """
        return min_devices_of(self._step, only(keywords, PARTS - TRACE, "min_devices"))

    @takes_options(PARTS - TRACE)
    def scaling(
        self, *, device_counts: Sequence[int] | None = None, **keywords: Unpack[Keywords]
    ) -> Scaling:
        """Find the best time of the step for each number of devices; equals `jaxplan.scaling`.

        Args:
          device_counts: numbers of devices; default: all even parts of the machine.
          {options}
        """
        return scaling_of(self._step, only(keywords, PARTS - TRACE, "scaling"), device_counts)

    @takes_options(PARTS - TRACE - {"topology"})
    def compare(
        self,
        *,
        topologies: Sequence[str | Topology],
        prices: Mapping[str, float] | None = None,
        **keywords: Unpack[Keywords],
    ) -> Comparison:
        """Plan the step on several machines, to see which one to rent; equals `jaxplan.compare`.

        Args:
          topologies: the machines, such as ``["h100:8", "a100:16", "v5e:4x4"]``.
          prices: of one device for one hour, by chip (``"h100"``) or by topology (``"h100:2x8"``).
          {options}
        """
        options = only(keywords, PARTS - TRACE - {"topology"}, "compare")
        return compare_for(self._step, options, topologies, prices)


@takes_options(TRACE)
def trace(step: Callable[..., Any], *args: Any, **keywords: Any) -> Traced:
    """Trace a step once, to plan it on several machines or with several limits.

    Args:
      step: the single-device step, as `jax.jit` accepts it; one that is jitted keeps its own static and donated
        arguments.
      args, keywords: its arguments: arrays, `jax.ShapeDtypeStruct`, or pytrees of them; nothing is allocated.
      {options}

    Raises:
      TraceError: the step cannot be traced; names the user's line.

    >>> import jax, jax.numpy as jnp, jaxplan
    >>> traced = jaxplan.trace(jax.jit(lambda x: x @ x, donate_argnums=0), jax.ShapeDtypeStruct((64, 64), "float32"))
    >>> frontier = traced.plan(topology="h100:8", memory="1GiB", progress=False)
    >>> frontier.fastest().topology.name
    'h100:8'
    """
    found = step_to_plan(step, args, keywords, TRACE, "jaxplan.trace")[0]
    with interruptible(), Progress(False) as report:
        found.graph(None, report)
    return Traced(found)


def step_to_plan(
    step: Any,
    args: Sequence[Any],
    keywords: Mapping[str, Any],
    names: frozenset[str],
    entry: str,
    own: Sequence[str] = (),
) -> tuple[StepToPlan, Options]:
    """The step with its arguments, and the options of a call, both checked.

    Args:
      keywords: of the call: options, and arguments of the step.
      names: the options that the call takes.
      entry: how errors call it.
      own: its other keywords, of which an unknown one may be a misspelling.
    """
    step = _callable_step(step, entry)
    options, kwargs = taken(keywords, names)
    check_call(step, args, kwargs, options=[*names, *own], entry=entry)
    return StepToPlan(step, args, kwargs, options), options


def _callable_step(step: Any, entry: str) -> Callable[..., Any]:
    """The step itself, undecorated; an error where it is none, or one that JAX cannot trace."""
    if not callable(step):
        raise ArgumentError(
            f"step is {step!r}, of type {type(step).__name__}; expected the function to plan, and then its arguments.\n"
            "  likely cause: the arguments were given without the step, or the step was called\n"
            f"  fix: {entry}(train_step, state, batch)"
        )
    if isinstance(step, Auto):
        return step._step
    for is_one, given, cause, fix in _UNTRACEABLE:
        if is_one(step):
            raise ArgumentError(_UNTRACEABLE_MSG.format(name=step_name(step), given=given, cause=cause, fix=fix))
    return step


def _is_pmapped(step: Any) -> bool:
    """Whether `jax.pmap` made it: a function of Python that can be lowered, unlike what `jax.jit` makes."""
    return inspect.isfunction(step) and hasattr(step, "lower")


_UNTRACEABLE: tuple[tuple[Callable[[Any], bool], str, str, str], ...] = (
    (
        inspect.isgeneratorfunction,
        "a generator",
        "it has a `yield`",
        "return the results in place of it",
    ),
    (
        inspect.iscoroutinefunction,
        "a coroutine",
        "it is an `async def`",
        "plan a plain function, and await around it",
    ),
    (
        lambda step: isinstance(step, jax.stages.Compiled),
        "a compiled program",
        "it comes of jax.jit(...).lower(...).compile()",
        "plan the function inside of jax.jit",
    ),
    (
        _is_pmapped,
        "a function of jax.pmap",
        "its batch is split over devices by hand",
        "plan the function inside of jax.pmap, on a batch without the dimension of devices",
    ),
)
_UNTRACEABLE_MSG = (
    "the step {name} is {given}.\n"
    "  expected: a function of arrays that returns arrays, as jax.jit takes it\n"
    "  likely cause: {cause}\n"
    "  fix: {fix}"
)
