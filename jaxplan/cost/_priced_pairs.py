"""Which pairs of configurations are priced where all pairs would be too many.

A reference strategy adds to each group one configuration that the search space would leave out, and to price all of
them beside all others takes longer than everything else. Beside the rest of its own strategy each is one pair of
layouts. Configurations that are opened later are priced beside those that plans use, and beside each other. A pair that
is not priced takes infinite time: strategies stay points of the problem, mixtures with them are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from jaxplan.core._interner import Memo
from jaxplan.ir import Configuration


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PricedPairs:
    """Which pairs of configurations are priced.

    Attributes:
      strategies: each a configuration for every group.
      configurations: per group, those that go with the rest of their strategy alone.
      opened: per group, those that are paired with used ones and with each other alone.
      used: per group, those that plans use.
    """

    strategies: tuple[tuple[Configuration, ...], ...]
    configurations: tuple[frozenset[Configuration], ...]
    opened: tuple[frozenset[Configuration], ...]
    used: tuple[frozenset[Configuration], ...]
    _masks: dict = field(default_factory=dict)
    _of_ends: Memo = field(default_factory=Memo)
    _kinds: dict = field(default_factory=dict)
    _first: dict = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        strategies: Sequence[Sequence[Configuration]],
        configurations: Sequence[frozenset[Configuration]],
    ) -> PricedPairs:
        """The beginning: nothing was opened yet, and nothing is known to be used."""
        nothing = (frozenset[Configuration](),) * len(configurations)
        return cls(
            strategies=tuple(map(tuple, strategies)),
            configurations=tuple(configurations),
            opened=nothing,
            used=nothing,
        )

    def opening(
        self, new: Sequence[frozenset[Configuration]], used: Sequence[frozenset[Configuration]]
    ) -> PricedPairs:
        """The same with more opened and more used; used ones are paired with all others."""
        return PricedPairs(
            strategies=self.strategies,
            configurations=tuple(map(frozenset.difference, self.configurations, used)),
            opened=tuple(map(frozenset.union, self.opened, new)),
            used=tuple(map(frozenset.union, self.used, used)),
        )

    def wanted(
        self, u: int, v: int, of_u: tuple[Configuration, ...], of_v: tuple[Configuration, ...]
    ) -> np.ndarray | None:
        """Which pairs of configurations of two groups are priced, (K_u, K_v); None where all of them are.

        The replicated one goes with everything: scalars, tiny state and sums that are none take it.
        """
        ends = (*self._of_ends.numbers((of_u, of_v)), self._kind(u), self._kind(v))
        if ends not in self._of_ends:
            self._of_ends[ends] = self._mask(u, v, of_u, of_v)
        return self._of_ends[ends]

    def _kind(self, v: int) -> int:
        """The first group of which everything that decides masks is the same."""
        if v not in self._kinds:
            limits = self.configurations[v], self.opened[v], self.used[v]
            self._kinds[v] = self._first.setdefault((limits, *(s[v] for s in self.strategies)), v)
        return self._kinds[v]

    def _mask(
        self, u: int, v: int, of_u: tuple[Configuration, ...], of_v: tuple[Configuration, ...]
    ) -> np.ndarray | None:
        """Of `wanted`; equal ones are one object."""
        limited = [(self.configurations[w], self.opened[w], self.used[w]) for w in (u, v)]
        if not any(priced_pairs or opened for priced_pairs, opened, _ in limited):
            return None
        pairs = frozenset((strategy[u], strategy[v]) for strategy in self.strategies)
        key = (of_u, of_v, *limited, pairs)
        if key not in self._masks:
            free, new, near = ([], [], [])
            for of, (priced_pairs, opened, used) in zip((of_u, of_v), limited):
                free.append([c not in priced_pairs and c not in opened for c in of])
                new.append([c in opened for c in of])
                near.append([c in opened or c in used for c in of])
            mask = np.logical_and.outer(*free)
            mask |= np.logical_and.outer(new[0], near[1]) | np.logical_and.outer(near[0], new[1])
            mask[0, :] = mask[:, 0] = True
            places_u, places_v = ({c: k for k, c in enumerate(of)} for of in (of_u, of_v))
            for one, two in pairs:
                if one in places_u and two in places_v:
                    mask[places_u[one], places_v[two]] = True
            self._masks[key] = None if mask.all() else mask
        return self._masks[key]
