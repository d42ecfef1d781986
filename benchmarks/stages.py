"""Plans in stages: a large model with and without them, and schedules replayed with measured passes.

    python -m benchmarks.stages                       Llama 3 70B on 64 H100, planned with and without stages
    python -m benchmarks.stages --layers 16 --stages 8 --micro-batches 64
    python -m benchmarks.stages --replay              passes of a small GPT measured on 8 virtual CPU devices

The replay measures each pass of each stage by itself, puts these seconds into the schedules, and compares the order of
the schedules with the predicted one.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from statistics import median
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama3-70b")
    parser.add_argument("--layers", type=int, default=0, help="of the model; 0: all")
    parser.add_argument("--topology", default="h100:8x8")
    parser.add_argument("--stages", type=int, default=8)
    parser.add_argument("--micro-batches", type=int, default=64)
    parser.add_argument("--slices", type=int, default=8, help="micro-batches of the plans without stages")
    parser.add_argument("--replay", action="store_true")
    arguments = parser.parse_args()
    if arguments.replay:
        replay()
    else:
        compare(arguments)


def compare(arguments: argparse.Namespace) -> None:
    """Plan a model with and without stages, and print the gain at each memory."""
    import jaxplan
    from benchmarks.models import MODELS

    spec = MODELS[arguments.model]
    if arguments.layers:
        spec = spec.override(num_layers=arguments.layers)
    started = time.perf_counter()
    traced = jaxplan.trace(spec.make_step(spec.config), *spec.abstract_args())
    print(f"traced in {time.perf_counter() - started:.0f} s", flush=True)
    without = _planned(traced, arguments, stages=False, microbatches=arguments.slices)
    within = _planned(traced, arguments, stages=arguments.stages, microbatches=arguments.micro_batches)
    points = without.points if without is not None else ()
    if within is None:
        return
    merged = jaxplan.Frontier.from_plans([*points, *within.points])
    for plan in merged:
        rivals = [of for of in points if of.memory_bytes <= plan.memory_bytes]
        best = min((of.time_seconds for of in rivals), default=None)
        gain = "the only one" if best is None else f"gain {best / plan.time_seconds:.2f}"
        print(f"{plan.memory_bytes / 2**30:8.2f} GiB {plan.time_seconds:8.3f} s  {gain:14} {plan.summary}")
    if without is None:
        return
    fastest = without.fastest().time_seconds
    print(f"fastest without stages {fastest:.3f} s, with {merged.fastest().time_seconds:.3f} s")
    print(f"leanest without stages {without.leanest().memory_bytes / 2**30:.2f} GiB, with ", end="")
    print(f"{merged.leanest().memory_bytes / 2**30:.2f} GiB")


def _planned(traced: Any, arguments: argparse.Namespace, **options: Any) -> Any:
    import jaxplan

    started = time.perf_counter()
    try:
        found = traced.plan(topology=arguments.topology, progress=False, **options)
    except jaxplan.InfeasibleError as error:
        print(f"{options}: {time.perf_counter() - started:.0f} s, {str(error).splitlines()[2].strip()}", flush=True)
        return None
    print(f"{options}: {time.perf_counter() - started:.0f} s\n{found.table()}", flush=True)
    return found


def replay() -> None:
    """Measure the passes of a small GPT in four stages, and replay schedules with them."""
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax

    import jaxplan
    from benchmarks.models import MODELS
    from jaxplan.plans._stage_data import SCHEDULES
    from jaxplan.simulate import StageCost, run_pipeline

    spec = MODELS["gpt-tiny"].override(
        num_layers=4, width=256, dtype="float32", batch_size=32, sequence_length=128, optimizer="sgd"
    )
    args = (*spec.make_state(spec.config), spec.make_batch(spec.config, jax.random.key(0)))
    predicted, replayed = {}, {}
    for num in (2, 4, 8):
        plan = jaxplan.plan(
            spec.make_step(spec.config), *args, topology="cpu:8", stages=4, microbatches=num, progress=False
        ).fastest()
        costs = [StageCost(forward=f, backward=b) for f, b in measured(plan, args)]
        for name, schedule in SCHEDULES.items():
            order = schedule(4, num)
            predicted[name, num] = run_pipeline(order, 4, [stage.cost for stage in plan.stages]).seconds
            replayed[name, num] = run_pipeline(order, 4, costs).seconds
            times = f"predicted {predicted[name, num] * 1e3:.2f} ms, replayed {replayed[name, num] * 1e3:.2f} ms"
            print(f"{name} {num}: {times}", flush=True)
    pairs = [(a, b) for a, b in itertools.combinations(predicted, 2) if abs(predicted[a] / predicted[b] - 1) > 0.02]
    kept = sum((predicted[a] < predicted[b]) == (replayed[a] < replayed[b]) for a, b in pairs)
    print(f"order kept in {kept} of {len(pairs)} pairs that differ by more than 2 %")


def measured(plan: Any, args: Any) -> list[tuple[float, float]]:
    """Median seconds of the forward and of the backward pass of each stage, each run by itself."""
    import jax

    from jaxplan.partition.stages._pipeline_run import OneStep

    run = plan.jit(donate_argnums=())
    jax.block_until_ready(run(*args))
    seconds: dict[tuple[int, bool], list[float]] = {}

    class Timed(OneStep):
        def _pass(self, s: int, k: int, number: int) -> None:
            jax.block_until_ready([*self.passing[s].get(k, {}).values(), *self.lasting[s].values()])
            started = time.perf_counter()
            super()._pass(s, k, number)
            after = [*self.passing[s].get(k, {}).values(), *self.lasting[s].values()]
            jax.block_until_ready(after)
            seconds.setdefault((s, number == 2), []).append(time.perf_counter() - started)

    leaves = jax.tree.leaves(run.shard(*args))
    for _ in range(5):
        jax.block_until_ready(Timed(run.pipeline, leaves).run())
    return [(median(seconds[s, False]), median(seconds[s, True])) for s in range(len(plan.stages))]


if __name__ == "__main__":
    main()
