"""Baselines to beat: plain `jax.jit` with shardings given at the boundary, compiled for a topology.

    python -m benchmarks.baselines --model gpt2-small --topology h100:8

`data`: parameters and optimizer slots replicated, the batch split over all devices. `fsdp`: the same, with
every parameter and slot split over all devices on its largest dimension that they divide; `fsdp-last` on its
last one; `fsdp-gathered` as `fsdp`, and each parameter constrained to be whole where the step reads it, the
way FSDP works. Nothing here uses the planner; only the compiling child process is shared.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax import export
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from benchmarks.models import MODELS, build
from benchmarks.quality._pricing import price
from jaxplan.audit._aot import CompiledReport, compile_exported
from jaxplan.mesh import Topology

GIB = 2**30
SplitDimension = Callable[[tuple[int, ...], int], int | None]


def _replicate(shape: tuple[int, ...], num_devices: int) -> int | None:
    return None


def _largest(shape: tuple[int, ...], num_devices: int) -> int | None:
    """The largest dimension that `num_devices` divides, the first of equals."""
    divisible = [d for d, size in enumerate(shape) if size and size % num_devices == 0]
    return max(divisible, key=lambda d: (shape[d], -d), default=None)


def _last(shape: tuple[int, ...], num_devices: int) -> int | None:
    divisible = [d for d, size in enumerate(shape) if size and size % num_devices == 0]
    return divisible[-1] if divisible else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """How a baseline shards: `split` picks the dimension of a leaf of the state that all devices split.

    `gather`: constrain the parameters to be whole where the step reads them, so that activations follow the
    batch.
    """

    split: SplitDimension
    gather: bool = False


BASELINES: dict[str, Baseline] = {
    "data": Baseline(split=_replicate),
    "fsdp": Baseline(split=_largest),
    "fsdp-last": Baseline(split=_last),
    "fsdp-gathered": Baseline(split=_largest, gather=True),
}


def export_baseline(
    train_step: Callable[[Any, Any], Any],
    args: tuple[Any, Any],
    topology: Topology,
    baseline: str,
    platform: str = "cuda",
) -> tuple[bytes, tuple[int, ...]]:
    """Serialised `train_step(state, batch)` under a baseline's shardings, and the flat positions to donate.

    The state's outputs are sharded like its inputs; everything else that comes out is replicated.
    """
    names = tuple(axis.name for axis in topology.axes)
    mesh = AbstractMesh(tuple(a.size for a in topology.axes), names, axis_types=(AxisType.Auto,) * len(names))
    chosen = BASELINES[baseline]

    def sharding(leaf: Any, dim: int | None) -> NamedSharding:
        return NamedSharding(mesh, PartitionSpec(*[names if d == dim else None for d in range(leaf.ndim)]))

    state, batch = args
    state_shardings = jax.tree.map(lambda x: sharding(x, chosen.split(x.shape, topology.num_devices)), state)
    batch_shardings = jax.tree.map(lambda x: sharding(x, 0), batch)
    leaves, tree = jax.tree.flatten(args)
    in_shardings = jax.tree.leaves((state_shardings, batch_shardings))
    out_leaves = jax.tree.leaves(jax.eval_shape(train_step, *args))
    new_state = jax.tree.leaves(state_shardings)
    out_shardings = new_state + [NamedSharding(mesh, PartitionSpec())] * (len(out_leaves) - len(new_state))

    def flat_step(*flat: Any) -> list[Any]:
        state, batch = jax.tree.unflatten(tree, flat)
        if chosen.gather:
            whole = NamedSharding(mesh, PartitionSpec())
            state = state.replace(params=jax.lax.with_sharding_constraint(state.params, whole))
        return jax.tree.leaves(train_step(state, batch))

    step = jax.jit(flat_step, in_shardings=tuple(in_shardings), out_shardings=out_shardings)
    return bytes(export.export(step, platforms=[platform])(*leaves).serialize()), tuple(range(len(new_state)))


def compile_baseline(
    model: str,
    topology: Topology,
    baseline: str,
    *,
    platform: str = "cuda",
    cache_dir: str | Path | None = None,
    **overrides: Any,
) -> CompiledReport:
    """Build `model`, shard it as `baseline` says, and compile it for `topology`."""
    train_step, args = build(model, **overrides)
    serialized, donate = export_baseline(train_step, args, topology, baseline, platform)
    return compile_exported(serialized, topology, donate_argnums=donate, cache_dir=cache_dir)


def describe(report: CompiledReport, topology: Topology) -> str:
    """Memory, arithmetic, collectives by kind and group size, and the price, as text."""
    memory = report.memory
    lines = [
        f"  memory {report.memory_bytes / GIB:.2f} GiB (arguments {memory.argument_bytes / GIB:.2f},"
        f" outputs {memory.output_bytes / GIB:.2f}, aliased {memory.alias_bytes / GIB:.2f},"
        f" temporaries {memory.temp_bytes / GIB:.2f})" + (", rematerialised" * report.rematerialised),
        f"  {report.flops / 1e12:.3f} TFLOP per device: "
        + ", ".join(f"{name} {count / 1e12:.3f}" for name, count in report.flops_by_dtype),
    ]
    totals: dict[tuple[str, int], tuple[int, int]] = {}
    for collective in report.collectives:
        key = (collective.kind, collective.group_size)
        count, num_bytes = totals.get(key, (0, 0))
        totals[key] = (count + collective.count, num_bytes + collective.total_bytes)
    for (kind, group_size), (count, num_bytes) in sorted(totals.items()):
        lines.append(f"  {kind} over {group_size}: {count} x, {num_bytes / GIB:.3f} GiB")
    priced = price(report, topology)
    lines.append(
        f"  priced {priced.total_seconds * 1e3:.2f} ms = contractions {priced.contraction_seconds * 1e3:.2f}"
        f" + memory traffic {priced.memory_seconds * 1e3:.2f}"
        f" + communication {priced.communication_seconds * 1e3:.2f};"
        f" compiled in {report.compile_seconds:.1f} s"
    )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Compile and print the baselines that the command line names."""
    parser = argparse.ArgumentParser(prog="benchmarks.baselines", description="Compile and price baselines.")
    trained = [name for name, spec in MODELS.items() if spec.updates == "returned"]
    parser.add_argument("--model", choices=trained, default="gpt2-small")
    parser.add_argument("--topology", default="h100:8")
    parser.add_argument("--baseline", choices=list(BASELINES), action="append")
    parser.add_argument("--platform", choices=["cuda", "tpu", "cpu"], default="cuda")
    parser.add_argument("--cache", type=Path, default=None, help="folder to keep compiled reports in")
    options = parser.parse_args(arguments)
    jax.config.update("jax_platforms", "cpu")  # nothing runs here, and a plugin without its device complains
    topology = Topology.parse(options.topology)
    for baseline in options.baseline or BASELINES:
        report = compile_baseline(
            options.model, topology, baseline, platform=options.platform, cache_dir=options.cache
        )
        print(f"{options.model} on {options.topology}, {baseline}\n{describe(report, topology)}", flush=True)


if __name__ == "__main__":
    main()
