"""The way in for several steps that share state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxplan._api._traced import Traced, step_to_plan
from jaxplan.errors import ArgumentError
from jaxplan.frontend._options import TOGETHER, only, takes_options
from jaxplan.plans._joint import JointFrontier
from jaxplan.search._entry import StepToPlan
from jaxplan.search._together_entry import plan_together_on


@takes_options(TOGETHER)
def plan_together(
    steps: Mapping[str, Any],
    *,
    weights: Mapping[str, float] | None = None,
    shared: Mapping[str, str] | None = None,
    **options: Any,
) -> JointFrontier:
    """Plan several steps over one layout of the arrays that they share, such as parameters, caches and statistics.

    A call of one step then moves nothing that another one left behind. The steps are priced as one problem: the sum of
    their times, each as often as its weight says, against the memory of a device, on which the states of all steps
    stay while one of them runs (docs/serving.md).

    Args:
      steps: by name, each ``(step, args)``, ``(step, args, kwargs)``, or a step that `jaxplan.trace` has traced with
        its own static and donated arguments.
      weights: how often a step runs beside the others: ``{"train": 1000, "eval": 10}``; default 1 each.
      shared: arrays that are the same in two steps where path, structure and shape do not tell:
        ``{"eval/weights": "train/state/ema"}``, a step and the path of a subtree.
      {options}

    Returns:
      The joint frontier: ``.fastest()``, ``.within("40GiB")``, ``.table()``; of a joint plan ``joint["train"]`` is the
      `Plan` of that step, to run, explain and audit.

    Raises:
      ArgumentError: the steps share nothing, or ``weights`` or ``shared`` do not fit them.
      TraceError, TopologyError, InfeasibleError: as `jaxplan.plan`.

    >>> import jax, jax.numpy as jnp, jaxplan
    >>> def prefill(weights, tokens):
    ...     return {"keys": weights["embed"][tokens]}
    >>> def decode(weights, cache, token):
    ...     query = weights["embed"][token]
    ...     keys = jnp.roll(cache["keys"], -1, axis=1).at[:, -1].set(query)
    ...     return {"keys": keys}, jnp.einsum("bd,bsd->bs", query, keys)
    >>> shape = jax.ShapeDtypeStruct
    >>> weights, cache = {"embed": shape((512, 64), "float32")}, {"keys": shape((32, 128, 64), "float32")}
    >>> joint = jaxplan.plan_together(
    ...     {
    ...         "prefill": (prefill, (weights, shape((32, 128), "int32"))),
    ...         "decode": (decode, (weights, cache, shape((32,), "int32"))),
    ...     },
    ...     weights={"decode": 100},
    ...     topology="h100:8",
    ... ).fastest()
    >>> joint["prefill"].out_specs == joint["decode"].in_specs[1]
    True
    """
    checked = only(options, TOGETHER, "plan_together")
    return plan_together_on(steps_by_name(steps, "plan_together"), checked, weights, shared)


def steps_by_name(steps: Any, entry: str) -> dict[str, StepToPlan]:
    """Several steps with their arguments, as ``entry`` of the interface was given them."""
    if not isinstance(steps, Mapping) or len(steps) < 2 or not all(isinstance(name, str) for name in steps):
        given = f"{len(steps)} of them" if isinstance(steps, Mapping) else f"a {type(steps).__name__}"
        raise ArgumentError(
            f"{entry} takes at least two steps by name, and was given {given}.\n"
            '  fix: {"train": (train_step, (state, batch)), "eval": (eval_step, (params, x))}\n'
            "  one step alone goes to jaxplan.plan, and its plan to jaxplan.load(path, step, *args)"
        )
    return {name: _step(name, of, entry) for name, of in steps.items()}


def _step(name: str, given: Any, entry: str) -> StepToPlan:
    """A step with its arguments, as it was given under a name."""
    if not name or "/" in name:
        raise ArgumentError(f"a step is called {name!r}; expected a name without slashes, such as 'train'")
    if isinstance(given, Traced):
        return given._step
    is_pair = isinstance(given, tuple | list) and len(given) in (2, 3)
    step, args, kwargs = (*given, {})[:3] if is_pair else (None, None, None)
    if not is_pair or not isinstance(args, tuple | list) or not isinstance(kwargs, Mapping):
        raise ArgumentError(
            f"the step {name!r} is {_shown(given)}.\n"
            "  expected: (step, args) or (step, args, kwargs), args a tuple, or jaxplan.trace(step, *args)\n"
            "  likely cause: one argument without the comma that makes it a tuple\n"
            f'  fix: {{"{name}": (step, (state, batch))}}'
        )
    return step_to_plan(step, tuple(args), dict(kwargs), frozenset(), f"{entry}, step {name!r}")[0]


def _shown(given: Any) -> str:
    """A value in an error, by its type alone where it holds arrays."""
    if isinstance(given, tuple | list):
        return f"a {type(given).__name__} of {', '.join(type(of).__name__ for of in given) or 'nothing'}"
    return f"of type {type(given).__name__}"
