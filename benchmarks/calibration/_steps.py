"""Planned steps that `benchmarks.calibration` runs: how large they are, how they are priced, and what they take."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jaxplan
from benchmarks import accuracy
from benchmarks.accuracy._population import Drawn, draw_step
from benchmarks.calibration import order
from benchmarks.calibration._kernels import write_kernels
from benchmarks.calibration._record import Step
from benchmarks.models import MODELS as REGISTRY
from benchmarks.models import ModelSpec
from jaxplan.audit._hlo import memory_bytes
from jaxplan.mesh import COLLECTIVES, ProfileTable, Topology, collective_seconds
from jaxplan.mesh._profile_check import group_shapes, read_profile
from jaxplan.mesh.profile import Settings
from jaxplan.mesh.profile._programs import group_axes

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "mlp": ("mlp", {}),
    "fused": ("llama2-7b", {"num_layers": 2, "fused": True, "batch_size": 8}),
    "scanned": ("llama2-7b", {"num_layers": 2, "scan": True, "remat": "full", "batch_size": 8}),
    **accuracy.MODELS,
}
DEVICES_OF_SIZES = 8
"""The batches of `benchmarks.accuracy.MODELS` are for so many devices; fewer get their part."""
ON_CPU: dict[str, tuple[str, dict[str, Any]]] = {
    "mlp": ("mlp", order.OVERRIDES["mlp"]),
    "gpt": ("gpt-tiny", order.OVERRIDES["gpt-tiny"]),
    "vit": ("vit-tiny", order.OVERRIDES["vit-tiny"]),
    "resnet50": ("resnet-tiny", {"width": 32, "image_size": 32, "batch_size": 32}),
    "unet": ("unet-tiny", {"width": 32, "image_size": 16, "batch_size": 16}),
    "lstm": ("lstm-tiny", {"width": 256, "batch_size": 64, "sequence_length": 32}),
    "dlrm": ("dlrm-tiny", {"rows": 20_000, "width": 64, "batch_size": 4096}),
}
"""On CPU small ones of the same kinds, tens of milliseconds a step on two cores."""
USED_SHARE = 0.6
"""Of the memory that a plan may fill: the states of the other points that take turns are there beside it."""
POINTS = ("fastest", "leanest", "data", "knee")
_NUM_DRAWN = 1_000_003  # numbers that larger arrays repeat; a prime, so that rows differ
NUM_TRACED = 3
SAMPLE_SECONDS, MOST_STEPS = 0.2, 20
"""A sample lasts so long, about, so that the call from Python is a small part of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """A step at a size at which its plans fit, what makes its flat arguments, and the points that are run, by name."""

    size: str
    make_leaves: Callable[[], list[np.ndarray]]
    points: Mapping[str, jaxplan.Plan]


def topology_of(devices: Sequence[Any], num_devices: int) -> Topology:
    """Of the first devices present; of as many of the first one's kind where one stands for all."""
    if len(devices) >= num_devices and devices[0].platform == "tpu":
        return Topology.detect(devices[:num_devices])
    return Topology.of(Topology.detect(devices[:1]).chip, (num_devices,))


def priced_topology(topology: Topology, profiles: Sequence[Path], *, is_mocked: bool) -> Topology:
    """With the table that was measured on it; where one device stands for all, that of one and data sheets of links.

    Raises:
      ProfileError: none of the tables is of this topology.
    """
    tables = {table.topology: table for table in map(read_profile, profiles)}
    if not tables:
        return topology
    of_one = tables.get(f"{topology.chip.name}:1")
    if topology.name not in tables and is_mocked and of_one is not None:
        return topology.with_profile(with_links_of(topology, of_one))
    return topology.with_profile(tables.get(topology.name) or next(iter(tables.values())))


def with_links_of(topology: Topology, table: ProfileTable) -> ProfileTable:
    """Products and memory as measured on one device, collectives of several as data sheets have them."""
    place = {axis.name: index for index, axis in enumerate(topology.axes)}
    entries = list(table.entries)
    for shape in group_shapes(topology):
        axes = tuple(place[name] for name in group_axes(topology, shape))
        for kind in COLLECTIVES:
            for size in Settings().sizes:
                entries.append(
                    (("collective", kind, shape, size), collective_seconds(topology, kind, size, axes))
                )
    return replace(table, topology=topology.name, entries=tuple(entries))


