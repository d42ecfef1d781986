"""Operators on devices of their own (the O of FlexFlow's SOAP): task graphs of a machine with unequal links.

An operator runs on any devices, its batch times its output channels split over them. A recurrent layer is one operator
per time step: steps share a configuration and their weights, whose gradients are exchanged once (section 8.4, Figure
13: operators of a layer share parameters). Source: FlexFlow, section 5.1; overlaps are those of
`benchmarks.solvers.flexflow`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.solvers.flexflow import _STRIDE, Model, Operator
from jaxplan.cost._roofline import memory_bytes_per_second
from jaxplan.mesh import ChipSpec
from jaxplan.simulate._instant_simulator import InstantSimulation
from jaxplan.simulate._simulated_walk import all_tasks
from jaxplan.simulate._simulator import Task, simulate
from jaxplan.solvers import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """An operator of every time step.

    Attributes:
      rows, inner, columns: of its product for the whole batch, a convolution's rows are its pixels; no columns: none.
      result_bytes: of one time step, the whole batch.
      weight_bytes: of all time steps together.
      reads: (layer, how many steps before), the layer itself at the step before among them.
    """

    name: str
    rows: int = 0
    inner: int = 0
    columns: int = 0
    result_bytes: float = 0.0
    weight_bytes: float = 0.0
    reads: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A configuration: parts of the batch times parts of the channels, on devices in this order."""

    samples: int
    channels: int
    devices: tuple[int, ...]

    @property
    def parts(self) -> list[tuple[int, int, int]]:
        """(device, part of the batch, part of the channels) of each part."""
        return [(d, k // self.channels, k % self.channels) for k, d in enumerate(self.devices)]

    @property
    def text(self) -> str:
        """Such as ``batch 4 x channels 2 on 0-7``."""
        names = (("batch", self.samples), ("channels", self.channels))
        split = " x ".join(f"{name} {n}" for name, n in names if n > 1) or "whole"
        return (
            f"{split} on {','.join(map(str, self.devices)) if len(self.devices) < 4 else len(self.devices)}"
        )


def placements(num_devices: int) -> list[Placement]:
    """Powers of two of neighbouring devices, in every split of batch and channels."""
    found, powers = [], [2**k for k in range(num_devices.bit_length()) if 2**k <= num_devices]
    for samples in powers:
        for channels in (n for n in powers if n * samples <= num_devices):
            size = samples * channels
            found += [
                Placement(samples=samples, channels=channels, devices=tuple(range(first, first + size)))
                for first in range(0, num_devices, size)
            ]
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Nodes of equal devices; a card for each node between them.

    Attributes:
      pairs: devices 2k and 2k + 1 have a switch of their own and all others of a node share one (FlexFlow, Figure 5b).
    """

    chip: ChipSpec
    num_devices: int
    per_node: int = 4
    pairs: bool = False

    def stream(self, source: int, target: int) -> int:
        """The link between two devices, as a number of a task's stream."""
        n, nodes = self.num_devices, self.num_devices // self.per_node + 1
        if source // self.per_node != target // self.per_node:
            return n * (n + 2) + source // self.per_node
        if self.pairs and source // 2 != target // 2:
            return n * (n + 2) + nodes + source // self.per_node
        return n * (1 + source) + target

    def seconds(self, source: int, target: int, num_bytes: float) -> float:
        """Of one message."""
        link = self.chip.device_link
        if source // self.per_node != target // self.per_node:
            link = self.chip.node_link or link
            rate = link.shared_bytes_per_second or link.bandwidth_bytes_per_second
            return link.latency_seconds + num_bytes / rate
        return link.latency_seconds + num_bytes / link.bandwidth_bytes_per_second


class PlacedModel(Model):
    """Task graphs of layers on a machine; `assignment` is over operators, and `expand` makes it from one of layers."""

    def __init__(
        self, layers: Sequence[Layer], num_steps: int, configurations: Sequence[Placement], machine: Machine
    ) -> None:
        self.layers, self.num_steps, self.machine = layers, num_steps, machine
        self.placements = tuple(configurations)
        operators = [
            Operator(
                name=f"{layer.name} {t}",
                flop=0.0,
                result_bytes=layer.result_bytes,
                weight_bytes=layer.weight_bytes if t == 0 else 0.0,
                reads=tuple(
                    sorted((t - lag) * len(layers) + place for place, lag in layer.reads if t >= lag)
                ),
            )
            for t in range(num_steps)
            for layer in layers
        ]
        super().__init__(operators, configurations, machine.num_devices)  # pyright: ignore[reportArgumentType]
        self._seconds = functools.cache(self._part_seconds)

    def expand(self, of_layers: Sequence[int]) -> list[int]:
        """The configuration of every operator from those of layers."""
        return list(of_layers) * self.num_steps

    def makespan(self, of_layers: Sequence[int]) -> float:
        """Simulated seconds of a step."""
        tasks = all_tasks(self, self.expand(of_layers))
        return (InstantSimulation(tasks) if self.num_devices > 4 else simulate(tasks)).makespan

    def part_seconds(self, place: int, label: int) -> float:
        """Forward seconds of one part of a layer at one time step."""
        return self._seconds(place, label)

    def layer_problem(self) -> Problem:
        """Layers and configurations alone."""
        return Problem(time=[np.zeros(len(self.configurations))] * len(self.layers))

    def _part_seconds(self, place: int, label: int) -> float:
        """Forward seconds of one part: arithmetic, or the bytes of weights and results."""
        layer, split, chip = self.layers[place], self.configurations[label], self.machine.chip
        rows, columns = layer.rows / split.samples, layer.columns / split.channels
        rate = chip.matmul_flops_per_second("float32") * chip.efficiency.products_at(
            min(rows, columns, layer.inner) or 1
        )
        moved = (layer.weight_bytes / split.channels) * bool(layer.columns) + layer.result_bytes / (
            split.samples * split.channels
        )
        return chip.launch_seconds + max(
            2.0 * rows * columns * layer.inner / float(rate), moved / memory_bytes_per_second(chip)
        )

    def tasks_of(self, piece: int, assignment: Sequence[int]) -> dict[int, Task]:
        if piece >= len(self.operators):
            return self._transfers(piece - len(self.operators), assignment)
        tasks = dict(super().tasks_of(piece, assignment))
        seconds = self._seconds(piece % len(self.layers), assignment[piece])
        ahead, back = self._forward(piece), self._backward(piece)
        for index in range(len(self._parts[assignment[piece]])):
            for number, times in ((ahead + index, 1), (back + index, 2)):
                tasks[number] = tasks[number]._replace(seconds=times * seconds)
        return tasks

    def _transfers(self, edge: int, assignment: Sequence[int]) -> dict[int, Task]:
        return {
            number: Task(self.machine.stream(*ends), self.machine.seconds(*ends, num_bytes), needs)
            for number, ends, num_bytes, needs in self._messages(edge, assignment)
        }

    def _messages(
        self, edge: int, assignment: Sequence[int]
    ) -> Iterator[tuple[int, tuple[int, int], float, tuple[int, ...]]]:
        """(number, (source, target), bytes, needs) of every message of an edge, there and back."""
        u, v = self.edges[edge]
        one, two = self._parts[assignment[u]], self._parts[assignment[v]]
        made, made_back = self._forward(u), self._backward(v)
        whole = self.operators[u].result_bytes
        for index, i, j, share, _, _ in self._overlap(edge, assignment).crossing:
            source, target = one[i][0], two[j][0]
            yield self._there[edge] + index, (source, target), share * whole, (made + i,)
            yield self._back[edge] + index, (target, source), share * whole, (made_back + j,)

    def _exchange(self, tasks: dict[int, Task], node: int, label: int) -> None:
        """One ring for each part of the weights, once all time steps are done backward."""
        for number, stream, seconds, needs in self._rings(node, label):
            tasks[number] = Task(stream, seconds, needs)

    def _rings(self, node: int, label: int) -> Iterator[tuple[int, int, float, tuple[int, ...]]]:
        """(number, stream, seconds, needs) of the exchange of an operator's weights."""
        split, parts = self.configurations[label], self._parts[label]
        weight = self.operators[node].weight_bytes / split.channels
        if split.samples == 1 or not weight:
            return
        base = (4 * len(self.operators) + 1 + node) * _STRIDE
        moved = 2 * (split.samples - 1) / split.samples * weight
        later = range(node, len(self.operators), len(self.layers))
        for channel in range(split.channels):
            copies = [k for k in range(len(parts)) if k % split.channels == channel]
            needs = tuple(sorted(self._backward(o) + k for o in later for k in copies))
            yield base + channel, -1 - node * self.num_devices - channel, 0.0, needs
        for index, (device, sample, channel) in enumerate(parts):
            following = parts[(sample + 1) % split.samples * split.channels + channel][0]
            seconds = 2 * (split.samples - 1) * self.machine.chip.device_link.latency_seconds
            seconds += self.machine.seconds(device, following, moved)
            yield base + 2**14 + index, self.machine.stream(device, following), seconds, (base + channel,)

    def sent_bytes(self, of_layers: Sequence[int]) -> dict[str, float]:
        """Bytes that all devices send: of activations and their gradients, of weights; and those between pairs."""
        assignment = self.expand(of_layers)
        found = {"activations": 0.0, "weights": 0.0, "within_pairs": 0.0, "all": 0.0}
        for edge in range(len(self.edges)):
            for _, (source, target), num_bytes, _ in self._messages(edge, assignment):
                found["activations"] += num_bytes
                found["within_pairs"] += num_bytes * (source // 2 == target // 2)
        for layer, label in zip(self.layers, of_layers, strict=True):
            split = self.configurations[label]
            found["weights"] += 2 * (split.samples - 1) * layer.weight_bytes
        found["all"] = found["activations"] + found["weights"]
        return found

    def compute_seconds(self, of_layers: Sequence[int]) -> float:
        """Of all parts of all operators, both passes."""
        return sum(
            3 * self.num_steps * len(self._parts[label]) * self._seconds(place, label)
            for place, label in enumerate(of_layers)
        )
