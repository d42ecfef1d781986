"""An assignment without a forbidden entry, where deciding one node after the other runs into one.

Nodes are decided in order, each at least cost beside the decided ones and the messages of the rest; after each
decision, configurations that fit no remaining one of a neighbour are dropped (arc consistency: Mackworth,
10.1016/0004-3702(77)90007-8), and a decision that leaves a node nothing is taken back.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from jaxplan.core._interner import Memo
from jaxplan.solvers._messages import Messages, Network

# Decisions taken back before giving up.
_MOST_TAKEN_BACK = 1000


def round_consistently(network: Network, messages: Messages) -> tuple[int, ...] | None:
    """Return an assignment below the network's ceiling, None where so many decisions do not lead to one.

    Args:
      network: its entries from the ceiling up are forbidden.
      messages: pointing down, as they do after a sweep.
    """
    return _Rounding(network, messages).run()


class _Rounding:
    """Configurations that are left of each node, and the decisions so far.

    Attributes:
      alive: (K_v,) booleans of each node.
      decided: configuration of each node so far.
    """

    def __init__(self, network: Network, messages: Messages) -> None:
        self.network, self.messages = network, messages
        self.alive = [costs < network.ceiling for costs in network.nodes]
        self.decided: list[int] = []
        self._allowed: list[list[tuple[int, np.ndarray]]] = [[] for _ in network.nodes]
        masks = Memo()
        for (u, v), table, flipped in zip(network.pairs, network.tables, network.flipped):
            for own, other, costs in ((u, v, table), (v, u, flipped)):
                number = masks.number(costs)
                if number not in masks:
                    mask = costs < network.ceiling
                    masks[number] = None if mask.all() else mask
                mask = masks[number]
                if mask is not None:
                    self._allowed[own].append((other, mask))

    def run(self) -> tuple[int, ...] | None:
        num_nodes = len(self.network.nodes)
        if not self._propagate(range(num_nodes), {}):
            return None
        undo: list[dict[int, np.ndarray]] = []
        taken_back = 0
        while len(self.decided) < num_nodes:
            node = len(self.decided)
            label = self._cheapest(node)
            before = {node: self.alive[node]}
            self.alive[node] = np.arange(len(before[node])) == label
            self.decided.append(label)
            undo.append(before)
            while not self._propagate([node], before):
                taken_back += 1
                if not undo or taken_back > _MOST_TAKEN_BACK:
                    return None
                node, before = self._take_back(undo)
        return tuple(self.decided)

    def _take_back(self, undo: list[dict[int, np.ndarray]]) -> tuple[int, dict[int, np.ndarray]]:
        """Restore the configurations dropped by the last decision, and drop its own, for the decision before it."""
        label = self.decided.pop()
        node = len(self.decided)
        for other, rows in undo.pop().items():
            self.alive[other] = rows
        before = undo[-1] if undo else {}
        before.setdefault(node, self.alive[node])
        self.alive[node] = self.alive[node].copy()
        self.alive[node][label] = False
        return node, before

    def _cheapest(self, node: int) -> int:
        """Return the living configuration of least cost beside the decided nodes and the messages of the others."""
        costs = self.network.nodes[node]
        for edge, other in self.messages.lower[node]:
            costs = costs + self.network.flipped[edge][:, self.decided[other]]
        for edge, _ in self.messages.upper[node]:
            costs = costs + self.messages.current[edge]
        return int(np.where(self.alive[node], costs, np.inf).argmin())

    def _propagate(self, changed: Iterable[int], before: dict[int, np.ndarray]) -> bool:
        """Drop configurations that fit no neighbour's; return whether every node has one left.

        Args:
          changed: nodes that lost configurations.
          before: node -> its earlier configurations, for those that change; added to.
        """
        pending = dict.fromkeys(changed)
        while pending:
            node = next(iter(pending))
            del pending[node]
            living = self.alive[node]
            if not living.any():
                return False
            for other, mask in self._allowed[node]:
                left = self.alive[other] & mask[living].any(axis=0)
                if left.sum() < self.alive[other].sum():
                    before.setdefault(other, self.alive[other])
                    self.alive[other] = left
                    pending[other] = None
        return True
