"""Whether the reference strategies are the same of one model however it is written.

    python -m benchmarks.references
    python -m benchmarks.references --topology a100:8 --only recurrent

First table: a model in its plain form and in others (time before the batch, features before it, under `jax.vmap`,
scanned over layers): time and memory of `data`, `zero2` and `fsdp`, and their ratio to the plain form's. Second table:
gradients added up over K micro-batches, cut in several ways, `data` beside K plain steps of a K-th of the batch with
one sum of the gradients, and its memory beside that of one such step, a copy of the gradients, and what of the batch
that step does not hold. Two nested loops copy the outer's part of the batch once more, as compiled programs do: their
lines are over. References are drawn by name, nothing is searched. Exit status 1 where a ratio is over 5 %.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from jaxplan import Plan
from jaxplan.cost import ModelBuilder, tiny_groups
from jaxplan.ir import ordered
from jaxplan.mesh import Topology
from jaxplan.search._make_plan import make_plan
from jaxplan.search._traced import analyse_step
from jaxplan.simulate import predictor_of
from jaxplan.strategies import apply_strategies, reference_solution

MOST = 0.05
NAMES = ("data", "zero2", "fsdp")
MIB = 2**20
Case = tuple[Callable[..., Any], tuple[Any, ...]]


def draw(case: Case, topology: str, names: Sequence[str] = NAMES) -> dict[str, Plan]:
    """Plans of reference strategies, from a model that has no other configurations."""
    step, args = case
    graph = analyse_step(step, args, {}, donate_argnums=None, static_argnums=())
    machine, tiny = Topology.parse(topology), tiny_groups(graph)
    strategy_plans = {
        name: plan for name, plan in apply_strategies(graph, machine).plans.items() if name in names
    }
    configurations = []
    for v, space in enumerate(graph.spaces):
        whole = ((),) * len(space.classes)
        wanted = set() if v in tiny else {strategy_plan.configurations[v] for strategy_plan in strategy_plans.values()}
        configurations.append(ordered({whole, *wanted}))
    model = ModelBuilder(graph, machine).build(tuple(configurations))
    predictor = predictor_of(model)
    return {
        name: make_plan(predictor, *reference_solution(model, strategy_plan), name=name)
        for name, strategy_plan in strategy_plans.items()
    }


def floats(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def momentum(loss: Callable[..., jax.Array]) -> Callable[..., Any]:
    """A step of gradient descent with momentum."""

    def step(params: Any, slots: Any, *data: Any) -> Any:
        slots = jax.tree.map(lambda m, g: 0.9 * m + g, slots, jax.grad(loss)(params, *data))
        return jax.tree.map(lambda p, m: p - 0.1 * m, params, slots), slots

    return step


def _convolutional(numbers: str) -> Callable[..., jax.Array]:
    def conv(x: jax.Array, kernel: jax.Array) -> jax.Array:
        dims = (numbers, "HWIO", numbers)
        return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=dims)

    return lambda p, x: jnp.mean(conv(jax.nn.relu(conv(x, p["a"])), p["b"]) ** 2)


def _rolled(p: Any, x: jax.Array) -> jax.Array:
    """A recurrent network over time-major tokens."""

    def cell(h: jax.Array, now: jax.Array) -> tuple[jax.Array, jax.Array]:
        h = jnp.tanh(now @ p["w"] + h @ p["u"])
        return h, h

    return jnp.mean(jax.lax.scan(cell, jnp.zeros(x.shape[1:]), x)[1] ** 2)


def _attention(order: str) -> Callable[..., jax.Array]:
    """One attention layer; ``order`` is that of batch and tokens."""
    keys = order.replace("t", "s")

    def loss(p: Any, x: jax.Array) -> jax.Array:
        q, k, v = (jnp.einsum(f"{order}d,dhk->{order}hk", x, p[name]) for name in "qkv")
        weights = jax.nn.softmax(jnp.einsum(f"{order}hk,{keys}hk->bhts", q, k))
        mixed = jnp.einsum(f"bhts,{keys}hk->{order}hk", weights, v)
        return jnp.mean(jnp.einsum(f"{order}hk,hkd->{order}d", mixed, p["o"]) ** 2)

    return loss


def _layer(w: Any, x: jax.Array) -> jax.Array:
    return x + jax.nn.relu(x @ w["up"]) @ w["down"]


def _unrolled(remat: bool) -> Callable[..., jax.Array]:
    def loss(layers: Any, x: jax.Array) -> jax.Array:
        for w in layers:
            x = (jax.checkpoint(_layer) if remat else _layer)(w, x)
        return jnp.mean(x**2)

    return loss


def _scanned(remat: bool) -> Callable[..., jax.Array]:
    layer = jax.checkpoint(_layer) if remat else _layer
    return lambda layers, x: jnp.mean(jax.lax.scan(lambda h, w: (layer(w, h), None), x, layers)[0] ** 2)


def _stacked(layers: int, width: int, tokens: int, remat: bool) -> Iterator[tuple[str, Case]]:
    one = {"up": floats(width, 4 * width), "down": floats(4 * width, width)}
    stack = {name: floats(layers, *leaf.shape) for name, leaf in one.items()}
    x = floats(tokens, width)
    yield "unrolled", (momentum(_unrolled(remat)), ([one] * layers, [one] * layers, x))
    yield "scanned", (momentum(_scanned(remat)), (stack, stack, x))


def _mlp(p: Any, x: jax.Array) -> jax.Array:
    return jnp.mean((jax.nn.relu(x @ p["up"]) @ p["down"]) ** 2)


def variants() -> dict[str, dict[str, Case]]:
    """Model -> its forms, the plain one first."""
    kernels = {"a": floats(3, 3, 64, 64), "b": floats(3, 3, 64, 64)}
    cell = {"w": floats(1024, 1024), "u": floats(1024, 1024)}
    heads = {**{name: floats(1024, 16, 64) for name in "qkv"}, "o": floats(16, 64, 1024)}
    dense = {"up": floats(1024, 4096), "down": floats(4096, 1024)}

    def case(loss: Callable[..., jax.Array], params: Any, *data: Any) -> Case:
        return momentum(loss), (params, params, *data)

    def features_first(p: Any, x: jax.Array) -> jax.Array:
        return jnp.mean((p["down"].T @ jax.nn.relu(p["up"].T @ x)) ** 2)

    def mapped(p: Any, x: jax.Array) -> jax.Array:
        return jnp.mean(jax.vmap(_rolled, (None, 0))(p, x))

    return {
        "convolutions": {
            "NHWC": case(_convolutional("NHWC"), kernels, floats(256, 112, 112, 64)),
            "CHWN": case(_convolutional("CHWN"), kernels, floats(64, 112, 112, 256)),
        },
        "recurrent": {
            "batch first": case(lambda p, x: _rolled(p, x.swapaxes(0, 1)), cell, floats(4096, 64, 1024)),
            "time first": case(_rolled, cell, floats(64, 4096, 1024)),
            "vmap": case(mapped, cell, floats(4096, 64, 1024)),
        },
        "attention": {
            "batch first": case(_attention("bt"), heads, floats(64, 512, 1024)),
            "time first": case(_attention("tb"), heads, floats(512, 64, 1024)),
        },
        "perceptron": {
            "batch first": case(_mlp, dense, floats(8192, 1024)),
            "features first": case(features_first, dense, floats(1024, 8192)),
        },
        "8 layers": dict(_stacked(8, 2048, 8192, remat=False)),
        "8 layers, remat": dict(_stacked(8, 2048, 8192, remat=True)),
        "13B": dict(_stacked(40, 5120, 65536, remat=True)),
    }


def _descent(gradients: Callable[..., Any]) -> Callable[..., Any]:
    return lambda p, *data: jax.tree.map(lambda p, g: p - 0.1 * g, p, gradients(p, *data))


def _added(p: Any, loss: Callable[..., jax.Array], batches: jax.Array) -> Any:
    def add(g: Any, x: jax.Array) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, g, jax.grad(loss)(p, x)), None

    return jax.lax.scan(add, jax.tree.map(jnp.zeros_like, p), batches)[0]


def accumulations(
    loss: Callable[..., jax.Array], params: Any, k: int, batch: Sequence[int]
) -> dict[str, Case]:
    """The step over ``k`` micro-batches, cut in several ways."""
    size, *rest = batch
    part = size // k

    def reshaped(p: Any, x: jax.Array) -> Any:
        return _added(p, loss, x.reshape(k, part, *rest))

    def sliced(p: Any, x: jax.Array) -> Any:
        def add(i: Any, g: Any) -> Any:
            return jax.tree.map(
                jnp.add, g, jax.grad(loss)(p, jax.lax.dynamic_slice_in_dim(x, i * part, part))
            )

        return jax.lax.fori_loop(0, k, add, jax.tree.map(jnp.zeros_like, p))

    def stacked(p: Any, x: jax.Array) -> Any:
        return _added(p, loss, x)

    def in_python(p: Any, x: jax.Array) -> Any:
        parts = [jax.grad(loss)(p, x[i * part : (i + 1) * part]) for i in range(k)]
        return jax.tree.map(lambda *g: sum(g), *parts)

    def nested(p: Any, x: jax.Array) -> Any:
        def add(g: Any, x: jax.Array) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, g, _added(p, loss, x)), None

        zeros = jax.tree.map(jnp.zeros_like, p)
        return jax.lax.scan(add, zeros, x.reshape(2, k // 2, part, *rest))[0]

    whole = floats(*batch)
    forms = {
        "reshape": (_descent(reshaped), (params, whole)),
        "slices": (_descent(sliced), (params, whole)),
        "stacked": (_descent(stacked), (params, floats(k, part, *rest))),
        "Python": (_descent(in_python), (params, whole)),
    }
    return forms | ({"nested": (_descent(nested), (params, whole))} if k > 2 else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a table: what it is, seconds and bytes, and those that it is compared with."""

    what: str
    seconds: float
    num_bytes: int
    wanted_seconds: float
    wanted_bytes: float

    @property
    def ratios(self) -> tuple[float, float]:
        return self.seconds / self.wanted_seconds, self.num_bytes / self.wanted_bytes

    def __str__(self) -> str:
        time, memory = self.ratios
        flag = "" if max(time, memory) <= 1 + MOST else "  <-"
        figures = f"{self.seconds * 1e3:10.3f} ms {self.num_bytes / MIB:9.0f} MiB"
        return f"{self.what:44s} {figures}   time x{time:.3f}  memory x{memory:.3f}{flag}"


