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
from typing import TYPE_CHECKING, Any

import jax

from jaxplan.core import _compat
from jaxplan.core._interner import addresses

if TYPE_CHECKING:
    from jaxplan.frontend._call import Call

RepeatedCall = Callable[[tuple[Any, ...], Mapping[str, Any]], Any]
"""Takes arguments and keyword arguments: the results of a call of its form; NotImplemented for any other."""



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


def _recognised(
    *,
    tree: Any,
    run: Callable[..., Any],
    unflatten: Callable[[Sequence[Any]], Any],
    passed: Sequence[int],
    returned: Sequence[int],
    others: Sequence[_Other],
    first: tuple[Sequence[Any], Sequence[Any]],
) -> RepeatedCall:
    """A function of calls with this structure of ``(arguments, keyword arguments)``.

    It is on the path of every training step, where few operators, most of them in C, decide about overhead: so it is a
    closure, and remembers arrays by weak references alone, those of the next call's arguments in their order.

    Args:
      run: the compiled program over flat arrays; ``unflatten`` makes the step's results of its results.
      passed, returned: positions of arguments, and of the results of the last call that they are.
      others: the remaining arguments.
      first: results and arguments of the call that has just run.
    """
    count, others = len(passed), tuple(others)
    places = [*passed, *(other.position for other in others)]
    pick = None if places == list(range(len(places))) else operator.itemgetter(*places)
    is_first = tuple(returned) == tuple(range(count))
    flatten_as, reference, is_same, alive = tree.flatten_up_to, weakref.ref, operator.is_, operator.call
    context, nans, infs = _compat.trace_context, _compat.debug_nans, _compat.debug_infs
    known_context = context()

    def states(results: Sequence[Any]) -> Sequence[Any]:
        return results[:count] if is_first else [*map(results.__getitem__, returned)]

    latest = [*map(reference, states(first[0])), *map(reference, (first[1][other.position] for other in others))]

    def repeated(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        nonlocal latest
        try:
            leaves = flatten_as((args, kwargs))  # in half the time of a structure that is made to be compared
        except (ValueError, TypeError):
            return NotImplemented
        if context() != known_context or nans.value or infs.value:
            return NotImplemented
        references, given = latest, leaves if pick is None else pick(leaves)
        if not all(map(is_same, given, map(alive, references))):
            if not _may_follow(given, references, others):
                return NotImplemented
            references = [*references[:count], *map(reference, given[count:])]
        try:
            results = run(*leaves)
        except Exception:
            if any(leaf.is_deleted() for leaf in leaves):
                return NotImplemented  # the ordinary way names the argument
            raise
        kept = results[:count] if is_first else states(results)
        latest = [*map(reference, kept), *references[count:]]
        return unflatten(results)

    return repeated


def _may_follow(given: Sequence[Any], references: Sequence[weakref.ref[Any]], others: Sequence[_Other]) -> bool:
    """Whether the arguments that are results of the last call are those, and the others fit the compiled program.

    A reference whose array is dead is of no argument.
    """
    count = len(given) - len(others)
    if not all(map(operator.is_, given[:count], map(operator.call, references[:count]))):
        return False
    rest = zip(others, given[count:], references[count:], strict=True)
    return all(reference() is leaf or other.takes(leaf) for other, leaf, reference in rest)


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
    leaves, tree = jax.tree.flatten((call.args, dict(call.kwargs)))
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
    return _recognised(
        tree=tree,
        run=run,
        unflatten=out_tree.unflatten,
        passed=tuple(pairs),
        returned=tuple(pairs.values()),
        others=others,
        first=(results, leaves),
    )
