"""Groups share configurations only where the same splits divide them."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import pytest

from jaxplan.cost import build_cost_model
from jaxplan.mesh import Topology
from jaxplan.search._traced import analyse_step
from tests.cost.one_device import shape


def _step(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    return tuple(jnp.cumsum(jnp.tanh(x), 1) for x in arrays)


@pytest.mark.parametrize("limited", [0, -1])
def test_a_group_with_windows_has_no_more_parts_than_they_may_have(limited: int) -> None:
    """Two groups of equal sizes, one of which windows limit to three parts, as those of a pooling's gradient do."""
    where = Topology.parse("cpu:6")
    graph = analyse_step(_step, (shape(6, 5),) * 3, {}, donate_argnums=(), static_argnums=())
    spaces = list(graph.spaces)
    front = graph.named.front  # its class takes axes in another order
    alike = [v for v, space in enumerate(spaces) if any(cls.named_dimension != front for cls in space.classes)]
    chosen = alike[limited]
    assert len(alike) > 1
    classes = tuple(dataclasses.replace(cls, most_parts=3) for cls in spaces[chosen].classes)
    spaces[chosen] = dataclasses.replace(spaces[chosen], classes=classes)
    model = build_cost_model(dataclasses.replace(graph, spaces=tuple(spaces)), where)
    for v in alike:
        parts = [math.prod(where.axes[a].size for axes in config for a in axes) for config in model.configurations[v]]
        assert max(parts) == (3 if v == chosen else 6)
