"""Every dimension of the space beside one device, alone and together: results of planned tiny models.

    python -m benchmarks.space                                     # six models in float32, steps of SGD
    python -m benchmarks.space gpt-tiny --dtype float64            # AdamW, and to 1e-9
    python -m benchmarks.space gpt-tiny --cells ring+micro stages2

A cell names the parts of its plan: `micro` (four micro-batches), `host` (optimizer state or activations in memory of
the host), `parameters` (there too), `remat` (blocks recomputed), `ring`, `gather` and `heads` (attention in blocks over
a split sequence), `stages2` and `stages4`. The plan is the leanest that has all of it, on 8 virtual CPU devices. A line
for each: the largest difference from one device relative to the largest value of an array. Cells that a step cannot
have are `refused`, with the reason; where no plan of the frontier has all of it, the cell is `absent`. SGD has momentum
where something beside parameters is to live on the host.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from tests.compiler_flags import devices, quick_compiler

MODELS = ("gpt-tiny", "llama-tiny", "vit-tiny", "resnet-tiny", "lstm-tiny", "moe-tiny")
CELLS = (
    "micro",
    "host",
    "remat",
    "ring",
    "gather",
    "heads",
    "stages2",
    "stages4",
    "micro+host",
    "micro+remat",
    "host+remat",
    "micro+host+remat",
    "parameters",
    "micro+parameters",
    "parameters+remat",
    "ring+parameters",
    "ring+micro",
    "ring+host",
    "ring+remat",
    "heads+micro+remat",
    "gather+micro+host+remat",
    "ring+micro+host+remat",
    "stages2+remat",
    "stages2+ring",
)
TOLERANCE = {"float32": 1e-4, "float64": 1e-9}
LEAST = {"float32": 1e-3, "float64": 1e-3}
"""Arrays of smaller values (a bias of keys has a gradient that is zero but for rounding) count as if they held this."""
NUM_MICRO_BATCHES, EXAMPLES, TOPOLOGY = 4, 32, "cpu:8"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each cell; 1 if a result differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--cells", nargs="+", default=CELLS)
    parser.add_argument("--dtype", choices=tuple(TOLERANCE), default="float32")
    options = parser.parse_args(arguments)
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = " ".join([devices(), *quick_compiler()])
    import jax

    jax.config.update("jax_enable_x64", options.dtype == "float64")
    counts: dict[str, int] = {}
    for name in options.models:
        subject = functools.cache(functools.partial(Subject, name, options.dtype))
        for cell in options.cells:
            start = time.process_time()
            found = subject(needs_state="host" in cell.split("+")).check(cell)
            counts[found.verdict] = counts.get(found.verdict, 0) + 1
            print(f"{name:12} {cell:24} {found}  ({time.process_time() - start:.0f} s)", flush=True)
        jax.clear_caches()
    print(f"{options.dtype}: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    return 1 if counts.get("BAD") else 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The outcome of one cell: ``ok``, ``BAD``, ``absent`` or ``refused``, and the words for it."""

    verdict: str
    text: str

    def __str__(self) -> str:
        return f"{self.verdict:7} {self.text}"


