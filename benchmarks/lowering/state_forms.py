"""One frontier for a step, however its state is passed and returned.

    python -m benchmarks.state_forms
    python -m benchmarks.state_forms --step gan --form backwards --topology h100:2x2

Five steps (`STEPS`) are written in twelve forms each (`FORMS`): flat and nested, loss first, in another order, as one
tuple, dictionary, named tuple or dataclass, under other keys, as a list of leaves, by keyword. Each is planned with
abstract arguments; its frontier and its reference strategies (names, seconds, bytes) have to equal those of the flat
form, and so have the arguments donated by default. Exit status 1 where they do not.
"""

from __future__ import annotations

import argparse
import math
from collections import namedtuple
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import jaxplan

Parts = dict[str, Any]
"""State by name: trees of arrays."""
Update = Callable[[Parts, Any], tuple[Parts, jax.Array]]
"""(state, batch) -> (new state, loss)."""


class Case(NamedTuple):
    """A step in no form yet.

    Attributes:
      update: the step itself.
      parts: its state, as shapes.
      batch: its other arguments.
    """

    update: Update
    parts: Parts
    batch: Any


def _shape(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


_WIDTH, _HIDDEN, _BATCH = 512, 2048, 1024
_DENSE = {"up": _shape(_WIDTH, _HIDDEN), "down": _shape(_HIDDEN, _WIDTH)}
_COUNT = _shape(dtype=jnp.int32)


def _mlp(params: Any, x: jax.Array) -> jax.Array:
    return jax.nn.gelu(x @ params["up"]) @ params["down"]


def _descend(tx: Any, loss_fn: Callable[..., Any], params: Any, opt: Any, *args: Any) -> tuple[Any, Any, Any]:
    loss, grads = jax.value_and_grad(loss_fn)(params, *args)
    updates, opt = tx.update(grads, opt, params)
    return optax.apply_updates(params, updates), opt, loss


def mlp() -> Case:
    """A perceptron under Adam."""
    tx = optax.adam(1e-3)

    def update(parts: Parts, x: jax.Array) -> tuple[Parts, jax.Array]:
        params, opt, loss = _descend(
            tx, lambda p: jnp.mean((_mlp(p, x) - x) ** 2), parts["params"], parts["opt"]
        )
        return {"params": params, "opt": opt}, loss

    return Case(update, {"params": _DENSE, "opt": jax.eval_shape(tx.init, _DENSE)}, _shape(_BATCH, _WIDTH))


def gan() -> Case:
    """Two networks of equal shapes, two optimizers; the generator is trained against the new discriminator."""
    tx = optax.adam(1e-3)

    def update(parts: Parts, x: jax.Array) -> tuple[Parts, jax.Array]:
        def judge(disc: Any, gen: Any) -> jax.Array:
            return jnp.mean(_mlp(disc, x) ** 2) - jnp.mean(_mlp(disc, _mlp(gen, x)) ** 2)

        disc, disc_opt, loss = _descend(tx, judge, parts["disc"], parts["disc_opt"], parts["gen"])
        gen, gen_opt, _ = _descend(tx, lambda g: -judge(disc, g), parts["gen"], parts["gen_opt"])
        return {"gen": gen, "disc": disc, "gen_opt": gen_opt, "disc_opt": disc_opt}, loss

    opt = jax.eval_shape(tx.init, _DENSE)
    return Case(
        update, {"gen": _DENSE, "disc": _DENSE, "gen_opt": opt, "disc_opt": opt}, _shape(_BATCH, _WIDTH)
    )


def averages() -> Case:
    """Momentum, an exponential average of the parameters, and a target network that is replaced now and then."""
    tx = optax.sgd(1e-2, momentum=0.9)

    def update(parts: Parts, x: jax.Array) -> tuple[Parts, jax.Array]:
        def loss_fn(params: Any) -> jax.Array:
            return jnp.mean((_mlp(params, x) - _mlp(parts["target"], x)) ** 2)

        params, opt, loss = _descend(tx, loss_fn, parts["params"], parts["opt"])
        count = parts["count"]["steps"] + 1
        ema = jax.tree.map(lambda e, p: 0.99 * e + 0.01 * p, parts["ema"], params)
        target = jax.tree.map(lambda t, p: jnp.where(count % 100 == 0, p, t), parts["target"], params)
        return {"params": params, "opt": opt, "ema": ema, "target": target, "count": {"steps": count}}, loss

    parts = {"params": _DENSE, "opt": jax.eval_shape(tx.init, _DENSE), "ema": _DENSE, "target": _DENSE}
    return Case(update, {**parts, "count": {"steps": _COUNT}}, _shape(_BATCH, _WIDTH))


def decoding() -> Case:
    """One token of attention against a cache of keys and values, with frozen parameters."""
    batch, length, heads, size = 64, 1024, 8, 64
    width = heads * size

    def update(parts: Parts, batch: Any) -> tuple[Parts, jax.Array]:
        params, x = batch
        cache, position = parts["cache"], parts["position"]
        query, key, value = (
            (x @ params[name]).reshape(-1, 1, heads, size) for name in ("query", "key", "value")
        )
        start = (0, position["next"], 0, 0)
        keys = jax.lax.dynamic_update_slice(cache["keys"], key, start)
        values = jax.lax.dynamic_update_slice(cache["values"], value, start)
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, keys)
        scores = jnp.where(jnp.arange(length) <= position["next"], scores, -1e9)
        out = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), values).reshape(-1, width)
        new = {"cache": {"keys": keys, "values": values}, "position": {"next": position["next"] + 1}}
        return new, out @ params["out"]

    cache = _shape(batch, length, heads, size)
    parts = {"cache": {"keys": cache, "values": cache}, "position": {"next": _COUNT}}
    params = {name: _shape(width, width) for name in ("query", "key", "value", "out")}
    return Case(update, parts, (params, _shape(batch, width)))


