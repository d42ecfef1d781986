"""FlexFlow's search on simulated time: chains against the global optimum, delta against full simulation.

    python -m benchmarks.flexflow [--devices 4 8 16 32 64] [--proposals N] [--rounds N]

Sources: FlexFlow, section 8.3 (LeNet and a 2-step RNN on 4 devices, optimum by exhaustive search) and Table 5. The
optimum is found by counting through every strategy; every simulated cost is that of the full simulation.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jaxplan.simulate._instant_simulator import InstantSimulation
from jaxplan.simulate._simulated_walk import DeltaWalk, FullWalk, all_tasks
from jaxplan.simulate._simulator import Task, simulate
from jaxplan.solvers import ChainOptions, Problem, Walk, walk_chains
from jaxplan.solvers._chain import ScoredWalk
from jaxplan.solvers._mcmc import ChainResult

# A P100 (10.6 TFLOP/s, half of it reached) and its NVLink (20 GB/s a direction); launches and messages.
FLOP_PER_SECOND, BYTES_PER_SECOND = 5.3e12, 20e9
LAUNCH_SECONDS, MESSAGE_SECONDS = 5e-6, 5e-6
_STRIDE = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """A layer: FLOP and bytes of its result for the whole batch, bytes of its weights, layers it reads."""

    name: str
    flop: float
    result_bytes: float
    weight_bytes: float = 0.0
    reads: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A configuration: parts of the batch times parts of the channels, on neighbouring devices."""

    samples: int
    channels: int
    first: int

    @property
    def parts(self) -> list[tuple[int, int, int]]:
        """(device, part of the batch, part of the channels) of each part."""
        pairs = itertools.product(range(self.samples), range(self.channels))
        return [(self.first + place, sample, channel) for place, (sample, channel) in enumerate(pairs)]


