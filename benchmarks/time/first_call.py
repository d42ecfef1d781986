"""The time until a step runs: planning with its trace, and the whole first call, beside the same step under `jax.jit`.

    python -m benchmarks.first_call                                       # planning of every model of the registry
    python -m benchmarks.first_call --model unet dlrm --repeats 3
    python -m benchmarks.first_call --compile --layers 2 --model gpt2-small lstm moe-8x resnet50

Processor seconds without the machine's compiler (``verify=False``), each repeat in a cold process of its own, in which
JAX has lowered one small step before and the modules of the planner are loaded, as those of JAX are; medians.
JAX traces and lowers the step as it is, forgets it, then the step is planned. With ``--compile`` the fastest plan is
replayed, lowered and compiled too, beside `jax.jit` with the batch split over the devices (``data``), both without
their devices; the start of a child process that compiles nothing is taken off both.

Bars: planning with its trace takes at most `MOST` of JAX's trace and lower where these take more than a second, and at
most `MOST_SMALL` seconds more where they take less; the first call takes at most `MOST_CALL` of `jax.jit`'s.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import jax
from jax import export

import jaxplan
from benchmarks.models import MODELS, build
from benchmarks.quality.__main__ import layer_overrides
from benchmarks.quality.baselines import export_baseline
from jaxplan.audit import compile_plan
from jaxplan.audit._aot import compile_exported
from jaxplan.core._progress import Progress
from jaxplan.mesh import Topology

MOST, MOST_SMALL, MOST_CALL = 1.5, 2.0, 1.3
SMALL_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstCall:
    """Processor seconds of one step.

    Attributes:
      trace, lower: of `jax.jit` of the step as it is.
      stages: of planning, by name, its own trace among them.
      total: of planning, the call's own work around the stages included.
      call, jitted: of replay, lower and compile of the fastest plan, and of all that for `data`; None: not compiled.
    """

    trace: float
    lower: float
    stages: Mapping[str, float]
    total: float
    call: float | None = None
    jitted: float | None = None

    @property
    def searched(self) -> float:
        """From ClosedJaxpr to frontier."""
        return self.total - self.stages.get("trace", 0.0)

    @property
    def is_met(self) -> bool:
        jax_seconds = self.trace + self.lower
        met = self.total <= (MOST * jax_seconds if jax_seconds > SMALL_SECONDS else jax_seconds + MOST_SMALL)
        if self.call is None or self.jitted is None:
            return met
        return met and self.total + self.call <= MOST_CALL * self.jitted


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.first_call", description=__doc__.splitlines()[0])
    trained = [name for name, spec in MODELS.items() if spec.updates == "returned"]
    parser.add_argument("--model", nargs="+", choices=trained, default=trained, metavar="NAME", help="default: all")
    parser.add_argument("--topology", default="h100:8")
    parser.add_argument("--memory", default=None, help="limit per device, such as 300GiB; default: the chip's")
    parser.add_argument("--layers", type=int, default=None, help="layers of a stack, or blocks of a stage")
    parser.add_argument("--repeats", type=int, default=1, help="cold processes, of which the median counts")
    parser.add_argument("--compile", action="store_true", help="the whole first call, without its devices")
    options = parser.parse_args(arguments)
    print("| model | trace | lower | search | over both | with trace | over both | stages | first call | jit | over |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    missed = []
    for model in options.model:
        given = (model, options.topology, options.memory, options.layers, options.compile)
        runs = [_in_cold_process(given) for _ in range(options.repeats)]
        found = _median_of(runs)
        print(_row(model, found), flush=True)
        missed += [] if found.is_met else [model]
    print(f"{'MISS ' + ', '.join(missed) if missed else 'ok'}: {len(options.model)} models on {options.topology}")
    return int(bool(missed))


def _in_cold_process(given: tuple[Any, ...]) -> FirstCall:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measure, given)


def measure(model: str, topology: str, memory: str | None, layers: int | None, compiles: bool) -> FirstCall:
    """Measure in this process, which has planned nothing before."""
    jax.config.update("jax_platforms", "cpu")  # nothing runs here, and a plugin without its device complains
    plan = jaxplan.plan  # loads the modules
    overrides = {} if layers is None else layer_overrides(model, layers)[0]
    step, args = build(model, **overrides)
    jax.jit(jax.grad(lambda x: (x @ x).sum())).lower(jax.ShapeDtypeStruct((8, 8), "float32"))
    jax.clear_caches()
    start = time.process_time()
    traced = jax.jit(step).trace(*args)
    traced_at = time.process_time()
    traced.lower()
    lowered_at = time.process_time()
    del traced
    jax.clear_caches()
    stages = Progress(False, clock=time.process_time)
    planning_at = time.process_time()
    with stages:
        frontier = plan(step, *args, topology=topology, memory=memory, progress=stages, verify=False)
    total = time.process_time() - planning_at
    call, jitted = _compiled(step, args, frontier.fastest(), Topology.parse(topology)) if compiles else (None, None)
    return FirstCall(
        trace=traced_at - start,
        lower=lowered_at - traced_at,
        stages=dict(stages.seconds),
        total=total,
        call=call,
        jitted=jitted,
    )


def _compiled(step: Any, args: Any, plan: jaxplan.Plan, topology: Topology) -> tuple[float, float]:
    """Processor seconds of the rest of the first call, and of all of `jax.jit`'s; the start of a process taken off."""

    def nothing() -> None:
        shape = jax.ShapeDtypeStruct((8,), "float32")
        exported = export.export(jax.jit(lambda x: x + 1), platforms=[topology.chip.aot_platform or ""])(shape)
        alone = Topology.parse(f"{topology.chip.name}:1")
        compile_exported(bytes(exported.serialize()), alone, mesh_axes=[("device", 1)])

    def data() -> None:
        serialized, donated = export_baseline(step, args, topology, "data", topology.chip.aot_platform or "")
        compile_exported(serialized, topology, donate_argnums=donated)

    call = _processor_seconds(lambda: compile_plan(plan))
    least = _processor_seconds(nothing)
    jax.clear_caches()
    return call - least, _processor_seconds(data) - least