def environments() -> Case:
    """Four steps of vectorised environments in a scan, then one of a policy with running statistics; a random key."""
    num, width = 4096, 64
    tx = optax.adam(1e-3)
    policy = {"up": _shape(width, 256), "down": _shape(256, width)}

    def observe(carry: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        params, env = carry
        moved = env["position"] + jnp.tanh(_mlp(params, env["position"]))
        done = env["age"] >= 100
        fresh = jax.random.normal(key, moved.shape)
        env = {"position": jnp.where(done[:, None], fresh, moved), "age": jnp.where(done, 0, env["age"] + 1)}
        return (params, env), env["position"]

    def update(parts: Parts, goal: jax.Array) -> tuple[Parts, jax.Array]:
        key, *keys = jax.random.split(parts["key"]["key"], 5)
        (_, env), seen = jax.lax.scan(observe, (parts["params"], parts["env"]), jnp.stack(keys))
        seen = jax.lax.stop_gradient(seen)
        mean = 0.9 * parts["stats"]["mean"] + 0.1 * seen.mean((0, 1))

        def loss_fn(params: Any) -> jax.Array:
            return jnp.mean((_mlp(params, seen - mean) - goal) ** 2)

        params, opt, loss = _descend(tx, loss_fn, parts["params"], parts["opt"])
        new = {"params": params, "opt": opt, "stats": {"mean": mean}, "env": env, "key": {"key": key}}
        return new, loss

    parts = {
        "params": policy,
        "opt": jax.eval_shape(tx.init, policy),
        "stats": {"mean": _shape(width)},
        "env": {"position": _shape(num, width), "age": _shape(num, dtype=jnp.int32)},
        "key": {"key": _shape(2, dtype=jnp.uint32)},
    }
    return Case(update, parts, _shape(num, width))


STEPS: dict[str, Callable[[], Case]] = {
    "mlp": mlp,
    "gan": gan,
    "averages": averages,
    "decoding": decoding,
    "environments": environments,
}

Form = Callable[[Case], tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]]
"""A step in one form: the function, its positional and its keyword arguments."""


def _separate(case: Case, give_back: Callable[[Parts, Any], Any]) -> Any:
    """Every part is an argument, the batch the last one."""
    names = list(case.parts)

    def step(*args: Any) -> Any:
        return give_back(*case.update(dict(zip(names, args[:-1], strict=True)), args[-1]))

    return step, (*case.parts.values(), case.batch), {}


def _together(
    case: Case, wrap: Callable[[Parts], Any], unwrap: Callable[[Any], Parts], back: Any = None
) -> Any:
    """The state is one argument, and returned as ``back`` makes it; by default as it was passed."""
    back = wrap if back is None else back

    def step(state: Any, batch: Any) -> Any:
        parts, loss = case.update(unwrap(state), batch)
        return back(parts), loss

    return step, (wrap(case.parts), case.batch), {}


def flat(case: Case) -> Any:
    """``(params, opt, batch) -> params, opt, loss``."""
    return _separate(case, lambda parts, loss: (*parts.values(), loss))


def nested(case: Case) -> Any:
    """``-> (params, opt), loss``."""
    return _separate(case, lambda parts, loss: (tuple(parts.values()), loss))


def loss_first(case: Case) -> Any:
    """``-> loss, params, opt``."""
    return _separate(case, lambda parts, loss: (loss, *parts.values()))


def backwards(case: Case) -> Any:
    """``-> opt, params, loss``."""
    return _separate(case, lambda parts, loss: (*reversed(parts.values()), loss))


def in_dictionary(case: Case) -> Any:
    """``-> {"new_params": params, "new_opt": opt, "loss": loss}``: keys that are not the arguments' names."""
    return _separate(
        case, lambda parts, loss: {**{f"new_{name}": part for name, part in parts.items()}, "loss": loss}
    )


def one_tuple(case: Case) -> Any:
    """``(state, batch) -> state, loss`` with a tuple."""
    return _together(
        case, lambda parts: tuple(parts.values()), lambda state: dict(zip(case.parts, state, strict=True))
    )


