"""Configurations that a reference strategy alone needs: priced beside those of the same strategy, not beside all.

A strategy adds to each group one configuration that the search space would leave out, and to price all of them beside
all others takes longer than everything else. Beside the rest of its own strategy each is one pair of layouts. A pair
that is not priced takes infinite time: the strategy stays a point of the problem, mixtures with it are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from jaxplan.ir import Configuration


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tied:
    """Which pairs of configurations are priced.

    Attributes:
      strategies: each a configuration for every group.
      configurations: per group, those that go with the rest of their strategy alone.
    """

    strategies: tuple[tuple[Configuration, ...], ...]
    configurations: tuple[frozenset[Configuration], ...]
    _masks: dict = field(default_factory=dict)

    def without(self, used: Sequence[frozenset[Configuration]]) -> Tied:
        """The same where some configurations of each group go with all others."""
        left = tuple(tied - free for tied, free in zip(self.configurations, used, strict=True))
        return Tied(strategies=self.strategies, configurations=left)

    def wanted(
        self, u: int, v: int, of_u: tuple[Configuration, ...], of_v: tuple[Configuration, ...]
    ) -> np.ndarray | None:
        """Which pairs of configurations of two groups are priced, (K_u, K_v); None where all of them are.

        The replicated one goes with everything: scalars, tiny state and sums that are none take it.
        """
        tied_u, tied_v = self.configurations[u], self.configurations[v]
        if not tied_u and not tied_v:
            return None
        pairs = frozenset((strategy[u], strategy[v]) for strategy in self.strategies)
        key = (of_u, of_v, tied_u, tied_v, pairs)
        if key not in self._masks:
            free_u, free_v = ([c not in tied for c in of] for tied, of in ((tied_u, of_u), (tied_v, of_v)))
            mask = np.logical_and.outer(free_u, free_v)
            mask[0, :] = mask[:, 0] = True
            places_u, places_v = ({c: k for k, c in enumerate(of)} for of in (of_u, of_v))
            for one, two in pairs:
                if one in places_u and two in places_v:
                    mask[places_u[one], places_v[two]] = True
            self._masks[key] = None if mask.all() else mask
        return self._masks[key]