def _processor_seconds(job: Callable[[], Any]) -> float:
    """Of this process and of its child that compiles."""
    before = time.process_time() + _of_children()
    job()
    return time.process_time() + _of_children() - before


def _of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _median_of(runs: Sequence[FirstCall]) -> FirstCall:
    """Each figure's median."""

    def middle(figure: Callable[[FirstCall], float | None]) -> Any:
        values = [figure(run) for run in runs]
        return None if None in values else median(values)  # pyright: ignore

    stages = {name: middle(lambda run, name=name: run.stages.get(name, 0.0)) for name in runs[0].stages}
    return FirstCall(
        trace=middle(lambda run: run.trace),
        lower=middle(lambda run: run.lower),
        stages=stages,
        total=middle(lambda run: run.total),
        call=middle(lambda run: run.call),
        jitted=middle(lambda run: run.jitted),
    )


def _row(model: str, found: FirstCall) -> str:
    both = found.trace + found.lower
    stages = ", ".join(f"{name} {seconds:.2f}" for name, seconds in found.stages.items())
    cells = [
        model, f"{found.trace:.2f}", f"{found.lower:.2f}", f"{found.searched:.2f}", f"{found.searched / both:.2f}",
        f"{found.total:.2f}", f"{found.total / both:.2f}" + ("" if found.is_met else " MISS"), stages,
    ]  # fmt: skip
    if found.call is not None and found.jitted is not None:
        first = found.total + found.call
        cells += [f"{first:.2f}", f"{found.jitted:.2f}", f"{first / found.jitted:.2f}"]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    raise SystemExit(main())
