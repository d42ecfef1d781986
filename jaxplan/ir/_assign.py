"""Assignment of sources to targets one to one, as many as possible and the best of these (Kuhn 1955)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jaxplan.ir._union import UnionFind


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How well a source and a target fit; compared in the order of the fields.

    Attributes:
      share: of the source's leaves, those that flow to their place, 0 to 1.
      is_named: whether both stand under the same name.
      is_donated: whether the source is donated by name: the target takes its place.
      is_unchanged: whether the target is a copy; one that is computed fits better.
      steps: operators on the way, the fewer the better.
    """

    share: float
    is_named: bool
    is_donated: bool = False
    is_unchanged: bool
    steps: float


# Each level outweighs those after it: a pair at all, the share, a name, donation, a computed value, 0 to 1,000 steps,
# the order.
_PAIR, _SHARE, _NAME, _DONATED, _COMPUTED, _MOST_STEPS = 1e7, 1e6, 1e5, 3e4, 1e4, 1e3


def assign(scores: Mapping[tuple[int, int], Score]) -> dict[int, int]:
    """Source -> target, for the sources that get one.

    Among equal assignments the one that keeps the order of both is taken.

    Args:
      scores: of each (source, target) that may be paired; both are numbered in their order.
    """
    found: dict[int, int] = {}
    for part in _connected(scores):
        found.update(_best(part, scores))
    return found


def _best(pairs: Sequence[tuple[int, int]], scores: Mapping[tuple[int, int], Score]) -> list[tuple[int, int]]:
    if len(pairs) == 1:
        return list(pairs)
    from scipy.optimize import linear_sum_assignment  # slow to import; most leaves have one candidate

    rows, columns = sorted({a for a, _ in pairs}), sorted({b for _, b in pairs})
    row_of, column_of = {a: k for k, a in enumerate(rows)}, {b: k for k, b in enumerate(columns)}
    gain = np.zeros((len(rows), len(columns)))
    for a, b in pairs:
        row, column = row_of[a], column_of[b]
        order = ((row - column) / max(gain.shape)) ** 2  # convex, so that equal sources keep their order
        gain[row, column] = _gain(scores[a, b]) - order
    chosen = zip(*linear_sum_assignment(gain, maximize=True), strict=True)
    return [(rows[r], columns[c]) for r, c in chosen if (rows[r], columns[c]) in scores]


def _gain(score: Score) -> float:
    return (
        _PAIR * (score.share > 0)
        + _SHARE * score.share
        + _NAME * score.is_named
        + _DONATED * score.is_donated
        + _COMPUTED * (not score.is_unchanged)
        + _MOST_STEPS
        - min(score.steps, _MOST_STEPS - 1)
    )


def _connected(pairs: Iterable[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Pairs by connected part of the bipartite graph: those that share no candidate are decided apart."""
    pairs = sorted(pairs)
    num_sources = max((a for a, _ in pairs), default=-1) + 1
    num_targets = max((b for _, b in pairs), default=-1) + 1
    union = UnionFind(num_sources + num_targets)
    for a, b in pairs:
        union.join(a, num_sources + b)
    parts: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for a, b in pairs:
        parts[union.find(a)].append((a, b))
    return list(parts.values())


def largest_matching(pairs: Iterable[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    """A matching with as many of the pairs as possible, of ``size`` sources and targets (Hopcroft, Karp 1973)."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import maximum_bipartite_matching

    rows, columns = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2).T
    graph = coo_array((np.ones(len(rows), dtype=bool), (rows, columns)), shape=(size, size)).tocsr()
    matched = maximum_bipartite_matching(graph, perm_type="column")
    return [(a, int(b)) for a, b in enumerate(matched) if b >= 0]
