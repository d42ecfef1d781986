"""A plan as the lowering sees it."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Protocol

from jaxplan.cost import Prediction
from jaxplan.ir import Configuration, Offload, StepGraph
from jaxplan.mesh import Sharding, Topology
from jaxplan.partition._lowering import Lowering
from jaxplan.partition._verified import Verified


class PlanLike(Protocol):
    """The fields of `jaxplan.Plan` that lowering, compiling and auditing read."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    @property
    def topology(self) -> Topology: ...
    @property
    def configurations(self) -> tuple[Configuration, ...]: ...
    @property
    def in_paths(self) -> tuple[str, ...]: ...
    @property
    def out_paths(self) -> tuple[str, ...]: ...
    @property
    def input_shardings(self) -> tuple[Sharding, ...]: ...
    @property
    def output_shardings(self) -> tuple[Sharding, ...]: ...
    @property
    def offload(self) -> Offload | None: ...
    @property
    def prediction(self) -> Prediction: ...
    @property
    def verified(self) -> Verified | None: ...
    @property
    def lowering(self) -> Lowering: ...

    def require_program(self) -> StepGraph: ...
