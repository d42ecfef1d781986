"""Units and devices of stages against every partition there is."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from jaxplan.search.stages._partition import partitions
from jaxplan.search.stages._unit_costs import UnitCosts

DEVICES, MICRO_BATCHES = 4, 6
SIZES = (1, 2)


def random_costs(seed, num_units=5):
    rng = np.random.default_rng(seed)

    def costs(size):
        seconds = rng.uniform(1, 4, (2, num_units)) / size**0.8
        resident = rng.integers(1, 9, (2, num_units)) / size
        kept, passing = rng.integers(1, 4, (2, 2, num_units)) / size
        return UnitCosts(seconds=seconds, resident_bytes=resident, kept_bytes=kept, passing_bytes=passing)

    return {size: costs(size) for size in SIZES}


def stage_seconds(of, units, in_flight, limit):
    """The fastest level that fits."""
    fitting = [np.inf]
    for level in range(2):
        span = level, slice(units[0], units[-1] + 1)
        memory = of.resident_bytes[span].sum() + in_flight * of.kept_bytes[span].sum() + of.passing_bytes[span].max()
        if limit is None or memory <= limit:
            fitting.append(of.seconds[level, units[0] : units[-1] + 1].sum())
    return min(fitting)


def every_partition(costs, count, limit):
    number = next(iter(costs.values())).seconds.shape[1]
    for cuts in itertools.combinations(range(1, number), count - 1):
        ends = [0, *cuts, number]
        for sizes in itertools.product(SIZES, repeat=count):
            if sum(sizes) != DEVICES:
                continue
            seconds = [
                stage_seconds(costs[n], range(a, b), min(count - k, MICRO_BATCHES), limit)
                for k, (a, b, n) in enumerate(zip(ends, ends[1:], sizes))
            ]
            yield sum(seconds) + (MICRO_BATCHES - 1) * max(seconds)


@pytest.mark.parametrize("limit", [None, 18, 12])
@pytest.mark.parametrize("seed", range(6))
def test_the_best_partition_is_that_of_all_partitions(seed, limit):
    """Bounds on the slowest stage are 6 % apart, so that the best is missed by no more."""
    costs = random_costs(seed)
    for count in (2, 3, 4):
        best = min(every_partition(costs, count, limit), default=np.inf)
        found = partitions(costs, DEVICES, [count], MICRO_BATCHES, limit)
        assert bool(found) == bool(np.isfinite(best))
        assert not found or (best <= found[0].seconds * (1 + 1e-9) and found[0].seconds <= 1.06 * best)