def splits(num_devices: int, *, few: bool = False) -> list[Split]:
    """Return the configurations on `num_devices`; `few` leaves those on one or on all devices in one dimension."""
    result = []
    powers = [2**k for k in range(num_devices.bit_length()) if 2**k <= num_devices]
    for samples, channels in itertools.product(powers, repeat=2):
        parts = samples * channels
        if parts > num_devices or (few and (1 < parts < num_devices or min(samples, channels) > 1)):
            continue
        result += [
            Split(samples=samples, channels=channels, first=first) for first in range(0, num_devices, parts)
        ]
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Which parts of one configuration read which parts of another.

    Attributes:
      crossing: (index, part read, part that reads, share of the tensor, link there, link back), devices differ.
      arriving: per part that reads, the task it waits for: index of a transfer, or -1 - part read on its own device.
      returning: per part read, the task that its gradient waits for: the same with parts that read.
    """

    crossing: list[tuple[int, int, int, float, int, int]]
    arriving: list[list[int]]
    returning: list[list[int]]


class Model:
    """Task graphs of a training iteration: forward, backward, exchange of weight gradients.

    Pieces are operators, then the edges between them. Numbers: transfers to operator i, its forward parts, then
    backward in reverse, then gradients.
    """

    def __init__(
        self, operators: Sequence[Operator], configurations: Sequence[Split], num_devices: int
    ) -> None:
        self.operators, self.configurations, self.num_devices = operators, configurations, num_devices
        self.edges = [(u, v) for v, operator in enumerate(operators) for u in operator.reads]
        self.inputs: list[list[int]] = [[] for _ in operators]
        self.outputs: list[list[int]] = [[] for _ in operators]
        for edge, (u, v) in enumerate(self.edges):
            self.inputs[v].append(edge)
            self.outputs[u].append(edge)
        self._parts = [split.parts for split in configurations]
        self._overlaps: dict[tuple[int, int], Overlap] = {}
        # First numbers of the transfers of an edge, there and back.
        last = 4 * len(operators) - 1
        self._there = [
            2 * v * _STRIDE + self.inputs[v].index(e) * 2**14 for e, (_, v) in enumerate(self.edges)
        ]
        self._back = [
            (last - 2 * u) * _STRIDE + self.outputs[u].index(e) * 2**14 for e, (u, _) in enumerate(self.edges)
        ]

    @property
    def num_pieces(self) -> int:
        return len(self.operators) + len(self.edges)

    def pieces_of(self, node: int) -> Iterable[int]:
        """Return the operator itself and its edges, and their other ends: parts there wait for its parts."""
        edges = [*self.inputs[node], *self.outputs[node]]
        joined = {end for edge in edges for end in self.edges[edge]}
        return [*sorted({node, *joined}), *(len(self.operators) + edge for edge in edges)]

    def problem(self) -> Problem:
        """Return nodes and configurations alone: costs come from the simulator."""
        return Problem(time=[np.zeros(len(self.configurations))] * len(self.operators))

    def tasks_of(self, piece: int, assignment: Sequence[int]) -> Mapping[int, Task]:
        if piece >= len(self.operators):
            return self._transfers(piece - len(self.operators), assignment)
        operator, parts = self.operators[piece], self._parts[assignment[piece]]
        seconds = LAUNCH_SECONDS + operator.flop / len(parts) / FLOP_PER_SECOND
        ahead, back = self._forward(piece), self._backward(piece)
        needs: list[list[int]] = [[] for _ in parts]
        needs_back = [[ahead + index] for index in range(len(parts))]
        for edge in self.inputs[piece]:
            made, sent = self._forward(self.edges[edge][0]), self._there[edge]
            for waits, codes in zip(needs, self._overlap(edge, assignment).arriving):
                waits += [sent + code if code >= 0 else made - 1 - code for code in codes]
        for edge in self.outputs[piece]:
            made, sent = self._backward(self.edges[edge][1]), self._back[edge]
            for waits, codes in zip(needs_back, self._overlap(edge, assignment).returning):
                waits += [sent + code if code >= 0 else made - 1 - code for code in codes]
        tasks: dict[int, Task] = {}
        for index, (device, _, _) in enumerate(parts):
            tasks[ahead + index] = Task(device, seconds, tuple(needs[index]))
            tasks[back + index] = Task(device, 2 * seconds, tuple(needs_back[index]))
        self._exchange(tasks, piece, assignment[piece])
        return tasks

    def _forward(self, node: int) -> int:
        return (2 * node + 1) * _STRIDE

    def _backward(self, node: int) -> int:
        return (4 * len(self.operators) - 2 * node) * _STRIDE

    def _link(self, source: int, target: int) -> int:
        return self.num_devices * (1 + source) + target

    def _transfers(self, edge: int, assignment: Sequence[int]) -> dict[int, Task]:
        """Return the transfers from u to v, and those of its gradients."""
        u, v = self.edges[edge]
        made, made_back = self._forward(u), self._backward(v)
        there, back = self._there[edge], self._back[edge]
        whole = self.operators[u].result_bytes / BYTES_PER_SECOND
        tasks: dict[int, Task] = {}
        for index, i, j, share, link, link_back in self._overlap(edge, assignment).crossing:
            seconds = MESSAGE_SECONDS + share * whole
            tasks[there + index] = Task(link, seconds, (made + i,))
            tasks[back + index] = Task(link_back, seconds, (made_back + j,))
        return tasks

    def _exchange(self, tasks: dict[int, Task], node: int, label: int) -> None:
        """Add one step of a ring for each copy of a part of the weights: 2 (n - 1) / n of its bytes.

        Copies wait for each other at a task of no time on a stream of its own.
        """
        split, parts = self.configurations[label], self._parts[label]
        weight = self.operators[node].weight_bytes / split.channels
        if split.samples == 1 or not weight:
            return
        base, back = (4 * len(self.operators) + 1 + node) * _STRIDE, self._backward(node)
        moved = 2 * (split.samples - 1) / split.samples * weight
        seconds = 2 * (split.samples - 1) * MESSAGE_SECONDS + moved / BYTES_PER_SECOND
        for channel in range(split.channels):
            copies = tuple(range(back + channel, back + len(parts), split.channels))
            tasks[base + channel] = Task(-1 - node * self.num_devices - channel, 0.0, copies)
        for index, (device, sample, channel) in enumerate(parts):
            following = parts[(sample + 1) % split.samples * split.channels + channel][0]
            step = Task(self._link(device, following), seconds, (base + channel,))
            tasks[base + 2**14 + index] = step

    def _overlap(self, edge: int, assignment: Sequence[int]) -> Overlap:
        u, v = self.edges[edge]
        labels = assignment[u], assignment[v]
        if labels not in self._overlaps:
            self._overlaps[labels] = self._find_overlap(*labels)
        return self._overlaps[labels]

    def _find_overlap(self, source: int, target: int) -> Overlap:
        """A part reads its samples with all their channels."""
        one, two = self.configurations[source], self.configurations[target]
        readers: dict[int, list[tuple[int, float]]] = {sample: [] for sample in range(one.samples)}
        for a, b in itertools.product(range(one.samples), range(two.samples)):
            low = max(a / one.samples, b / two.samples)
            high = min((a + 1) / one.samples, (b + 1) / two.samples)
            if high > low:
                parts = range(b * two.channels, (b + 1) * two.channels)
                readers[a] += [(j, (high - low) / one.channels) for j in parts]
        overlap = Overlap(
            crossing=[],
            arriving=[[] for _ in self._parts[target]],
            returning=[[] for _ in self._parts[source]],
        )
        for i, (device, sample, _) in enumerate(self._parts[source]):
            for j, share in readers[sample]:
                other, index = self._parts[target][j][0], len(overlap.crossing)
                if device != other:
                    links = self._link(device, other), self._link(other, device)
                    overlap.crossing.append((index, i, j, share, *links))
                overlap.arriving[j].append(index if device != other else -1 - i)
                overlap.returning[i].append(index if device != other else -1 - j)
        return overlap


def lenet(batch: int = 256) -> list[Operator]:
    """LeNet-5: two convolutions with pooling, then two of its dense layers (6 layers)."""
    sizes = [  # FLOP, values of the result, values of the weights, of one image
        ("conv1", 2 * 28 * 28 * 6 * 25, 28 * 28 * 6, 156),
        ("pool1", 14 * 14 * 6 * 4, 14 * 14 * 6, 0),
        ("conv2", 2 * 10 * 10 * 16 * 150, 10 * 10 * 16, 2416),
        ("pool2", 5 * 5 * 16 * 4, 400, 0),
        ("dense1", 2 * 400 * 120, 120, 48_120),
        ("dense2", 2 * 120 * 84, 84, 10_164),
    ]
    return [
        Operator(
            name=name,
            flop=batch * flop,
            result_bytes=4.0 * batch * values,
            weight_bytes=4.0 * weights,
            reads=(place - 1,) if place else (),
        )
        for place, (name, flop, values, weights) in enumerate(sizes)
    ]


def recurrent(
    steps: int, layers: int = 2, batch: int = 64, width: int = 2048, words: int = 10_000
) -> list[Operator]:
    """An RNN language model, unrolled: LSTM layers and a softmax layer at every step."""
    operators: list[Operator] = []
    for step in range(steps):
        for layer in range(layers + 1):
            here = step * (layers + 1) + layer
            before = ([here - 1] if layer else []) + ([here - layers - 1] if step and layer < layers else [])
            outputs = words if layer == layers else width
            inner = width * words if layer == layers else 8 * width * width
            operators.append(
                Operator(
                    name=f"{'softmax' if layer == layers else 'lstm'} {layer} step {step}",
                    flop=2.0 * batch * inner,
                    result_bytes=4.0 * batch * outputs,
                    weight_bytes=4.0 * inner,
                    reads=tuple(sorted(before)),
                )
            )
    return operators


def global_optimum(model: Model) -> float:
    """Return the least simulated time of all strategies, the last operator changing fastest."""
    sizes = [len(model.configurations)] * len(model.operators)
    walk = DeltaWalk(model, [0] * len(sizes))
    best = walk.cost
    current = [0] * len(sizes)
    for labels in itertools.product(*map(range, sizes)):
        for node, label in enumerate(labels):
            if label != current[node]:
                walk.propose(node, label)
                walk.accept()
                current[node] = label
        best = min(best, walk.cost)
    return best


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimum:
    """The least simulated time of all strategies; in how many seeds chains reach it, and their processor seconds."""

    num_strategies: int
    optimum_seconds: float
    counting_seconds: float
    num_reached: int
    chain_seconds: float


def optimum_and_chains(operators: Sequence[Operator], num_seeds: int = 10) -> Optimum:
    """Count through every strategy on 4 devices, then walk a chain per seed; each cost is that of a full simulation."""
    model = Model(operators, splits(4, few=True), 4)
    start = time.process_time()
    optimum = global_optimum(model)
    counted = time.process_time() - start
    data = next(k for k, split in enumerate(model.configurations) if split.samples == 4)
    hits, spent = 0, 0.0
    for seed in range(num_seeds):
        start = time.process_time()
        options = ChainOptions(seed=seed, num_random=1, num_proposals=2000)
        found = walk_chains(
            model.problem(), functools.partial(DeltaWalk, model), [[data] * len(operators)], options
        )
        spent += time.process_time() - start
        full = simulate(all_tasks(model, found.assignment)).makespan
        assert full == found.cost
        hits += full == optimum
    return Optimum(
        num_strategies=len(model.configurations) ** len(operators),
        optimum_seconds=optimum,
        counting_seconds=counted,
        num_reached=hits,
        chain_seconds=spent / num_seeds,
    )


def check_optimum(name: str, operators: Sequence[Operator], num_seeds: int = 10) -> bool:
    """Print in how many of the seeds a chain finds the global optimum on 4 devices."""
    found = optimum_and_chains(operators, num_seeds)
    print(
        f"{name:<12} {found.num_strategies:>8} strategies, optimum {found.optimum_seconds * 1e6:8.1f} us in "
        f"{found.counting_seconds:6.1f} s; chains reach it in {found.num_reached} of {num_seeds} seeds, "
        f"{found.chain_seconds:.2f} s each"
    )
    return found.num_reached >= 9


def compare_simulations(device_counts: Sequence[int], num_proposals: int, rounds: int) -> bool:
    """Print the time of full and of delta simulation along the same chain, medians of the rounds.

    Full simulation is Algorithm 1, task by task; in arrays, everything is built and simulated anew by instants.
    """
    print(
        f"\nRNN of 10 steps x 3 layers, {num_proposals} proposals, processor seconds, medians of {rounds}\n"
        " devices   tasks   full s  arrays s  delta s  full / delta  same chain"
    )
    is_same = True
    walks = (FullWalk, _anew_in_arrays, DeltaWalk)
    for num_devices in device_counts:
        runs = [[_walk(walk, num_devices, num_proposals) for walk in walks] for _ in range(rounds)]
        same = all(result == runs[0][0][1] for run in runs for _, result in run)
        is_same &= same
        full, arrays, delta = (statistics.median(run[place][0] for run in runs) for place in range(3))
        ratio = statistics.median(run[0][0] / run[2][0] for run in runs)
        model, start = _model(num_devices)
        print(
            f"{num_devices:>8} {len(all_tasks(model, start)):>7} {full:>8.2f} {arrays:>9.2f} {delta:>8.2f} "
            f"{ratio:>12.1f}x  {'yes' if same else 'NO'}",
            flush=True,
        )
    return is_same


def _anew_in_arrays(model: Model, assignment: Sequence[int]) -> Walk:
    return ScoredWalk(lambda labels: InstantSimulation(all_tasks(model, labels)).makespan, assignment)


def _model(num_devices: int) -> tuple[Model, list[int]]:
    """Return the RNN and data parallelism; a new one, because a model remembers overlaps."""
    model = Model(recurrent(10), splits(num_devices), num_devices)
    data = next(k for k, split in enumerate(model.configurations) if split.samples == num_devices)
    return model, [data] * len(model.operators)


def _walk(
    walk: Callable[[Model, Sequence[int]], Walk], num_devices: int, num_proposals: int
) -> tuple[float, ChainResult]:
    """Return the seconds that a chain takes, and its result."""
    model, start = _model(num_devices)
    options = ChainOptions(num_random=0, num_proposals=num_proposals, patience=1.0)
    began = time.process_time()
    result = walk_chains(model.problem(), functools.partial(walk, model), [start], options)
    return time.process_time() - began, result


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.flexflow", description="Time FlexFlow's search."
    )
    parser.add_argument("--devices", type=int, nargs="*", default=[4, 8, 16, 32, 64])
    parser.add_argument("--proposals", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    is_right = check_optimum("LeNet", lenet())
    is_right &= check_optimum("2-step RNN", recurrent(2))
    is_right &= compare_simulations(options.devices, options.proposals, options.rounds)
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
