"""Loops, branches, rematerialised regions and other functions inside of a program."""

from __future__ import annotations

from collections.abc import Callable

from tests.fuzz._operators import operator
from tests.fuzz._program import Function, Value
from tests.fuzz._scope import Inapplicable, Scope

_SAVES_PRODUCTS = "functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable)"
MAX_DEPTH = 2
MAX_BODY = 6
Fill = Callable[[Scope, int], None]
_FILL: list[Fill] = []


def set_fill(fill: Fill) -> None:
    """How a body is filled with statements: the generator's own loop, which needs this module's operators."""
    _FILL[:] = [fill]


def _body(s: Scope, parameters: list[Value]) -> Scope:
    if s.depth >= MAX_DEPTH:
        raise Inapplicable
    return s.body(parameters, s.integer(1, MAX_BODY), _FILL[0])


def _function(
    s: Scope, parameters: list[Value], inner: Scope, results: list[str], decorator: str = ""
) -> Function:
    return Function(
        name=s.new_name("f"),
        parameters=tuple(parameters),
        statements=tuple(inner.statements),
        results=tuple(results),
        decorator=decorator,
    )


def _made(inner: Scope, like: Value) -> str:
    """The next carry: a late value of its shape mostly, so that the loop carries something."""
    made = [v for st in inner.statements for v in st.results]
    alike = [v for v in made if v.shape == like.shape]
    chosen = inner.one_of((alike or made)[-3:])
    return inner.cast(chosen, like.shape, like.dtype)


@operator(6)
def scanned(s: Scope) -> None:
    """A carry, slices of a stack, values from outside, and results that are stacked or accumulated."""
    xs = s.pick(lambda v: v.rank >= 2 and v.shape[0] <= 8)
    carry = s.pick(lambda v: v.dtype != "bool" and v.bound <= 20)
    state = s.parameter(carry.shape, carry.dtype, max(1.0, carry.bound))
    row = s.parameter(xs.shape[1:], xs.dtype, xs.bound)
    inner = _body(s, [state, row])
    outputs = [inner.statements[-1].results[0]]
    after = _made(inner, carry)
    if s.flag(3) and carry.is_float and carry.rank:
        after = f"{state.name} + {after}"
    fn = _function(s, [state, row], inner, [after, *(v.name for v in outputs)])
    options = s.one_of(("", ", reverse=True", ", unroll=2"))
    s.emit_all(
        f"lax.scan({fn.name}, {carry.name}, {xs.name}{options})",
        bounds=[max(1.0, carry.bound) + 8, *(v.bound for v in outputs)],
        functions=[fn],
    )


@operator(4)
def accumulated(s: Scope) -> None:
    """A loop that adds up contractions over its trips, from zero: a partial sum may wait for its end."""
    xs = s.pick(lambda v: v.rank == 3 and v.is_float and v.shape[0] <= 8 and v.bound <= 5)
    n, rows, columns = xs.shape
    other = s.matching((rows, s.size()), xs.dtype)
    row = s.parameter((rows, columns), xs.dtype, xs.bound)
    total = s.parameter((columns, other.shape[1]), xs.dtype, 20.0)
    inner = _body(s, [row])
    alike = [v for v in inner.values if v.shape == row.shape and v.dtype == row.dtype]
    chosen = s.one_of(alike[-3:])
    fn = _function(
        s, [total, row], inner, [f"{total.name} + jnp.tanh({chosen.name}).T @ {other.name}", "None"]
    )
    zeros = f"jnp.zeros({total.shape}, {xs.dtype!r})"
    s.emit_all(f"lax.scan({fn.name}, {zeros}, {xs.name})[0]", bounds=[float(n * rows)], functions=[fn])


@operator(3, differentiable=False)
def while_loop(s: Scope) -> None:
    carry = s.pick(lambda v: v.dtype != "bool" and v.rank >= 1 and v.bound <= 20)
    count = s.matching((), "int32")
    state = s.parameter(carry.shape, carry.dtype, max(1.0, carry.bound))
    index = s.parameter((), "int32", 4.0)
    inner = _body(s, [index, state])
    fn = _function(s, [index, state], inner, [_made(inner, carry)])
    text = f"lax.fori_loop(0, {count.name} % 4, {fn.name}, {carry.name})"
    s.emit_all(text, bounds=[carry.bound + 4], functions=[fn])


@operator(4)
def branches(s: Scope) -> None:
    x = s.pick(lambda v: v.rank >= 1)
    choice = s.matching((), "int32")
    functions = []
    for _ in range(s.integer(2, 3)):
        given = s.parameter(x.shape, x.dtype, x.bound)
        inner = _body(s, [given])
        functions.append(_function(s, [given], inner, [_made(inner, x)]))
    names = ", ".join(f.name for f in functions)
    text = f"lax.switch({choice.name} % {len(functions)}, [{names}], {x.name})"
    s.emit_all(text, bounds=[x.bound + 4], functions=functions)


@operator(5)
def called(s: Scope) -> None:
    """Rematerialised, or compiled apart."""
    x = s.pick(lambda v: v.rank >= 1)
    given = s.parameter(x.shape, x.dtype, x.bound)
    inner = _body(s, [given])
    results = [v for st in inner.statements for v in st.results][-2:]
    fn = _function(
        s,
        [given],
        inner,
        [v.name for v in results],
        s.one_of(("jax.checkpoint", _SAVES_PRODUCTS, "jax.jit")),
    )
    if len(results) == 1:
        s.emit_all(f"{fn.name}({x.name})", bounds=[results[0].bound], functions=[fn])
    else:
        s.emit_all(f"{fn.name}({x.name})", bounds=[v.bound for v in results], functions=[fn])


@operator(2)
def mapped(s: Scope) -> None:
    x = s.pick(lambda v: v.rank >= 2)
    given = s.parameter(x.shape[1:], x.dtype, x.bound)
    inner = _body(s, [given])
    last = inner.statements[-1].results[0]
    fn = _function(s, [given], inner, [last.name])
    s.emit_all(f"jax.vmap({fn.name})({x.name})", bounds=[last.bound], functions=[fn])
