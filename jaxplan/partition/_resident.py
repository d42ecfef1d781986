"""Which operands are in memory when an equation reads them, and the live bytes of a plan at each equation."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from jaxplan.cost import WORKSPACE, CostModel, LiveRanges, Transfer
from jaxplan.cost._masked_rows import MaskedCopies
from jaxplan.cost._padded_images import PaddedImages
from jaxplan.cost._plan_shardings import PlanShardings
from jaxplan.ir import Equation
from jaxplan.xla import Buffers, analyse_buffers


class Resident:
    """Buffers of one plan, as the prediction has them.

    Attributes:
      shardings: of the plan.
      buffers: with the order of execution that is predicted.
      in_order: as if every dot ran where the program has it.
    """

    def __init__(self, shardings: PlanShardings, model: CostModel) -> None:
        self.shardings, self.buffers, self._model = shardings, model.buffers, model

    @functools.cached_property
    def in_order(self) -> Buffers:
        return analyse_buffers(self.shardings.graph, self.shardings.target, in_order=True)

    @functools.cached_property
    def curve(self) -> np.ndarray:
        """(equations + 1,) live bytes on a device at each equation, by the live ranges of the prediction, as if every
        dot ran where the program has it.

        Arguments are excluded, and the workspace of dots: every stretch that is compared begins with one.
        """
        shardings = self.shardings
        assignment = [0] * len(shardings.configurations)
        ranges = LiveRanges(self._in_order_model).of(assignment, shardings.configurations, shardings.transfers)
        ranges = dataclasses.replace(ranges, sizes=np.where(np.array(ranges.labels) == WORKSPACE, 0, ranges.sizes))
        end = len(shardings.graph.program.equations)
        return ranges.curve()[: 2 * end + 2].reshape(end + 1, 2).max(axis=1)

    @functools.cached_property
    def padded(self) -> dict[int, int]:
        """Convolution or ragged dot -> bytes of the copies that it reads in place of its first operand, as the last."""
        configurations, model = self.shardings.configurations, self._in_order_model
        padded = PaddedImages(model).read_last_by([0] * len(configurations), configurations)
        return padded | MaskedCopies(model).read_by_gradients(configurations)

    @property
    def _in_order_model(self) -> CostModel:
        return dataclasses.replace(self._model, buffers=self.in_order)

    def is_resident(self, eqn: Equation, position: int) -> bool:
        """Whether an operand is in memory, not computed inside of the dot that reads it."""
        t = eqn.operands[position]
        if not self.shardings.target.fuses_operands:
            return True
        return self.is_moved(self.shardings.copy_of(eqn, t)) or self.buffers.materialised[t]

    @staticmethod
    def is_moved(copy: Transfer | None) -> bool:
        """Whether a transfer communicates: its copy is a buffer; a slice is taken where it is read."""
        return bool(copy and copy.collectives)
