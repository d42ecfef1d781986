"""A decorated step as type checkers see it; nothing here runs, pyright reads it."""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from typing import assert_type

import jax

import jaxplan


def step(
    params: dict[str, jax.Array], x: jax.Array, *, rate: float = 0.1
) -> tuple[dict[str, jax.Array], float]:
    raise NotImplementedError


bare = jaxplan.auto(step)
with_options = jaxplan.auto(memory="40GiB", choose="knee")(step)


@jaxplan.auto
def decorated(x: jax.Array, count: int) -> jax.Array:
    raise NotImplementedError


@jaxplan.auto(topology="h100:8", static_argnums=1)
def decorated_with_options(x: jax.Array, count: int) -> jax.Array:
    raise NotImplementedError


def check(params: dict[str, jax.Array], x: jax.Array) -> None:
    assert_type(bare(params, x, rate=0.2), tuple[dict[str, jax.Array], float])
    assert_type(with_options(params, x), tuple[dict[str, jax.Array], float])
    assert_type(decorated(x, count=3), jax.Array)
    assert_type(decorated_with_options(x, 3), jax.Array)
    assert_type(decorated.plan, jaxplan.Plan)
    assert_type(jaxplan.plan(step, params, x, donate_argnums=0), jaxplan.Frontier)
    bare(params)  # pyright: ignore[reportCallIssue]
    bare(params, x, rat=0.2)  # pyright: ignore[reportCallIssue]
    decorated(x, "3")  # pyright: ignore[reportArgumentType]
