"""Plans of random steps with their compiled memory, to be predicted again without a search and without a compiler."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from benchmarks import _record
from benchmarks.accuracy._population import draw_step
from jaxplan.cost import KEEP, REPEAT, ModelBuilder
from jaxplan.mesh import Topology
from jaxplan.plans._plan import Plan
from jaxplan.search._bind import Binder
from jaxplan.simulate import predictor_of
from jaxplan.xla import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnPlan:
    """One plan of the step of a seed.

    Attributes:
      model: description of the step, which begins with its seed (`Drawn.name`).
      point: the name that it was compiled by.
      plan: JSON data of `jaxplan.Plan`.
      predicted_memory, compiled_memory: bytes.
    """

    model: str
    point: str
    plan: dict[str, Any]
    predicted_memory: int
    compiled_memory: int

    @property
    def seed(self) -> int:
        """That of the step."""
        return int(self.model.split(":")[0])


def read_plans(*paths: Path) -> list[DrawnPlan]:
    """The plans of files of JSON lines, in order."""
    return [DrawnPlan(**line) for line in _record.read_lines(*paths)]


def predicted_again(plans: Sequence[DrawnPlan], without: Collection[str] = ()) -> Iterator[tuple[DrawnPlan, int]]:
    """Each plan with its memory in bytes as it is predicted now, ``without`` the compiler rules of these names."""
    for seed, members in itertools.groupby(plans, key=lambda plan: plan.seed):
        jax.clear_caches()
        drawn = draw_step(seed)
        binder = Binder(step=drawn.step, args=drawn.args, kwargs={})
        for member in members:
            yield member, _memory(binder.bind(Plan.from_json(member.plan)), without)


def _memory(plan: Plan, without: Collection[str]) -> int:
    topology: Topology = plan.topology
    target = Target.of(topology.chip, topology.num_devices, without)
    builder = ModelBuilder(plan.require_program(), topology, target=target)
    model = builder.build([(config,) for config in plan.configurations])
    wanted = frozenset(plan.repeated)
    choices = [REPEAT if wanted.intersection(reads) else KEEP for reads in model.edge_reads]
    return predictor_of(model).predict([0] * len(plan.configurations), choices)[0].memory_bytes