def sized(model: str, topology: Topology, overrides: Mapping[str, Any], most_points: int) -> Sized:
    """Plan a model, its batch halved until a plan fits.

    Raises:
      InfeasibleError: a batch of one does not fit either.
      ArgumentError: on CPU, a model that has no small one.
    """
    name, fields = (ON_CPU if topology.chip.name == "cpu" else MODELS).get(model, ("", {}))
    if not name:
        raise jaxplan.ArgumentError(
            f"{model!r} has no small variant for CPU; expected one of {', '.join(ON_CPU)}"
        )
    fields = {**fields, **overrides}
    limit = int(USED_SHARE * topology.memory_limit_bytes)
    batch = REGISTRY[name].override(**fields).config.batch_size
    if topology.chip.name != "cpu" and "batch_size" not in overrides:
        batch = max(1, batch * topology.num_devices // DEVICES_OF_SIZES)
    while True:
        spec = REGISTRY[name].override(**{**fields, "batch_size": batch})
        try:
            frontier = jaxplan.plan(
                spec.make_step(spec.config),
                *spec.abstract_args(),
                topology=topology,
                memory=limit,
                progress=False,
            )
        except jaxplan.InfeasibleError:
            if batch == 1:
                raise
            batch //= 2
            continue
        text = ", ".join([name, *(f"{k}={v}" for k, v in {**fields, "batch_size": batch}.items())])
        return Sized(
            size=text, make_leaves=partial(leaves_of_model, spec), points=chosen_points(frontier, most_points)
        )


def drawn(seed: int, topology: Topology, most_points: int) -> Sized:
    """The random step of a seed (`benchmarks.accuracy.population`), planned.

    Raises:
      InfeasibleError: no plan of it fits.
    """
    step = draw_step(seed)
    frontier = jaxplan.plan(
        step.step,
        *step.args,
        topology=topology,
        memory=int(USED_SHARE * topology.memory_limit_bytes),
        progress=False,
    )
    return Sized(
        size=step.name, make_leaves=partial(leaves_of_drawn, step), points=chosen_points(frontier, most_points)
    )


def chosen_points(frontier: jaxplan.Frontier, most: int) -> dict[str, jaxplan.Plan]:
    """The first of `POINTS` that differ."""
    chosen: dict[str, jaxplan.Plan] = {}
    for name in POINTS:
        plan = frontier.references.get(name) if name == "data" else frontier.choose(name)
        costs = [(other.time_seconds, other.memory_bytes) for other in chosen.values()]
        if plan is not None and len(chosen) < most and (plan.time_seconds, plan.memory_bytes) not in costs:
            chosen[name] = plan
    return chosen


def leaves_of_drawn(step: Drawn) -> list[np.ndarray]:
    """Arguments of a random step, flat, in the memory of the host: its state is zero, all else is drawn."""
    draw = np.random.default_rng(step.seed)
    normal = 0.05 * draw.standard_normal(_NUM_DRAWN)  # zeros are multiplied faster than other numbers on GPUs
    numbers = draw.integers(step.num_classes, size=_NUM_DRAWN)

    def value(leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        base = numbers if np.issubdtype(leaf.dtype, np.integer) else normal
        return np.resize(base.astype(leaf.dtype), leaf.shape)

    params, state, batch = step.args
    made = jax.tree.map(value, (params, batch))
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), state)
    return jax.tree.leaves((made[0], zeros, made[1]))


def leaves_of_model(spec: ModelSpec) -> list[np.ndarray]:
    """Arguments of a model of the registry, flat, in the memory of the host."""
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        made = *spec.make_state(spec.config), spec.make_batch(spec.config, jax.random.key(0))
    return [np.asarray(leaf) for leaf in jax.tree.leaves(made)]


