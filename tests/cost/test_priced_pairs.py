"""Pairs of configurations that only a strategy asks for: their prices, and that nothing else changes."""

import numpy as np

from jaxplan.cost import ModelBuilder
from jaxplan.cost._priced_pairs import PricedPairs
from jaxplan.mesh import Topology
from jaxplan.search._traced import analyse_step
from jaxplan.solvers import solve
from jaxplan.strategies import apply_strategies, reference_solution
from tests.small_steps import AUTOENCODER_ARGS, autoencoder_step

WHOLE, BATCH, WIDTH, BOTH = ((), ()), ((0,), ()), ((), (0,)), ((0,), (1,))


def test_tied_configurations_go_with_their_strategy_and_with_the_replicated_one():
    configs = (WHOLE, BATCH, WIDTH, BOTH)
    priced_pairs = PricedPairs.of(((BATCH, BATCH), (BOTH, WIDTH)), (frozenset({BOTH}), frozenset({WIDTH})))
    mask = priced_pairs.wanted(0, 1, configs, configs)
    assert mask is not None
    expected = [  # columns: WHOLE, BATCH, WIDTH (tied), BOTH
        [True, True, True, True],
        [True, True, False, True],
        [True, True, False, True],
        [True, False, True, False],  # BOTH is tied in the first group: with WIDTH alone, as its strategy has it
    ]
    assert mask.tolist() == expected
    assert priced_pairs.wanted(0, 1, configs, configs) is mask
    nothing = (frozenset(), frozenset())
    used = (frozenset({BOTH}), frozenset({WIDTH}))
    assert priced_pairs.opening(nothing, used).wanted(0, 1, configs, configs) is None


def test_opened_configurations_go_with_what_is_used_and_with_each_other():
    configs, nothing = (WHOLE, BATCH, WIDTH, BOTH), (frozenset(), frozenset())
    priced_pairs = PricedPairs.of((), nothing)
    assert priced_pairs.wanted(0, 1, configs, configs) is None
    both = frozenset({BOTH})
    mask = priced_pairs.opening((both, both), (frozenset({BATCH}), frozenset({WIDTH}))).wanted(0, 1, configs, configs)
    assert mask is not None
    assert mask.tolist() == [
        [True, True, True, True],
        [True, True, True, True],  # used, so with BOTH too
        [True, True, True, False],
        [True, False, True, True],  # BOTH goes with WIDTH, which is used, and with BOTH
    ]


def test_strategies_cost_what_they_cost_where_all_pairs_are_priced():
    topology = Topology.parse("h100:2x4")
    graph = analyse_step(autoencoder_step, AUTOENCODER_ARGS, {}, donate_argnums=(0,), static_argnums=())
    strategy_plans = apply_strategies(graph, topology).plans
    strategies = [strategy_plan.configurations for strategy_plan in strategy_plans.values()]
    builder = ModelBuilder(graph, topology, tuple(map(frozenset, zip(*strategies, strict=True))))
    configurations = builder.configurations(6)
    whole = builder.build(configurations)
    priced_pairs = builder.priced_pairs(6, strategies)
    assert any(priced_pairs.configurations)
    sparse = builder.build(configurations, priced_pairs=priced_pairs)
    num_priced = [sum(int(np.isfinite(e.time).sum()) for e in m.problem.edges) for m in (sparse, whole)]
    assert num_priced[0] < num_priced[1]
    for strategy_plan in strategy_plans.values():
        found = [reference_solution(model, strategy_plan) for model in (whole, sparse)]
        assert found[0] == found[1]
        times = [m.problem.evaluate(*f)[:2] for m, f in zip((whole, sparse), found)]
        assert times[0] == times[1] and np.isfinite(times[0][0])
    assert solve(whole.problem).time <= solve(sparse.problem).time
    for one, two in zip(sparse.problem.edges, whole.problem.edges, strict=True):
        priced = np.isfinite(one.time)
        np.testing.assert_array_equal(one.time[priced], two.time[priced])


def test_what_costs_too_much_is_not_looked_at_further():
    topology = Topology.parse("h100:2x2")
    graph = analyse_step(autoencoder_step, AUTOENCODER_ARGS, {}, donate_argnums=(0,), static_argnums=())
    builder = ModelBuilder(graph, topology)
    model = builder.build(builder.configurations())
    chosen = list(model.chosen([0] * model.problem.num_nodes))
    for v, configs in enumerate(model.configurations):
        around = builder.neighbourhood_cost(v, chosen)
        for config, costs in zip(configs, builder.own_costs(v, configs), strict=True):
            seconds, num_bytes = around.cost(config, costs)
            assert costs[0] <= seconds and costs[1] <= num_bytes
            assert builder.own_costs(v, (config,)) == [costs]
            assert around.cost(config, costs, 0.0, costs[0]) == costs
