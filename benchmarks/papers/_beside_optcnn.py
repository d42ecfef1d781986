"""FlexFlow beside OptCNN on recurrent networks and 16 P100 (section 8.1.3, Figure 9b)."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

from benchmarks.papers._placed import Layer, Machine, PlacedModel, Placement, placements
from jaxplan.mesh import CHIPS

NUM_DEVICES = 16
SEARCHED_STEPS = 20
"""Time steps of the task graphs that are searched on; what is found is simulated over all."""
_LEAST_GAIN = 1e-3


class FusedLayers(PlacedModel):
    """All time steps of a layer as one operator.

    So FlexFlow's authors ran OptCNN on recurrent networks: "we explicitly fuse all recurrent nodes sharing the same
    parameters to a single operator". A layer's products have the rows of one time step, since they run in turn; where
    its channels are split, parts pass on their state at every step.
    """

    def __init__(
        self, layers: Sequence[Layer], num_steps: int, configurations: Sequence[Placement], machine: Machine
    ) -> None:
        self._of_steps = PlacedModel(layers, num_steps, configurations, machine)
        fused = [
            dataclasses.replace(
                layer,
                result_bytes=num_steps * layer.result_bytes,
                reads=tuple((place, lag) for place, lag in layer.reads if not lag),
            )
            for layer in layers
        ]
        super().__init__(fused, 1, configurations, machine)

    def _part_seconds(self, place: int, label: int) -> float:
        steps = self._of_steps
        return steps.num_steps * (steps.part_seconds(place, label) + self._state_seconds(place, label))

    def _state_seconds(self, place: int, label: int) -> float:
        """Of one time step: every part of the channels receives those of the others, in a ring."""
        layer, split = self._of_steps.layers[place], self.placements[label]
        if split.channels == 1 or not any(lag for _, lag in layer.reads):
            return 0.0
        piece = layer.result_bytes / split.samples / split.channels
        ring = split.devices[: split.channels]
        following = (*ring[1:], ring[0])
        slowest = max(self.machine.seconds(a, b, piece) for a, b in zip(ring, following, strict=True))
        return (split.channels - 1) * slowest


def optcnn(layers: Sequence[Layer], num_steps: int, machine: Machine) -> tuple[PlacedModel, list[int]]:
    """The fused layers, and the fastest strategy found with every one on all devices, from each split of them all."""
    everywhere = [of for of in placements(machine.num_devices) if len(of.devices) == machine.num_devices]
    model = FusedLayers(layers, num_steps, everywhere, machine)
    ends = [descend(model.makespan, [k] * len(layers), len(everywhere)) for k in range(len(everywhere))]
    return model, min(ends)[1]


def flexflow(layers: Sequence[Layer], num_steps: int, machine: Machine) -> tuple[PlacedModel, list[int]]:
    """Time steps as operators, and the fastest strategy found with every layer on all devices or on half of them.

    The search starts from the best split of the first half of the layers on one half, of the others on the other.
    """
    count = machine.num_devices
    wide = [of for of in placements(count) if len(of.devices) >= count // 2]
    model = PlacedModel(layers, num_steps, wide, machine)
    searched = PlacedModel(layers, SEARCHED_STEPS, wide, machine)
    splits = [(2**k, count // 2 // 2**k) for k in range((count // 2).bit_length())]
    start = min((_in_halves(model, split) for split in splits), key=searched.makespan)
    return model, descend(searched.makespan, start, len(wide))[1]


def descend(
    score: Callable[[Sequence[int]], float], start: Sequence[int], num_labels: int
) -> tuple[float, list[int]]:
    """The best label of one layer after the other, until a sweep gains less than a thousandth; its score and labels."""
    labels, best, before = list(start), score(start), float("inf")
    while best < (1 - _LEAST_GAIN) * before:
        before = best
        for place in range(len(labels)):
            for label in range(num_labels):
                changed = [*labels[:place], label, *labels[place + 1 :]]
                if changed != labels and (found := score(changed)) < best:
                    labels, best = changed, found
    return best, labels


def _in_halves(model: PlacedModel, split: tuple[int, int]) -> list[int]:
    """The first half of the layers on the first half of the devices, the others on the others."""
    size = model.num_devices // 2
    halves = [
        model.placements.index(
            Placement(samples=split[0], channels=split[1], devices=tuple(range(size * n, size * (n + 1))))
        )
        for n in range(2)
    ]
    return [halves[2 * k // len(model.layers)] for k in range(len(model.layers))]


def compared(
    layers: Sequence[Layer], num_steps: int, chip: str = "p100"
) -> list[tuple[str, PlacedModel, list[int], float]]:
    """(search, model, strategy, processor seconds of the search) of both."""
    machine = Machine(chip=CHIPS[chip], num_devices=NUM_DEVICES)
    rows = []
    for who, search in (("optcnn", optcnn), ("found", flexflow)):
        start = time.process_time()
        model, labels = search(layers, num_steps, machine)
        rows.append((who, model, labels, time.process_time() - start))
    return rows
