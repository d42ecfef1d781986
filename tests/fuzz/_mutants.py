"""Bugs put into rules and lowering one at a time: does the fuzzer find each of them?"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
from jax import lax

from jaxplan.frontend._backend import Backend
from jaxplan.ir import (
    Factor,
    OperatorRule,
    StepGraph,
    _follow_groups,
    _registry,
    _space,
    _sum_groups,
    _values,
)
from jaxplan.ir.rules import _window
from jaxplan.mesh import Step
from jaxplan.partition import _local, _steps
from tests.fuzz._check import Subject
from tests.fuzz._generate import program_of
from tests.fuzz._run import strategy_seed

ChangeFn = Callable[[OperatorRule], OperatorRule]
ApplyFn = Callable[[], contextlib.AbstractContextManager[Any]]
NUM_STRATEGIES = 2
"""Strategies of a program that a mutant is tried with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A bug.

    Attributes:
      primitives: those whose rules it changes; none: it changes how programs run.
      apply: a context in which the bug is there.
    """

    name: str
    what: str
    primitives: tuple[str, ...]
    apply: ApplyFn


def _rule_mutant(name: str, what: str, primitives: Sequence[str], change: ChangeFn) -> Mutant:
    @contextlib.contextmanager
    def apply() -> Iterator[None]:
        _registry.registered_primitives()  # loads the rules
        right = {p: _registry._RULES[p] for p in primitives}

        def mutated(fn: Any) -> Any:
            return lambda ins, outs, params: change(fn(ins, outs, params))

        _registry._RULES.update({p: mutated(fn) for p, fn in right.items()})
        _registry._MEMO.clear()
        try:
            yield
        finally:
            _registry._RULES.update(right)
            _registry._MEMO.clear()

    return Mutant(name=name, what=what, primitives=tuple(primitives), apply=apply)


def _patched(name: str, what: str, *patches: tuple[Any, str, Any]) -> Mutant:
    @contextlib.contextmanager
    def apply() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for owner, attribute, value in patches:
                stack.enter_context(mock.patch.object(owner, attribute, value))
            _registry._MEMO.clear()
            yield
        _registry._MEMO.clear()

    return Mutant(name=name, what=what, primitives=(), apply=apply)


def _both(first: Mutant, second: Mutant) -> Mutant:
    """The first, with the second beside it."""

    @contextlib.contextmanager
    def apply() -> Iterator[None]:
        with second.apply(), first.apply():
            yield

    return dataclasses.replace(first, apply=apply)


def _linear(rule: OperatorRule) -> OperatorRule:
    """Partial sums pass."""
    return dataclasses.replace(rule, linear=((0,),))


def _not_whole(rule: OperatorRule) -> OperatorRule:
    """Whole factors that a result carries are mapped."""
    carried = {f for tensor in rule.results for dim in tensor for f in dim}
    factors = tuple(
        Factor(size=f.size) if f.kind == "whole" and i in carried else f for i, f in enumerate(rule.factors)
    )
    return dataclasses.replace(rule, factors=factors)


def _joined_by(reducer: Any) -> ChangeFn:
    """Reduced factors have another reducer."""

    def change(rule: OperatorRule) -> OperatorRule:
        factors = [
            Factor(size=f.size, kind="reduce", reducer=reducer) if f.kind == "reduce" else f
            for f in rule.factors
        ]
        return dataclasses.replace(rule, factors=tuple(factors))

    return change


def _reduced_not_whole(rule: OperatorRule) -> OperatorRule:
    """Whole factors of operands alone are reduced by a maximum."""
    carried = {f for tensor in rule.results for dim in tensor for f in dim}
    factors = tuple(
        Factor(size=f.size, kind="reduce", reducer="max") if f.kind == "whole" and i not in carried else f
        for i, f in enumerate(rule.factors)
    )
    return dataclasses.replace(rule, factors=factors)


def _swapped(dims: tuple[Any, ...], factors: tuple[Factor, ...]) -> tuple[Any, ...]:
    """The first two dimensions of equal size change places."""
    sizes = [[factors[f].size for f in dim] for dim in dims]
    for i in range(len(dims)):
        for j in range(i + 1, len(dims)):
            if sizes[i] == sizes[j] and dims[i]:
                swapped = list(dims)
                swapped[i], swapped[j] = dims[j], dims[i]
                return tuple(swapped)
    return dims


def _swap_result(rule: OperatorRule) -> OperatorRule:
    return dataclasses.replace(rule, results=tuple(_swapped(r, rule.factors) for r in rule.results))


def _swap_second_operand(rule: OperatorRule) -> OperatorRule:
    first, second, *rest = rule.operands
    return dataclasses.replace(rule, operands=(first, _swapped(second, rule.factors), *rest))


def _minor_first(rule: OperatorRule) -> OperatorRule:
    """Merged dimensions carry their factors in the wrong order."""
    results = tuple(tuple(tuple(reversed(dim)) for dim in tensor) for tensor in rule.results)
    return dataclasses.replace(rule, results=results)


def _unshifted(rule: Any, bind: Any, params: Any, pieces: Any, split: Any) -> Any:
    return bind(params, list(pieces))


def _step_without(kind: str, instead: Callable[[Any, Step, tuple[str, ...]], Any]) -> Any:
    """Steps of one kind do something else on a device's piece."""
    right = _steps.Executor._local

    def local(self: Any, x: Any, step: Step) -> Any:
        return instead(x, step, self.names(step.axes)) if step.kind == kind else right(self, x, step)

    return local


