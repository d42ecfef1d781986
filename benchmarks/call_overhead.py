"""Host time of a planned step's call beside `jax.jit` with the same shardings: ``python -m benchmarks.call_overhead``.

A step that updates small, placed leaves is called in a loop that passes on its results, on 8 virtual CPU devices.
`time.thread_time` of the calling thread counts: flattening, checks and dispatch, not the work of the devices. The three
forms take turns, in a new order each time: a slow moment of the machine is in the median of all or of none, and so are
the caches as another form's program leaves them.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import jaxplan

LEAVES = (8, 122, 300)
WIDTH = 64


def step(state: list[jax.Array], batch: jax.Array) -> tuple[list[jax.Array], jax.Array]:
    """Move each leaf towards the batch's mean."""
    mean = batch.mean(axis=0)
    return [leaf - 0.1 * (leaf - mean[:, None]) for leaf in state], mean.sum()


def callers(num_leaves: int) -> dict[str, tuple[Callable[..., Any], Any, jax.Array]]:
    """Per form: the function, its placed state and its placed batch; all in the layouts of one plan."""
    state = [jnp.full((WIDTH, WIDTH), float(i)) for i in range(num_leaves - 1)]
    batch = jnp.ones((WIDTH, WIDTH))
    auto = jaxplan.auto(step, choose="leanest", memory="1GiB")
    auto(*jax.tree.map(jnp.copy, (state, batch)))
    plan = auto.plan
    planned = plan.jit()
    mesh = plan.mesh()
    plain = jax.jit(
        step, in_shardings=plan.in_shardings(mesh), out_shardings=plan.out_shardings(mesh), donate_argnums=0
    )
    forms = {"jax.jit": plain, "plan.jit()": planned, "@auto": auto}
    return {
        name: (function, *jax.block_until_ready(planned.shard(*jax.tree.map(jnp.copy, (state, batch)))))
        for name, function in forms.items()
    }


def measure(num_leaves: int, num_calls: int) -> dict[str, float]:
    """Median microseconds of thread time of one call, per form."""
    forms, seconds = callers(num_leaves), {}
    order = random.Random(0)
    for round_ in range(num_calls + 3):
        for name in order.sample(list(forms), len(forms)):
            function, state, batch = forms[name]
            started = time.thread_time()
            state, result = function(state, batch)
            elapsed = time.thread_time() - started
            jax.block_until_ready((state, result))
            forms[name] = (function, state, batch)
            if round_ >= 3:  # the first calls compile
                seconds.setdefault(name, []).append(elapsed)
    return {name: statistics.median(found) * 1e6 for name, found in seconds.items()}


def main() -> None:
    """Print a row for each number of leaves: microseconds of `jax.jit`, and of the planned forms with their ratio."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.call_overhead", description=__doc__)
    parser.add_argument("--leaves", type=int, nargs="*", default=LEAVES, help="numbers of placed leaves")
    parser.add_argument("--calls", type=int, default=200, help="calls of each form")
    parser.add_argument("--json", help="also write the figures to this file")
    options = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", 8)
    found = {num: measure(num, options.calls) for num in options.leaves}
    print(f"{'leaves':>6}  {'jax.jit':>12}  {'plan.jit()':>18}  {'@auto':>18}   (us of thread time, medians)")
    for num, of in found.items():
        base = of["jax.jit"]
        planned = "  ".join(f"{of[name]:9.0f} ({of[name] / base:4.2f}x)" for name in ("plan.jit()", "@auto"))
        print(f"{num:>6}  {base:>12.0f}  {planned}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
