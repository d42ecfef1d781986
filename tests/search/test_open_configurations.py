"""Configurations opened step by step: laws of neighbours, and plans no worse than those of all configurations."""

import math

import jax
import jax.numpy as jnp
import pytest

from jaxplan.cost import ModelBuilder
from jaxplan.ir import COARSE_CONFIGURATIONS, FactorClass, enumerate_configurations, neighbours
from jaxplan.mesh import Topology
from jaxplan.search import _open_configurations as _hierarchy
from jaxplan.search._traced import analyse_step
from jaxplan.solvers import solve
from tests.small_steps import AUTOENCODER_ARGS, autoencoder_step


def axes_of(machine: str) -> tuple[list[int], list[int]]:
    axes = Topology.parse(machine).axes
    return [axis.size for axis in axes], [axis.level for axis in axes]


@pytest.mark.parametrize("machine", ["h100:4", "h100:4x4", "h100:3x6"])
def test_neighbours_differ_in_one_axis_and_reach_everything(machine: str) -> None:
    """From the replicated configuration, step by step, exactly the configurations that there are."""
    sizes, levels = axes_of(machine)
    classes = (FactorClass(sizes=(24,), named_dimension=0), FactorClass(sizes=(12, 36), named_dimension=1))
    start = ((), ())
    reached, waiting = {start}, [start]
    while waiting:
        config = waiting.pop()
        found = neighbours(config, classes, sizes, levels)
        assert config not in found and len(set(found)) == len(found)
        for other in found:
            kinds = [
                [sum(1 for a in taken if (sizes[a], levels[a]) == kind) for taken in c]
                for c in (config, other)
                for kind in sorted(set(zip(sizes, levels)))
            ]
            half = len(kinds) // 2
            moved = sum(abs(a - b) for one, two in zip(kinds[:half], kinds[half:]) for a, b in zip(one, two))
            assert moved in (1, 2)  # given or taken back, or handed over
            assert config in neighbours(other, classes, sizes, levels)
        new = set(found) - reached
        reached |= new
        waiting += sorted(new)
    assert reached == set(enumerate_configurations(classes, sizes, levels))


def test_few_at_first_and_what_is_needed_among_them() -> None:
    sizes, levels = axes_of("h100:512x8")
    for num_classes in range(1, 8):
        classes = tuple(FactorClass(sizes=(1 << 20,), named_dimension=k) for k in range(num_classes))
        found = enumerate_configurations(classes, sizes, levels, most=COARSE_CONFIGURATIONS)
        assert len(found) <= COARSE_CONFIGURATIONS
        outer = tuple(a for a, level in enumerate(levels) if level == 0)
        inner = tuple(a for a, level in enumerate(levels) if level == 1)
        nobody = ((),) * num_classes
        everything = tuple(range(len(sizes)))
        assert nobody in found and (everything, *nobody[1:]) in found  # data parallelism
        if num_classes > 1:
            splits = {tuple(tuple(sorted(axes)) for axes in config) for config in found}
            assert (outer, inner, *nobody[2:]) in splits  # tensor parallelism within a node


def test_all_are_priced_where_they_are_few() -> None:
    graph = analyse_step(autoencoder_step, AUTOENCODER_ARGS, {}, donate_argnums=(0,), static_argnums=())
    opened = _hierarchy.open_configurations(graph, Topology.parse("h100:8"))
    assert opened.has_all and opened.num_rounds == 0 and opened.certificate() is None
    assert opened.model.configurations == ModelBuilder(graph, Topology.parse("h100:8")).configurations()


def test_what_is_opened_step_by_step_is_no_worse_than_what_it_began_with(monkeypatch) -> None:
    topology = Topology.parse("h100:2x4")
    graph = analyse_step(autoencoder_step, AUTOENCODER_ARGS, {}, donate_argnums=(0,), static_argnums=())
    builder = ModelBuilder(graph, topology)
    monkeypatch.setattr(ModelBuilder, "has_all", lambda self: False)
    monkeypatch.setattr(_hierarchy, "MOST_PAIRS", 0)
    monkeypatch.setattr(_hierarchy, "COARSE_CONFIGURATIONS", 8)
    opened = _hierarchy.open_configurations(graph, topology)
    coarse, whole = builder.build(builder.configurations(8)), builder.build(builder.configurations())
    for few, some, every in zip(
        coarse.configurations, opened.model.configurations, whole.configurations, strict=True
    ):
        assert set(few) <= set(some) and some[0] == few[0]
        assert {tuple(map(frozenset, c)) for c in some} <= {tuple(map(frozenset, c)) for c in (*few, *every)}
    assert solve(opened.model.problem).time <= solve(coarse.problem).time
    assert opened.num_rounds >= 1 and "that were opened, at most" in (opened.certificate() or "")


def test_cost_around_a_group_is_what_the_problem_says() -> None:
    """One group's configuration changed: the same difference as between two evaluations of the problem."""
    topology = Topology.parse("h100:2x2")
    graph = analyse_step(autoencoder_step, AUTOENCODER_ARGS, {}, donate_argnums=(0,), static_argnums=())
    builder = ModelBuilder(graph, topology)
    model = builder.build(builder.configurations())
    base = [0] * model.problem.num_nodes
    keep = [0] * len(model.problem.edges)
    chosen = list(model.chosen(base))
    time, memory, _ = model.problem.evaluate(base, keep)
    for v, configs in enumerate(model.configurations):
        around, own = builder.neighbourhood_cost(v, chosen), builder.own_costs(v, configs)
        before = around.cost(chosen[v], own[0])
        for label in range(0, len(configs), 3):
            changed = [*base[:v], label, *base[v + 1 :]]
            after = around.cost(configs[label], own[label])
            new_time, new_memory, _ = model.problem.evaluate(changed, keep)
            assert math.isclose(after[0] - before[0], new_time - time, rel_tol=1e-9, abs_tol=1e-12)
            assert after[1] - before[1] == new_memory - memory
            for most in (after[0] * 0.5, after[0] * 1.1):  # bounded instead of priced where it comes to so much
                seconds, num_bytes = around.cost(configs[label], own[label], 0.0, most)
                exact = seconds == pytest.approx(after[0]) and num_bytes == after[1]
                assert exact or (most <= seconds <= after[0] and num_bytes <= after[1])
    assert chosen == list(model.chosen(base))


def test_equal_costs_do_not_make_groups_one_kind() -> None:
    """Two square dots, one with its rows split and the other its columns: each keeps its own configurations."""

    def step(a, b, c, d):
        return a @ b, c @ d

    topology, square = Topology.parse("h100:2x2"), jax.ShapeDtypeStruct((64, 64), jnp.float32)
    graph = analyse_step(step, (square,) * 4, {}, donate_argnums=(), static_argnums=())
    builder = ModelBuilder(graph, topology)
    configurations, dots = list(builder.configurations()), []
    for dim, eqn in enumerate(graph.program.equations):
        group = graph.grouping.tensor_group[eqn.results[0]]
        (split,) = graph.spaces[group].tensor_dims[eqn.results[0]][dim]  # the rows of one, the columns of the other
        config = tuple((0, 1) if c == split else () for c in range(3))
        configurations[group] = ((), (), ()), config
        dots.append(group)
    model = builder.build(configurations)
    first, second = dots
    assert model.problem.time[first].tolist() == model.problem.time[second].tolist()
    kind = next(members for members in _hierarchy._kinds(model) if first in members)
    assert second not in kind
