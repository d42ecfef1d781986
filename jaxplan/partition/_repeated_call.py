"""Run a call that passes on results of the last one, without the checks that these results cannot fail.

A training loop gives a step the state that it returned, in the same places, and a batch. Such a state has the shapes
and shardings of the plan, and each of its arrays has buffers of its own: recognising the array objects replaces every
check of them. The structure of the arguments and settings of JAX must be those of the last call; the other arguments
are compared with the shape, dtype and sharding that the compiled program takes. Other calls take the ordinary way.
"""

from __future__ import annotations

import dataclasses
import operator
import weakref
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any

import jax

from jaxplan.core import _compat
from jaxplan.core._interner import addresses

if TYPE_CHECKING:
    from jaxplan.frontend._call import Call

_flatten = jax.tree_util.default_registry.flatten
_reference = weakref.ref
_trace_context, _debug_nans, _debug_infs = _compat.trace_context, _compat.debug_nans, _compat.debug_infs


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Other:
    """An argument that is not a result of the last call.

    Attributes:
      shape, dtype, weak_type, sharding: of the compiled program's argument.
      may_share: whether it could share the buffer of a donated argument; then only the array of the last call is taken.
    """

    position: int
    shape: tuple[int, ...]
    dtype: Any
    weak_type: bool
    sharding: Any
    may_share: bool

    def takes(self, leaf: Any) -> bool:
        return (
            not self.may_share
            and type(leaf) is _compat.ArrayImpl
            and leaf.sharding == self.sharding
            and leaf.shape == self.shape
            and leaf.dtype == self.dtype
            and leaf.weak_type == self.weak_type
            and leaf.committed
        )


class RepeatedCall:
    """One compiled program, and the form of the calls that repeat.

    Its call is on the path of every training step, where few operators, most of them in C, decide about overhead.
    """

    __slots__ = (
        "_context", "_latest", "_others", "_passed", "_places", "_returned", "_run", "_tree", "_unflatten",
    )  # fmt: skip

    def __init__(
        self,
        *,
        tree: Any,
        run: Callable[..., Any],
        unflatten: Callable[[Sequence[Any]], Any],
        passed: Sequence[int],
        returned: Sequence[int],
        others: Sequence[_Other],
    ) -> None:
        """Calls with this structure of ``(arguments, keyword arguments)``.

        Args:
          run: the compiled program over flat arrays; ``unflatten`` makes the step's results of its results.
          passed, returned: positions of arguments, and of the results of the last call that they are.
          others: the remaining arguments.
        """
        self._tree, self._run, self._unflatten = tree, run, unflatten
        self._context = _compat.trace_context()
        self._passed, self._others = tuple(passed), tuple(others)
        places = [*passed, *(other.position for other in others)]
        is_in_order = places == list(range(len(places)))
        self._places = None if is_in_order else operator.itemgetter(*places)
        is_first = tuple(returned) == tuple(range(len(returned)))
        self._returned = slice(len(returned)) if is_first else tuple(returned)

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The results of a call of this form; NotImplemented for any other."""
        leaves, tree = _flatten((args, kwargs))
        ids, lost, _, others = self._latest
        if (
            tree != self._tree
            or _trace_context() != self._context
            or _debug_nans.value
            or _debug_infs.value
            or lost
        ):
            return NotImplemented
        given = leaves if self._places is None else self._places(leaves)
        if addresses(given) != ids or others[1]:
            others = self._new_others(given, others)
            if others is None:
                return NotImplemented
        try:
            results = self._run(*leaves)
        except Exception:
            if any(leaf.is_deleted() for leaf in leaves):
                return NotImplemented  # the ordinary way names the argument
            raise
        self._note(results, others)
        return self._unflatten(results)

    def _new_others(self, given: Sequence[Any], latest: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """The facts to remember of the arguments that are no results, if all arguments are as they should be."""
        count, ids = len(self._passed), self._latest[0]
        if addresses(given[:count]) != ids[:count]:
            return None
        for other, leaf, ref in zip(self._others, given[count:], latest[2]):
            if ref() is not leaf and not other.takes(leaf):
                return None
        return _remembered(given[count:])

    def _note(self, results: Sequence[Any], others: tuple[Any, ...]) -> None:
        """Remember a call, by (ids of the next one's arguments, references that are dead, references, other arguments).

        An id counts as long as the reference to its array is alive.
        """
        returned = self._returned
        states = results[returned] if type(returned) is slice else [*map(results.__getitem__, returned)]
        lost: list[Any] = []
        references = tuple(map(_reference, states, repeat(lost.append)))
        self._latest = [*addresses(states), *others[0]], lost, references, others


def _remembered(arrays: Sequence[Any]) -> tuple[list[int], list[Any], tuple[Any, ...]]:
    """Ids of arrays, references that are dead, and the references."""
    lost: list[Any] = []
    return addresses(arrays), lost, tuple(map(_reference, arrays, repeat(lost.append)))


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and not isinstance(leaf, _compat.Tracer)


def repeated_call(
    call: Call,
    results: Sequence[Any],
    last_results: Sequence[weakref.ref[Any]],
    *,
    compiled: Any,
    out_tree: Any,
    donated: Sequence[bool],
    watched: Sequence[int],
) -> RepeatedCall | None:
    """A test for calls like one that has just run; None where its like cannot be recognised.

    Args:
      call: its arguments are placed as the plan wants them.
      results: its flat results; ``last_results``: those of the call before.
      compiled: the program over flat arrays.
      out_tree: structure of the step's results.
      donated: per argument, whether its buffer was reused.
      watched: positions of arguments that could share the buffer of a donated one.
    """
    if call.opened.has_graph or call.options.static or not all(map(_is_array, call.leaves)):
        return None
    leaves, tree = _flatten((call.args, dict(call.kwargs)))
    if len(leaves) != len(call.leaves) or not all(map(operator.is_, leaves, call.leaves)):
        return None
    run = _compat.dispatch_of(compiled)
    place = {number: i for i, number in enumerate(addresses(ref() for ref in last_results))}
    pairs = {i: place[number] for i, number in enumerate(addresses(leaves)) if number in place}
    is_known = len(set(pairs.values())) == len(pairs) and all(i in pairs for i, d in enumerate(donated) if d)
    if run is None or not is_known:
        return None
    others = [
        _Other(
            position=i,
            shape=leaf.shape,
            dtype=leaf.dtype,
            weak_type=getattr(leaf, "weak_type", False),
            sharding=leaf.sharding,
            may_share=i in watched,
        )
        for i, leaf in enumerate(leaves)
        if i not in pairs
    ]
    found = RepeatedCall(
        tree=tree,
        run=run,
        unflatten=out_tree.unflatten,
        passed=tuple(pairs),
        returned=tuple(pairs.values()),
        others=others,
    )
    found._note(results, _remembered([leaves[other.position] for other in others]))
    return found
