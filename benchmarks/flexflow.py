"""FlexFlow's search on simulated time: chains against the global optimum, delta against full simulation.

    python -m benchmarks.flexflow [--devices 4 8 16 32 64] [--proposals N]

Sources: FlexFlow, section 8.3 (LeNet and a 2-step RNN on 4 devices, optimum by exhaustive search) and Table 5. The
optimum is found by counting through every strategy; every simulated cost is that of the full simulation.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jaxplan.cost._simulated_walk import DeltaWalk, FullWalk, all_tasks
from jaxplan.cost._simulator import Task, simulate
from jaxplan.solvers import ChainOptions, Problem, walk_chains

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


class Model:
    """Task graphs of a training iteration: forward, backward, exchange of weight gradients.

    Pieces are operators and the edges between them. Numbers: transfers to operator i, its forward parts, then
    backward in reverse, then gradients.
    """

    def __init__(
        self, operators: Sequence[Operator], configurations: Sequence[Split], num_devices: int
    ) -> None:
        self.operators, self.configurations, self.num_devices = operators, configurations, num_devices
        self.edges = [(u, v) for v, operator in enumerate(operators) for u in operator.reads]
        self.readers: list[list[int]] = [[] for _ in operators]
        for u, v in self.edges:
            self.readers[u].append(v)
        self._parts = [split.parts for split in configurations]
        self._overlaps: dict[tuple[int, int], list[tuple[int, int, float]]] = {}

    @property
    def num_pieces(self) -> int:
        return len(self.operators)

    def pieces_of(self, node: int) -> Iterable[int]:
        """Return the operator itself, what it reads and what reads it: their parts wait for its parts."""
        return sorted({node, *self.operators[node].reads, *self.readers[node]})

    def problem(self) -> Problem:
        """Return nodes and configurations alone: costs come from the simulator."""
        return Problem(time=[np.zeros(len(self.configurations))] * len(self.operators))

    def tasks_of(self, piece: int, assignment: Sequence[int]) -> Mapping[int, Task]:
        operator, label = self.operators[piece], assignment[piece]
        parts = self._parts[label]
        seconds = LAUNCH_SECONDS + operator.flop / len(parts) / FLOP_PER_SECOND
        needs: list[list[int]] = [[] for _ in parts]
        needs_back: list[list[int]] = [[] for _ in parts]
        tasks: dict[int, Task] = {}
        for place, u in enumerate(operator.reads):
            self._arrive(tasks, needs, place, u, piece, assignment)
        for place, v in enumerate(self.readers[piece]):
            self._return(tasks, needs_back, place, piece, v, assignment)
        for index, (device, _, _) in enumerate(parts):
            ahead, back = self._forward(piece, index), self._backward(piece, index)
            tasks[ahead] = Task(stream=device, seconds=seconds, needs=tuple(needs[index]))
            waits = (ahead, *needs_back[index])
            tasks[back] = Task(stream=device, seconds=2 * seconds, needs=waits)
        self._exchange(tasks, piece, label)
        return tasks

    def _forward(self, node: int, index: int) -> int:
        return (2 * node + 1) * _STRIDE + index

    def _backward(self, node: int, index: int) -> int:
        return (4 * len(self.operators) - 2 * node) * _STRIDE + index

    def _link(self, source: int, target: int) -> int:
        return self.num_devices * (1 + source) + target

    def _arrive(
        self,
        tasks: dict[int, Task],
        needs: list[list[int]],
        place: int,
        u: int,
        v: int,
        assignment: Sequence[int],
    ) -> None:
        """Add the transfers of what v reads of u."""
        base = 2 * v * _STRIDE + place * 2**14
        for index, (i, j, share) in enumerate(self._overlap(assignment[u], assignment[v])):
            source, target = self._parts[assignment[u]][i][0], self._parts[assignment[v]][j][0]
            made = self._forward(u, i)
            if source != target:
                seconds = MESSAGE_SECONDS + share * self.operators[u].result_bytes / BYTES_PER_SECOND
                tasks[base + index] = Task(stream=self._link(source, target), seconds=seconds, needs=(made,))
                made = base + index
            needs[j].append(made)

    def _return(
        self,
        tasks: dict[int, Task],
        needs: list[list[int]],
        place: int,
        u: int,
        v: int,
        assignment: Sequence[int],
    ) -> None:
        """Add the transfers of the gradients of what v read of u."""
        base = (4 * len(self.operators) - 2 * u - 1) * _STRIDE + place * 2**14
        for index, (i, j, share) in enumerate(self._overlap(assignment[u], assignment[v])):
            source, target = self._parts[assignment[v]][j][0], self._parts[assignment[u]][i][0]
            made = self._backward(v, j)
            if source != target:
                seconds = MESSAGE_SECONDS + share * self.operators[u].result_bytes / BYTES_PER_SECOND
                tasks[base + index] = Task(stream=self._link(source, target), seconds=seconds, needs=(made,))
                made = base + index
            needs[i].append(made)

    def _exchange(self, tasks: dict[int, Task], node: int, label: int) -> None:
        """Add one step of a ring for each copy of a part of the weights: 2 (n - 1) / n of its bytes."""
        split, parts = self.configurations[label], self._parts[label]
        weight = self.operators[node].weight_bytes / split.channels
        if split.samples == 1 or not weight:
            return
        base = (4 * len(self.operators) + 1 + node) * _STRIDE
        moved = 2 * (split.samples - 1) / split.samples * weight
        for index, (device, sample, channel) in enumerate(parts):
            following = parts[(sample + 1) % split.samples * split.channels + channel][0]
            copies = tuple(
                self._backward(node, other * split.channels + channel) for other in range(split.samples)
            )
            seconds = 2 * (split.samples - 1) * MESSAGE_SECONDS + moved / BYTES_PER_SECOND
            tasks[base + index] = Task(stream=self._link(device, following), seconds=seconds, needs=copies)

    def _overlap(self, source: int, target: int) -> list[tuple[int, int, float]]:
        """Return (part of the source, part of the target, share of the tensor) that the target's part reads.

        A part reads its samples with all their channels.
        """
        if (source, target) not in self._overlaps:
            one, two = self.configurations[source], self.configurations[target]
            found = []
            for (i, (_, a, _)), (j, (_, b, _)) in itertools.product(
                enumerate(self._parts[source]), enumerate(self._parts[target])
            ):
                low, high = (
                    max(a / one.samples, b / two.samples),
                    min((a + 1) / one.samples, (b + 1) / two.samples),
                )
                if high > low:
                    found.append((i, j, (high - low) / one.channels))
            self._overlaps[source, target] = found
        return self._overlaps[source, target]


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


def check_optimum(name: str, operators: Sequence[Operator], num_seeds: int = 10) -> bool:
    """Print in how many of the seeds a chain finds the global optimum on 4 devices."""
    model = Model(operators, splits(4, few=True), 4)
    start = time.perf_counter()
    optimum = global_optimum(model)
    counted = time.perf_counter() - start
    data = next(k for k, split in enumerate(model.configurations) if split.samples == 4)
    hits, spent = 0, 0.0
    for seed in range(num_seeds):
        start = time.perf_counter()
        options = ChainOptions(seed=seed, num_random=1, num_proposals=2000)
        found = walk_chains(
            model.problem(), functools.partial(DeltaWalk, model), [[data] * len(operators)], options
        )
        spent += time.perf_counter() - start
        full = simulate(all_tasks(model, found.assignment)).makespan
        assert full == found.cost
        hits += full == optimum
    strategies = len(model.configurations) ** len(operators)
    print(
        f"{name:<12} {strategies:>8} strategies, optimum {optimum * 1e6:8.1f} us in {counted:6.1f} s; chains reach it "
        f"in {hits} of {num_seeds} seeds, {spent / num_seeds:.2f} s each"
    )
    return hits >= 9


def compare_simulations(device_counts: Sequence[int], num_proposals: int) -> bool:
    """Print the time of full and of delta simulation along the same chain."""
    print(
        f"\nRNN of 10 steps x 3 layers, {num_proposals} proposals\n"
        " devices   tasks   full s  delta s  speed-up  same chain"
    )
    is_same = True
    for num_devices in device_counts:
        model = Model(recurrent(10), splits(num_devices), num_devices)
        data = next(k for k, split in enumerate(model.configurations) if split.samples == num_devices)
        start = [data] * len(model.operators)
        options = ChainOptions(num_random=0, num_proposals=num_proposals, patience=1.0)
        seconds, results = [], []
        for walk in (FullWalk, DeltaWalk):
            began = time.perf_counter()
            results.append(walk_chains(model.problem(), functools.partial(walk, model), [start], options))
            seconds.append(time.perf_counter() - began)
        same = results[0] == results[1]
        is_same &= same
        num_tasks = len(all_tasks(model, start))
        print(
            f"{num_devices:>8} {num_tasks:>7} {seconds[0]:>8.2f} {seconds[1]:>8.2f} {seconds[0] / seconds[1]:>8.1f}x"
            f"  {'yes' if same else 'NO'}"
        )
    return is_same


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.flexflow", description="Time FlexFlow's search."
    )
    parser.add_argument("--devices", type=int, nargs="*", default=[4, 8, 16, 32, 64])
    parser.add_argument("--proposals", type=int, default=100)
    options = parser.parse_args(arguments)
    is_right = check_optimum("LeNet", lenet())
    is_right &= check_optimum("2-step RNN", recurrent(2))
    is_right &= compare_simulations(options.devices, options.proposals)
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