def _no_sum(x: Any, step: Step, names: tuple[str, ...]) -> Any:
    return x if step.target.partial else x[0]


def _scattered_backwards(x: Any, step: Step, names: tuple[str, ...]) -> Any:
    dim = (step.dim or 0) + 1
    x = lax.psum_scatter(x, names[::-1], scatter_dimension=dim, tiled=True)
    return x if step.target.partial else x[0]


def _gathered_backwards(x: Any, step: Step, names: tuple[str, ...]) -> Any:
    return jnp.flip(_gathered(x, step, names), (step.dim or 0) + bool(step.source.partial))


def _gathered(x: Any, step: Step, names: tuple[str, ...]) -> Any:
    return lax.all_gather(x, names, axis=(step.dim or 0) + bool(step.source.partial), tiled=True)


_CUMULATED = ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
_NONLINEAR = ("sin", "cos", "tanh", "abs", "max", "square", "exp", "integer_pow")
MUTANTS = [
    _rule_mutant("cumulated", "cumulated dimensions are not whole", _CUMULATED, _not_whole),
    _rule_mutant("sorted", "sorted dimensions are not whole", ("sort",), _not_whole),
    _rule_mutant("reversed", "reversed dimensions are not whole", ("rev",), _not_whole),
    _rule_mutant("updated", "partly updated dimensions are not whole", ("dynamic_update_slice",), _not_whole),
    _rule_mutant("argmax", "positions are joined by a maximum", ("argmax", "argmin"), _reduced_not_whole),
    _rule_mutant("max-by-min", "maxima are joined by a minimum", ("reduce_max",), _joined_by("min")),
    _rule_mutant("max-as-sum", "maxima are linear: joined by a sum", ("reduce_max",), _joined_by("sum")),
    _rule_mutant("min-as-sum", "minima are linear: joined by a sum", ("reduce_min",), _joined_by("sum")),
    _rule_mutant("prod-as-sum", "products are joined by a sum", ("reduce_prod",), _joined_by("sum")),
    _rule_mutant("sum-by-max", "sums are joined by a maximum", ("reduce_sum",), _joined_by("max")),
    _rule_mutant("and-by-max", "'all' is joined as 'any'", ("reduce_and",), _joined_by("max")),
    _rule_mutant("dot-by-max", "contractions are joined by a maximum", ("dot_general",), _joined_by("max")),
    _rule_mutant(
        "conv-by-max", "convolutions are joined by a maximum", ("conv_general_dilated",), _joined_by("max")
    ),
    _rule_mutant("scatter-by-max", "additions are joined by a maximum", ("scatter-add",), _joined_by("max")),
    _rule_mutant("transpose", "dimensions of a transpose are swapped", ("transpose",), _swap_result),
    _rule_mutant("dot-result", "dimensions of a product are swapped", ("dot_general",), _swap_result),
    _rule_mutant(
        "dot-operand", "dimensions of an operand are swapped", ("dot_general",), _swap_second_operand
    ),
    _rule_mutant("broadcast", "dimensions of a broadcast are swapped", ("broadcast_in_dim",), _swap_result),
    _rule_mutant("reshape", "merged dimensions begin with the minor one", ("reshape",), _minor_first),
    _patched("window", "windows need no halo", (_window.Window, "is_disjoint", property(lambda w: True))),
    _patched("look-up", "indices of a part are not shifted", (_local, "own_look_ups", _unshifted)),
    _patched("update", "indices of updates of a part are not shifted", (_local, "own_updates", _unshifted)),
    _patched(
        "count-once", "what is added to counts on every device", (_local, "_count_once", lambda x, *_: x)
    ),
    _patched(
        "sum-dropped",
        "the sum over the devices is left out",
        (_steps.Executor, "_local", _step_without("all-reduce", _no_sum)),
    ),
    _patched(
        "scatter-order",
        "axes of a reduce-scatter in the wrong order",
        (_steps.Executor, "_local", _step_without("reduce-scatter", _scattered_backwards)),
    ),
    _patched(
        "gather-order",
        "what is gathered comes out backwards",
        (_steps.Executor, "_local", _step_without("all-gather", _gathered_backwards)),
    ),
    _patched(
        "permutation",
        "permutations go backwards",
        (
            _steps,
            "permutation_pairs",
            lambda *args, right=_steps.permutation_pairs: [(b, a) for a, b in right(*args)],
        ),
    ),
    _both(
        _rule_mutant("non-linear", "partial sums pass non-linear operators", _NONLINEAR, _linear),
        _patched(
            "",
            "",
            *(
                (m, "VIEW_PRIMITIVES", _values.VIEW_PRIMITIVES | set(_NONLINEAR))
                for m in (_follow_groups, _sum_groups, _space, _values)
            ),
        ),
    ),
    _rule_mutant("cast", "casts to integers are linear", ("convert_element_type",), _linear),
]