class Subject:
    """A tiny model in one dtype, and the results of one device."""

    def __init__(self, name: str, dtype: str, *, needs_state: bool) -> None:
        """``needs_state``: of the optimizer, which SGD has where it has momentum."""
        import jax

        from benchmarks.models import MODELS as REGISTRY

        spec, self.dtype = REGISTRY[name], dtype
        names = {field.name for field in dataclasses.fields(spec.config)}
        sgd = "sgd-momentum" if needs_state else "sgd"
        optimizer = sgd if dtype == "float32" else "adamw"  # Adam follows the rounding of gradients that are zero
        wanted = {"dtype": dtype, "param_dtype": dtype, "optimizer": optimizer, "batch_size": EXAMPLES}
        wanted |= {"remat": False}  # the step's own checkpoints leave nothing to recompute
        wanted |= {"num_layers": 4} if "num_layers" in names and name != "lstm-tiny" else {}
        self.spec = spec.override(**{key: value for key, value in wanted.items() if key in names})
        self.step = self.spec.make_step(self.spec.config)
        self.args = (
            *self.spec.make_state(self.spec.config),
            self.spec.make_batch(self.spec.config, jax.random.key(0)),
        )
        self.expected = jax.jit(self.step)(*self.args)

    def check(self, cell: str) -> Found:
        import jaxplan

        wanted = set(cell.split("+"))
        try:
            plans = self.plans(wanted)
        except (jaxplan.JaxplanError, NotImplementedError) as reason:
            return Found(verdict="refused", text=_first_line(reason))
        having = [plan for plan in plans if all(_has(plan, of) for of in wanted)]
        if not having:
            return Found(verdict="absent", text=f"the leanest is: {plans[0].summary}")
        plan = min(having, key=lambda plan: plan.memory_bytes)
        try:
            error, path = self.error(plan)
        except Exception as reason:  # a plan that does not run is a finding like any other
            return Found(
                verdict="BAD", text=f"{type(reason).__name__}: {_first_line(reason)}; {plan.summary}"
            )
        verdict = "ok" if error <= TOLERANCE[self.dtype] else "BAD"
        return Found(verdict=verdict, text=f"{error:.1e} at {path}; {plan.summary}")

    def plans(self, wanted: set[str]) -> Sequence[Any]:
        """Plans that were searched with all that is wanted, the leanest first."""
        return (
            self._in_stages(wanted) if any(of.startswith("stages") for of in wanted) else self._whole(wanted)
        )

    def _in_stages(self, wanted: set[str]) -> Sequence[Any]:
        import jaxplan
        from jaxplan.ir.attention import FORMS

        num = next(int(of.removeprefix("stages")) for of in wanted if of.startswith("stages"))
        if wanted & set(FORMS):
            return self._in_stages_and_blocks(num, *(wanted & set(FORMS)), remat="remat" in wanted)
        return jaxplan.plan(
            self.step,
            *self.args,
            topology=TOPOLOGY,
            stages=num,
            microbatches=NUM_MICRO_BATCHES,
            remat="remat" in wanted,
            offload="host" in wanted,
            progress=False,
        ).points

    def _in_stages_and_blocks(self, num: int, form: str, *, remat: bool) -> Sequence[Any]:
        """Plans in stages with every attention in blocks over a split sequence, which no option asks for."""
        import jaxplan
        from jaxplan.core._progress import Progress
        from jaxplan.frontend._options import Options
        from jaxplan.ir import analyse, trace
        from jaxplan.ir.attention import attention_graph
        from jaxplan.mesh import parse_topology
        from jaxplan.search._planner import plan_graph
        from jaxplan.search.stages import StagePricer, StageSearch

        alone = {"offload": False, "microbatches": False, "stages": False}
        options = Options(topology=TOPOLOGY, memory="60GiB", remat=remat, **alone)

        def plan(of: Any, part: Any) -> Any:
            fused = attention_graph(of, form)
            pins = None if fused is of else {"sequence": jaxplan.Split(2)}
            chosen = dataclasses.replace(options, topology=part, pins=pins).on(part)
            with Progress(False) as report:
                return plan_graph(fused, topology=part, options=chosen, report=report, name="step")

        graph = analyse(trace(self.step, self.args, donate_argnums=self.spec.donate_argnums))
        search = StageSearch(graph, parse_topology(TOPOLOGY), StagePricer(plan), NUM_MICRO_BATCHES, None)
        return search.plans(num)

    def _whole(self, wanted: set[str]) -> Sequence[Any]:
        import jaxplan
        from jaxplan.core._progress import Progress
        from jaxplan.frontend._options import Options
        from jaxplan.ir import analyse, trace
        from jaxplan.ir.attention import FORMS, attention_graph
        from jaxplan.mesh import parse_topology
        from jaxplan.search._microbatches import in_microbatches
        from jaxplan.search._planner import plan_graph

        graph = analyse(trace(self.step, self.args, donate_argnums=self.spec.donate_argnums))
        if "micro" in wanted:
            graph = in_microbatches(graph, NUM_MICRO_BATCHES)
        pins = None
        for form in wanted & set(FORMS):
            fused = attention_graph(graph, form)
            if fused is graph:
                raise jaxplan.UnsupportedError("the step has no attention that is found")
            graph, pins = fused, {"sequence": jaxplan.Split(2)}
        options = Options(
            topology=TOPOLOGY,
            memory="60GiB",
            remat="remat" in wanted,
            offload=not wanted.isdisjoint({"host", "parameters"}),
            microbatches=False,
            stages=False,
            pins=pins,
        )
        topology = parse_topology(TOPOLOGY)
        plans: list[Any] = []
        for of, chosen in self._programs(graph, options):
            with Progress(False) as report:
                found = plan_graph(
                    of, topology=topology, options=chosen.on(topology), report=report, name="step"
                )
            plans += [*found.points, *found.references.values()]
            if "remat" not in wanted or any(plan.remat for plan in plans):
                break
        return plans

    def _programs(self, graph: Any, options: Any) -> Iterator[tuple[Any, Any]]:
        """The step; and with every block recomputed, where that saves too little for a frontier to have it."""
        from jaxplan.ir import Remat, recomputable_blocks, rematerialise

        yield graph, options
        blocks = recomputable_blocks(graph)
        if blocks:
            remat = Remat(num_all=len(blocks), of=len(blocks))
            yield rematerialise(graph, remat, blocks).graph, dataclasses.replace(options, remat=False)

    def error(self, plan: Any) -> tuple[float, str]:
        """The largest relative difference of a result from one device, and its path."""
        import jax
        import jax.numpy as jnp

        found = plan.jit()(*jax.tree.map(jnp.copy, self.args))
        pairs = zip(
            jax.tree_util.tree_leaves_with_path(self.expected),
            jax.tree.leaves(jax.device_get(found)),
            strict=True,
        )
        least = LEAST[self.dtype]
        return max((_difference(a, b, least), jax.tree_util.keystr(path)) for (path, a), b in pairs)


def _has(plan: Any, dimension: str) -> bool:
    if dimension == "micro":
        return plan.microbatches is not None
    if dimension == "host":
        return bool(plan.offload and (plan.offload.state or plan.offload.regions))
    if dimension == "parameters":
        return bool(plan.offload and plan.offload.parameters)
    if dimension == "remat":
        return any(stage.plan.remat for stage in plan.stages) if plan.stages else bool(plan.remat)
    if dimension.startswith("stages"):
        return len(plan.stages) == int(dimension.removeprefix("stages"))
    of = [stage.plan.sequences for stage in plan.stages] if plan.stages else [plan.sequences]
    return any(found and found.form == dimension and _parts(found) > 1 for found in of)


def _parts(sequences: Any) -> int:
    return sequences.exchanged if sequences.form == "heads" else sequences.parts


def _difference(expected: Any, found: Any, least: float) -> float:
    import numpy as np

    a, b = np.asarray(expected, np.float64), np.asarray(found, np.float64)
    largest = np.abs(a).max(initial=0.0)
    apart = float(np.abs(a - b).max(initial=0.0))
    return apart / max(largest, least) if np.isfinite(apart) else float("inf")


def _first_line(reason: Exception) -> str:
    return str(reason).partition("\n")[0][:160]


if __name__ == "__main__":
    sys.exit(main())