def one_dictionary(case: Case) -> Any:
    """The same with a dictionary."""
    return _together(case, dict, dict)


def one_named_tuple(case: Case) -> Any:
    """The same with a named tuple."""
    cls = namedtuple("State", list(case.parts))
    return _together(case, lambda parts: cls(**parts), lambda state: state._asdict())


def one_dataclass(case: Case) -> Any:
    """The same with a registered dataclass, as `flax.training.train_state.TrainState` is one."""
    names = list(case.parts)
    cls = dataclass(type("TrainState", (), {"__annotations__": dict.fromkeys(names, Any)}))
    jax.tree_util.register_dataclass(cls, data_fields=names, meta_fields=[])
    return _together(
        case, lambda parts: cls(**parts), lambda state: {name: getattr(state, name) for name in names}
    )


def renamed(case: Case) -> Any:
    """Passed as a dictionary, returned under other keys."""
    return _together(
        case, dict, dict, lambda parts: {f"{name}_of_next_step": part for name, part in parts.items()}
    )


def leaves(case: Case) -> Any:
    """Passed and returned as a list of leaves."""
    tree = jax.tree.structure(case.parts)
    return _together(case, jax.tree.leaves, lambda state: jax.tree.unflatten(tree, state))


def keywords(case: Case) -> Any:
    """``(batch, *, params, opt) -> loss, {"params": params, "opt": opt}``."""

    def step(batch: Any, **parts: Any) -> Any:
        new, loss = case.update(parts, batch)
        return loss, new

    return step, (case.batch,), dict(case.parts)


FORMS: dict[str, Form] = {
    form.__name__: form
    for form in (
        *(flat, nested, loss_first, backwards, in_dictionary),
        *(one_tuple, one_dictionary, one_named_tuple, one_dataclass, renamed, leaves, keywords),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The findings of planning one form.

    Attributes:
      points: (seconds, bytes per device) of the frontier.
      references: the same by name of the strategy.
      donated: shape and dtype of every donated leaf, sorted.
      num_inputs: leaves of all arguments.
    """

    points: tuple[tuple[float, int], ...]
    references: tuple[tuple[str, float, int], ...]
    donated: tuple[str, ...]
    num_inputs: int

    def differs(self, other: Found) -> list[str]:
        """Names of fields that are not equal; times may differ by the rounding of sums in another order."""
        found = [] if self.donated == other.donated else ["donated"]
        if not _are_close(self.points, other.points):
            found.append("frontier")
        names = [name for name, *_ in self.references], [name for name, *_ in other.references]
        numbers = (
            [tuple(rest) for _, *rest in self.references],
            [tuple(rest) for _, *rest in other.references],
        )
        if names[0] != names[1] or not _are_close(*numbers):
            found.append("references")
        return found


def _are_close(a: Sequence[tuple[float, int]], b: Sequence[tuple[float, int]]) -> bool:
    return len(a) == len(b) and all(
        math.isclose(x[0], y[0], rel_tol=1e-9) and x[1] == y[1] for x, y in zip(a, b, strict=True)
    )


def find(step: str, form: str, topology: str = "h100:8") -> Found:
    """Plan one step in one form."""
    function, args, kwargs = FORMS[form](STEPS[step]())
    frontier = jaxplan.plan(function, *args, **kwargs, topology=topology, progress=False)
    program = frontier.fastest().require_program().program
    donated = (aval for aval, is_donated in zip(program.in_avals, program.donated, strict=True) if is_donated)
    return Found(
        points=tuple((plan.time_seconds, plan.memory_bytes) for plan in frontier),
        references=tuple(
            (name, plan.time_seconds, plan.memory_bytes) for name, plan in frontier.references.items()
        ),
        donated=tuple(sorted(donated)),
        num_inputs=len(program.inputs),
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--step", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--form", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--topology", default="h100:8")
    options = parser.parse_args(argv)
    differing = total = 0
    print(f"{'step':<14} {'form':<16} {'points':>6} {'fastest':>11} {'leanest':>11} {'donated':>8}  differs")
    for step in options.step:
        expected = find(step, "flat", options.topology)
        for form in options.form:
            found = expected if form == "flat" else find(step, form, options.topology)
            differs = found.differs(expected)
            total, differing = total + 1, differing + bool(differs)
            seconds, size = min(found.points)[0], min(memory for _, memory in found.points)
            print(
                f"{step:<14} {form:<16} {len(found.points):>6} {seconds * 1e3:>8.3f} ms {size / 2**20:>7.1f} MiB "
                f"{len(found.donated):>4}/{found.num_inputs:<3}  {', '.join(differs) or '-'}",
                flush=True,
            )
    print(f"{total} forms, {differing} whose frontier, references or donation differ from the flat form's")
    return 1 if differing else 0


if __name__ == "__main__":
    raise SystemExit(main())
