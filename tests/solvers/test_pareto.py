import numpy as np
import pytest

from jaxplan.solvers._pareto import Lists, product, reduce_lists, union_first_axis


def naive(points):
    """Return the points that no other point beats, ascending in memory."""
    return sorted(
        {(m, t) for m, t in points if not any(a <= m and b <= t and (a, b) != (m, t) for a, b in points)}
    )


def as_list(lists: Lists, cell=()):
    return [(int(m), float(t)) for t, m in zip(lists.time[cell], lists.memory[cell]) if np.isfinite(t)]


def random_lists(rng, cells, length):
    time = rng.integers(0, 9, (*cells, length)).astype(float)
    time[rng.random(time.shape) < 0.1] = np.inf
    return time, rng.integers(0, 9, (*cells, length))


@pytest.mark.parametrize("seed", range(20))
def test_reduce_keeps_exactly_the_undominated_points(seed):
    time, memory = random_lists(np.random.default_rng(seed), (3, 2), 12)
    lists = reduce_lists(time, memory)
    for cell in np.ndindex(3, 2):
        candidates = [(m, t) for t, m in zip(time[cell], memory[cell]) if np.isfinite(t)]
        assert as_list(lists, cell) == naive(candidates)
        for place, (m, t) in enumerate(as_list(lists, cell)):
            source = lists.source[(*cell, place)]
            assert (memory[cell][source], time[cell][source]) == (m, t)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("lengths", [(1, 1), (1, 4), (5, 1), (4, 3)])
def test_product_adds_every_pair(seed, lengths):
    rng = np.random.default_rng(seed)
    first, second = (reduce_lists(*random_lists(rng, (2,), length)) for length in lengths)
    result = product(first, second)
    for cell in range(2):
        pairs = [(a + c, b + d) for a, b in as_list(first, cell) for c, d in as_list(second, cell)]
        assert as_list(result, cell) == naive(pairs)


@pytest.mark.parametrize("seed", range(10))
def test_union_takes_the_best_of_the_first_axis(seed):
    lists = reduce_lists(*random_lists(np.random.default_rng(seed), (3, 2), 4))
    result = union_first_axis(lists)
    for cell in range(2):
        everything = [point for row in range(3) for point in as_list(lists, (row, cell))]
        assert as_list(result, (cell,)) == naive(everything)


def test_thinning_keeps_both_ends_and_at_most_the_cap():
    memory = np.arange(1000)[None]
    time = 1e6 / (1.0 + memory)
    lists = reduce_lists(time, memory, 16)
    assert not lists.is_exact and lists.length <= 16
    assert (lists.memory[0, 0], lists.memory[0, -1]) == (0, 999)


def test_thinning_never_invents_points_and_short_lists_stay():
    time, memory = np.array([[3.0, 2.0, 1.0]]), np.array([[1, 2, 3]])
    lists = reduce_lists(time, memory, 3)
    assert lists.is_exact and as_list(lists, (0,)) == [(1, 3.0), (2, 2.0), (3, 1.0)]
