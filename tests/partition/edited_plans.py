"""Plans with other lowering decisions than those that were made for them."""

from __future__ import annotations

import dataclasses
from typing import Any

import jaxplan
from jaxplan.core._once import Once


def with_lowering(plan: jaxplan.Plan, **changes: Any) -> jaxplan.Plan:
    """The plan, lowered with other values of these fields of `jaxplan.partition.Lowering`."""
    return dataclasses.replace(plan, decided=Once.of(dataclasses.replace(plan.lowering, **changes)))


def with_schedule(plan: jaxplan.Plan, **changes: Any) -> jaxplan.Plan:
    """The plan, lowered with other order constraints or barriers."""
    return with_lowering(plan, schedule=dataclasses.replace(plan.lowering.schedule, **changes))