def hunt(seed: int, indices: range, names: Sequence[str] | None = None) -> int:
    """Look for every mutant among these programs; prints which found it, and returns 1 if one was missed."""
    left = [m for m in MUTANTS if names is None or m.name in names]
    total, found = len(left), 0
    for index in indices:
        if not left:
            break
        program = program_of(seed, index)
        try:
            subject = Subject.of(program)
            graph = subject.graph
        except Exception:
            continue
        for mutant in list(left):
            how = _finds(mutant, subject, graph, seed, index)
            if how:
                left.remove(mutant)
                found += 1
                print(f"found  {mutant.name:16} {mutant.what}: program {index}, {how}", flush=True)
        if index % 20 == 19:
            jax.clear_caches()
    for mutant in left:
        print(f"MISSED {mutant.name:16} {mutant.what}: not by programs {indices}", flush=True)
    print(f"{found} of {total} bugs found by programs {indices.start} to {indices.stop - 1} of seed {seed}")
    return 1 if left else 0


def _finds(mutant: Mutant, subject: Subject, graph: StepGraph, seed: int, index: int) -> str:
    """How a program fails with the bug and not without it; '' if it does not."""
    if mutant.primitives and not any(e.name in mutant.primitives for e in graph.program.equations):
        return ""
    for k in range(NUM_STRATEGIES):
        backend: Backend = "shard_map" if mutant.primitives or k == 1 else "jit"
        with mutant.apply():
            try:
                mutated = subject.again()
                if mutated.graph.rules == graph.rules and (mutant.primitives or mutant.name == "window"):
                    return ""
                outcome = mutated.try_seed(strategy_seed(seed, index, k), backend)
            except Exception as error:
                return f"crash ({type(error).__name__})"
        if outcome.failed and not subject.again().try_seed(strategy_seed(seed, index, k), backend).failed:
            return outcome.kind
    return ""