class RunningStep:
    """A plan on the devices, with the state that its last step left there.

    Attributes:
      leaves: the arguments of the next step.
      compiled_bytes, device_bytes: as in `Step`.
      steps_per_sample: as many as fill a sample.
    """

    def __init__(self, plan: jaxplan.Plan, leaves: Sequence[np.ndarray], devices: Sequence[Any]) -> None:
        run = plan.jit(devices)
        program = plan.require_program().program
        self._aliases = program.aliases
        args, kwargs = jax.tree.unflatten(program.in_tree, leaves)
        self._compiled = run.lower(*args, **kwargs).compile()
        self.compiled_bytes = memory_bytes(self._compiled.memory_analysis())
        before = _memory(devices[0])
        shardings = jax.tree.leaves(plan.in_shardings(run.mesh))
        self.leaves = [
            # Where one GPU stands for all, it is given its own pieces alone.
            jax.make_array_from_callback(leaf.shape, sharding, lambda index, leaf=leaf: leaf[index])
            for leaf, sharding in zip(leaves, shardings, strict=True)
        ]
        self.steps_per_sample = 1
        first = [self.sample() for _ in range(3)][-1]
        after = _memory(devices[0])
        self.device_bytes = None
        if before and after and after[0] > before[0]:
            self.device_bytes = after[0] - before[1]
        self.steps_per_sample = max(1, min(MOST_STEPS, round(SAMPLE_SECONDS / first)))

    def sample(self) -> float:
        """Seconds of a step."""
        start = time.perf_counter()
        for _ in range(self.steps_per_sample):
            results = self._compiled(*self.leaves)
            for result, argument in self._aliases.items():
                self.leaves[argument] = results[result]
        jax.block_until_ready(results)
        return (time.perf_counter() - start) / self.steps_per_sample

    def write_kernels(self, folder: Path, title: str) -> None:
        """Run once more under the profiler; a file in the folder gets the kernels and the compiled program."""
        self.steps_per_sample = NUM_TRACED
        write_kernels(folder, title, self._compiled.as_text(), NUM_TRACED, self.sample)


def _memory(device: Any) -> tuple[int, int] | None:
    """Peak bytes in use since the process began, and bytes in use; None where the platform does not say."""
    stats = device.memory_stats() or {}
    if "peak_bytes_in_use" not in stats:
        return None
    return stats["peak_bytes_in_use"], stats["bytes_in_use"]


def measure_points(
    model: str,
    these: Sized,
    devices: Sequence[Any],
    num_samples: int,
    *,
    is_mocked: bool,
    kernels: Path | None = None,
) -> list[Step]:
    """Run the points in turns; small ones begin, so that each raises the device's peak.

    Args:
      kernels: folder for what `write_kernels` keeps of each; None: nothing.
    """
    load = os.getloadavg()[0]
    leaves = these.make_leaves()
    ascending = sorted(these.points.items(), key=lambda item: item[1].memory_bytes)
    running = {name: RunningStep(plan, leaves, devices) for name, plan in ascending}
    samples: dict[str, list[float]] = {name: [] for name in running}
    for _ in range(num_samples):
        for name, step in running.items():
            samples[name].append(step.sample())
    if kernels is not None:
        for name, step in running.items():
            step.write_kernels(kernels, f"{these.size}, {name}")
    return [
        Step(
            model=model,
            size=these.size,
            topology=plan.topology.name,
            num_devices=plan.topology.num_devices,
            point=name,
            priced_by="data sheet" if plan.topology.profile is None else "profile",
            is_mocked=is_mocked,
            compute_seconds=plan.compute_seconds,
            communication_seconds=plan.communication_seconds,
            measured_seconds=statistics.median(samples[name]),
            spread=_spread(samples[name]),
            num_samples=num_samples,
            steps_per_sample=running[name].steps_per_sample,
            predicted_bytes=plan.memory_bytes,
            compiled_bytes=running[name].compiled_bytes,
            device_bytes=running[name].device_bytes,
            load=load,
        )
        for name, plan in these.points.items()
    ]


def _spread(seconds: Sequence[float]) -> float:
    low, middle, high = np.quantile(seconds, (0.25, 0.5, 0.75))
    return float((high - low) / middle)
