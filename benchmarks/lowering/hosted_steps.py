"""Random training steps with arrays in the memory of the host: results of the plans beside one device.

    python -m benchmarks.hosted_steps                       # 20 steps
    python -m benchmarks.hosted_steps --seed 300 --steps 50

A step draws layers (plain, under `jax.checkpoint`, with a cast, a normalised or twice used kernel, a branch), loops
over layers and over time, an embedding, a head that may be tied to it, frozen parameters, an optimizer, and gradients
that it adds up itself. Plans are looked for with `offload=True`, for some steps with blocks recomputed or in two
micro-batches too, on 8 virtual CPU devices; the leanest two with parameters on the host and two with state alone run,
the backends in turn. Exit status 1 where a result differs or a plan does not run; refused steps are printed with the
reason.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tests.compiler_flags import devices, quick_compiler

WIDTH, BATCH, WORDS = 16, 24, 32
TOLERANCE = 2e-5
"""Of the largest value of an array; steps are in float64, casts in float32."""
OPTIMIZERS: dict[str, Callable[[], optax.GradientTransformation]] = {
    "sgd": lambda: optax.sgd(0.1),
    "momentum": lambda: optax.sgd(0.1, momentum=0.9),
    "adam": lambda: optax.adam(1e-2, eps=1e-2),
    "adamw": lambda: optax.adamw(1e-2, eps=1e-2),
    "clipped": lambda: optax.chain(optax.clip_by_global_norm(0.5), optax.adam(1e-2, eps=1e-2)),
    "adafactor": lambda: optax.adafactor(1e-2),
    "muon": lambda: optax.partition(
        {"matrix": optax.contrib.muon(1e-2), "other": optax.lion(1e-3)},
        lambda params: jax.tree.map(lambda p: "matrix" if p.ndim == 2 else "other", params),
    ),
    "every-other": lambda: optax.MultiSteps(optax.adam(1e-2, eps=1e-2), 2).gradient_transformation(),
}
Layer = Callable[[Any, jax.Array], jax.Array]


def perceptron(x: jax.Array, w: Any) -> jax.Array:
    return x + jnp.tanh(x @ w["up"]) @ w["down"]


def _normalised(x: jax.Array, w: Any) -> jax.Array:
    up = w["up"] / jnp.sqrt((w["up"] ** 2).sum(0, keepdims=True) + 1e-3)
    return perceptron(x, {**w, "up": up})


def _cast(x: jax.Array, w: Any) -> jax.Array:
    low = jax.tree.map(lambda a: a.astype(jnp.float32), (x, w))
    return perceptron(*low).astype(x.dtype)


def _branch(x: jax.Array, w: Any) -> jax.Array:
    return jax.lax.cond(x.sum() > 0, perceptron, lambda x, w: x + jnp.sin(x @ w["up"]) @ w["down"], x, w)


def _scanned(x: jax.Array, w: Any, body: Layer = perceptron, **options: Any) -> jax.Array:
    return jax.lax.scan(lambda x, w: (body(x, w), None), x, w, **options)[0]


LAYERS: dict[str, Callable[[jax.Array, Any], jax.Array]] = {
    "plain": perceptron,
    "normalised": _normalised,
    "cast": _cast,
    "branch": _branch,
    "checkpointed": jax.checkpoint(perceptron),
    "twice": lambda x, w: perceptron(perceptron(x, w), w),
    "time": lambda x, w: jax.lax.scan(lambda h, _: (perceptron(h, w) + x, None), x, None, length=3)[0],
}
LOOPS: dict[str, Callable[[jax.Array, Any], jax.Array]] = {
    "stack": _scanned,
    "reversed stack": lambda x, w: _scanned(x, w, reverse=True),
    "checkpointed stack": lambda x, w: _scanned(x, w, jax.checkpoint(perceptron)),
    "stack cast before": lambda x, w: _scanned(x, jax.tree.map(lambda a: a.astype(jnp.float32).astype(a.dtype), w)),
    "stack by index": lambda x, w: jax.lax.fori_loop(
        0, len(w["up"]), lambda i, x: perceptron(x, jax.tree.map(lambda a: a[i], w)), x
    ),
    "nested stack": lambda x, w: _scanned(
        x, w, lambda x, w: jax.lax.scan(lambda x, _: (perceptron(x, w), None), x, None, length=2)[0]
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Subject:
    """A step, its arguments (parameters, optimizer state, frozen parameters, inputs, labels), options of its plans."""

    name: str
    step: Callable[..., Any]
    args: tuple[Any, ...]
    options: dict[str, Any]


def subject_of(seed: int) -> Subject:
    """The step of a seed."""
    rng = np.random.default_rng(seed)
    kinds = [str(rng.choice([*LAYERS, *LOOPS])) for _ in range(int(rng.integers(1, 5)))]
    has_words, has_head, adds_up = (bool(rng.random() < share) for share in (0.4, 0.6, 0.15))
    is_tied = has_words and not has_head
    params = dict(_parameters(rng, kinds, has_words=has_words, has_head=has_head))
    frozen = [name for name in params if rng.random() < 0.15][: len(params) - 1]
    optimizer = str(rng.choice([*OPTIMIZERS]))
    options = {"remat": True} if rng.random() < 0.3 else {}
    options |= {"microbatches": 2} if rng.random() < 0.3 and not adds_up and "branch" not in kinds else {}

    def loss(params: Any, x: jax.Array, labels: jax.Array) -> jax.Array:
        h = params["words"][x] if has_words else x
        for i, kind in enumerate(kinds):
            h = {**LAYERS, **LOOPS}[kind](h, params[f"layer {i}"])
        if not (has_head or is_tied):
            return jnp.mean(h**2)
        logits = h @ (params["words"].T if is_tied else params["head"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    def step(trained: Any, state: Any, frozen: Any, x: jax.Array, labels: jax.Array) -> Any:
        graded = jax.value_and_grad(lambda trained, x, labels: loss({**trained, **frozen}, x, labels))
        value, gradients = (_added_up(graded) if adds_up else graded)(trained, x, labels)
        updates, state = OPTIMIZERS[optimizer]().update(gradients, state, trained)
        return optax.apply_updates(trained, updates), state, value

    trained = {name: of for name, of in params.items() if name not in frozen}
    x = rng.integers(0, WORDS, BATCH) if has_words else rng.normal(size=(BATCH, WIDTH))
    batch = jnp.asarray(x), jnp.asarray(rng.integers(0, WORDS, BATCH))
    args = trained, OPTIMIZERS[optimizer]().init(trained), {name: params[name] for name in frozen}, *batch
    name = f"seed {seed}: {', '.join(kinds)}; {optimizer}; frozen {frozen}; {options}"
    return Subject(name=name, step=step, args=args, options=options)


def _parameters(
    rng: np.random.Generator, kinds: Sequence[str], *, has_words: bool, has_head: bool
) -> Iterator[tuple[str, Any]]:
    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(rng.normal(size=shape) / np.sqrt(shape[-2]))

    if has_words:
        yield "words", normal(WORDS, WIDTH)
    for i, kind in enumerate(kinds):
        layers = (int(rng.integers(2, 4)),) if kind in LOOPS else ()
        yield f"layer {i}", {"up": normal(*layers, WIDTH, 2 * WIDTH), "down": normal(*layers, 2 * WIDTH, WIDTH)}
    if has_head:
        yield "head", normal(WIDTH, WORDS)


def _added_up(graded: Callable[..., Any]) -> Callable[..., Any]:
    """The mean of the value and the gradients of both halves of the batch, added up in a loop."""

    def of_halves(trained: Any, *batch: jax.Array) -> Any:
        halves = jax.tree.map(lambda a: a.reshape(2, len(a) // 2, *a.shape[1:]), batch)
        zeros = jax.tree.map(jnp.zeros_like, jax.eval_shape(lambda: graded(trained, *[half[0] for half in halves])))
        total, _ = jax.lax.scan(
            lambda total, half: (jax.tree.map(jnp.add, total, graded(trained, *half)), None), zeros, halves
        )
        return jax.tree.map(lambda a: a / 2, total)

    return of_halves


def check(seed: int) -> tuple[int, int, list[str]]:
    """Runs of plans, those with parameters on the host, and a line for each that differs, fails or is refused."""
    import jaxplan

    subject = subject_of(seed)
    expected = jax.tree.leaves(jax.jit(subject.step)(*subject.args))
    try:
        frontier = jaxplan.plan(
            subject.step, *subject.args, topology="cpu:8", offload=True, progress=False, **subject.options
        )
    except jaxplan.JaxplanError as error:
        return 0, 0, [f"refused {subject.name}: {str(error).partition(chr(10))[0]}"]
    hosted = [plan for plan in frontier.points if plan.offload]
    parts = [[plan for plan in hosted if bool(plan.offload.parameters) is has][:2] for has in (True, False)]
    lines = []
    for plan, backend in zip(itertools.chain(*parts), itertools.cycle(("jit", "shard_map")), strict=False):
        try:
            found = jax.tree.leaves(plan.jit(backend=backend)(*jax.tree.map(jnp.copy, subject.args)))
            wrong = [i for i, (a, b) in enumerate(zip(found, expected, strict=True)) if not _equal(a, b)]
        except Exception as error:  # a plan that does not run is a finding like any other
            wrong = [f"{type(error).__name__}: {str(error)[:200]}"]
        lines += [f"BAD {subject.name}: {plan.summary}, {backend}: {wrong}"] if wrong else []
    return len(parts[0]) + len(parts[1]), len(parts[0]), lines


def _equal(a: Any, b: Any) -> bool:
    a, b = np.asarray(a), np.asarray(b)
    return bool(np.allclose(a, b, rtol=0, atol=TOLERANCE * float(np.abs(b).max(initial=0.0)) + 1e-9))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the findings and the counts; 1 if a result differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of the first step; the others follow")
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args(arguments)
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = " ".join([devices(), *quick_compiler()])
    jax.config.update("jax_enable_x64", True)
    runs = with_parameters = bad = 0
    for seed in range(options.seed, options.seed + options.steps):
        number, of_parameters, lines = check(seed)
        runs, with_parameters = runs + number, with_parameters + of_parameters
        bad += sum(line.startswith("BAD") for line in lines)
        for line in lines:
            print(line, flush=True)
        if seed % 10 == 9:
            jax.clear_caches()
    plans = f"{runs} runs of plans with arrays on the host, {with_parameters} of them with parameters there"
    print(f"{options.steps} steps, {plans}: {bad} differ")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