def compare_forms(forms: Mapping[str, Case], model: str, topology: str) -> Iterator[Line]:
    """All forms of a model beside the first."""
    plain: dict[str, Plan] = {}
    for form, case in forms.items():
        plans = draw(case, topology)
        plain = plain or plans
        for name, plan in plans.items():
            against = plain[name]
            yield Line(
                what=f"{model}, {form}: {name}",
                seconds=plan.time_seconds,
                num_bytes=plan.memory_bytes,
                wanted_seconds=against.time_seconds,
                wanted_bytes=against.memory_bytes,
            )


def compare_accumulations(topology: str, numbers: Sequence[int] = (1, 2, 4, 8)) -> Iterator[Line]:
    """Accumulating steps beside plain ones of a part of the batch."""
    models = {
        "convolutions": (
            _convolutional("NHWC"),
            {"a": floats(3, 3, 64, 64), "b": floats(3, 3, 64, 64)},
            (256, 112, 112, 64),
        ),
        "perceptron": (_mlp, {"up": floats(1024, 4096), "down": floats(4096, 1024)}, (8192, 1024)),
        "layers": (
            _unrolled(remat=False),
            [{"up": floats(2048, 8192), "down": floats(8192, 2048)}] * 4,
            (8192, 2048),
        ),
    }
    devices = Topology.parse(topology).num_devices
    for model, (loss, params, batch) in models.items():
        gradients = sum(leaf.size * 4 for leaf in jax.tree.leaves(params))
        for k in numbers:
            part = floats(batch[0] // k, *batch[1:])
            once = draw((_descent(jax.grad(loss)), (params, part)), topology, ("data",))["data"]
            seconds = k * (once.time_seconds - once.communication_seconds) + once.communication_seconds
            rest = (k - 1) * part.size * 4 // devices
            for form, case in accumulations(loss, params, k, batch).items():
                plan = draw(case, topology, ("data",))["data"]
                yield Line(
                    what=f"{model}, {form}, K={k}: data",
                    seconds=plan.time_seconds,
                    num_bytes=plan.memory_bytes,
                    wanted_seconds=seconds,
                    wanted_bytes=once.memory_bytes + gradients + rest,
                )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--topology", default="h100:8")
    parser.add_argument("--only", default="", help="models whose name holds this")
    options = parser.parse_args()
    worst = 0.0
    for model, forms in variants().items():
        if options.only in model:
            for line in compare_forms(forms, model, options.topology):
                print(line, flush=True)
                worst = max(worst, *line.ratios)
    if options.only in "accumulation":
        for line in compare_accumulations(options.topology):
            print(line, flush=True)
            worst = max(worst, *line.ratios)
    print(f"worst ratio {worst:.3f}")
    return int(worst > 1 + MOST)


if __name__ == "__main__":
    raise SystemExit(main())
