"""A plan in stages as its execution sees it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from jaxplan.ir import MicroBatches, StepGraph
from jaxplan.ir.stages import Cut, Part
from jaxplan.mesh import Sharding, Topology
from jaxplan.partition._plan_like import PlanLike
from jaxplan.partition._verified import Verified


class StageLike(Protocol):
    """One stage of a plan."""

    @property
    def first_device(self) -> int: ...
    @property
    def plan(self) -> PlanLike: ...


class StagedLike(Protocol):
    """The fields of `jaxplan.plans.StagedPlan` that execution reads."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    @property
    def topology(self) -> Topology: ...
    @property
    def microbatches(self) -> MicroBatches | None: ...
    @property
    def schedule(self) -> str: ...
    @property
    def stages(self) -> Sequence[StageLike]: ...
    @property
    def cut(self) -> Cut | None: ...
    @property
    def parts(self) -> Sequence[Part]: ...
    @property
    def in_stages(self) -> tuple[int, ...]: ...
    @property
    def verified(self) -> Verified | None: ...
    @property
    def input_shardings(self) -> tuple[Sharding, ...]: ...

    def require_program(self) -> StepGraph: ...
