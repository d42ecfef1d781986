import itertools
import math

import numpy as np
import pytest
from random_problems import all_costs, brute_frontier, random_problem

from jaxplan import InfeasibleError, ProblemError
from jaxplan.solvers import ChainOptions, Chains, Problem, frontier, solve, walk_chains
from jaxplan.solvers._chain import ScoredWalk, additive_walks

SHORT = ChainOptions(num_proposals=400, num_random=1)


@pytest.mark.parametrize("seed", range(20))
def test_every_proposal_costs_as_much_as_the_changed_assignment(seed):
    problem = random_problem(seed)
    rng = np.random.default_rng(seed)
    walk = additive_walks(problem)([0] * problem.num_nodes)
    for _ in range(30):
        node = int(rng.integers(problem.num_nodes))
        label = int(rng.integers(problem.num_configurations[node]))
        changed = [label if n == node else old for n, old in enumerate(walk.assignment)]
        before = walk.cost
        assert walk.propose(node, label) == pytest.approx(problem.evaluate(changed)[0])
        assert walk.cost == before
        if rng.random() < 0.5:
            walk.accept()
            assert walk.assignment == changed and walk.cost == pytest.approx(problem.evaluate(changed)[0])


@pytest.mark.sample(4)
@pytest.mark.parametrize("seed", range(10))
def test_small_problems_are_solved_and_limits_kept(seed):
    problem = random_problem(seed, max_nodes=5)
    true = brute_frontier(problem)
    assert solve(problem, "mcmc").time == pytest.approx(true[-1][1])
    limit = true[len(true) // 2][0]
    # The walk takes the fastest choice of every edge, so a limit may be out of its reach.
    fastest = min(t for m, t in true if m <= limit)
    try:
        found = solve(problem, "mcmc", limit)
    except InfeasibleError as error:
        assert "heuristic" in str(error)
    else:
        assert found.memory <= limit and found.time >= fastest - 1e-9


def test_any_score_walks_the_chain_of_its_own_delta():
    problem = random_problem(5)
    whole = walk_chains(
        problem, lambda start: ScoredWalk(lambda a: problem.evaluate(a)[0], start), options=SHORT
    )
    delta = walk_chains(problem, additive_walks(problem), options=SHORT)
    assert whole.costs == pytest.approx(delta.costs)
    assert whole.assignment == delta.assignment


def test_equal_seeds_walk_equal_chains():
    problem = random_problem(7)
    runs = [
        walk_chains(problem, additive_walks(problem), options=ChainOptions(num_proposals=300, seed=seed))
        for seed in (1, 1, 2)
    ]
    assert runs[0] == runs[1] and runs[0].costs != runs[2].costs


def test_a_chain_ends_when_the_best_stays_for_half_of_its_budget():
    problem = Problem(time=[np.zeros(2), np.zeros(3)])
    result = walk_chains(
        problem, additive_walks(problem), [(0, 0)], ChainOptions(num_proposals=100, num_random=0)
    )
    assert len(result.costs) == 51


def test_accepted_shares_follow_equation_one():
    """Two labels, costs 1 and 1 + d: in the long run the dearer one is held exp(-beta d) as often."""
    dearer = 0.3
    problem = Problem(time=[np.array([1.0, 1.0 + dearer])])
    options = ChainOptions(num_proposals=40_000, num_random=0, patience=1.0, sharpness=4.0)
    result = walk_chains(problem, additive_walks(problem), [(0,)], options)
    share = sum(cost > 1.1 for cost in result.costs) / sum(cost < 1.1 for cost in result.costs)
    assert share == pytest.approx(math.exp(-4.0 * dearer), rel=0.1)


def test_chains_leave_forbidden_assignments():
    unequal = np.where(np.eye(3, dtype=bool), 0.0, np.inf)
    problem = Problem(time=[np.arange(3.0)] * 4, edges=[(v, v + 1, unequal) for v in range(3)])
    best = min(time for _, time in all_costs(problem))
    assert best == 0.0
    result = walk_chains(problem, additive_walks(problem), [(0, 2, 1, 0)], SHORT)
    assert math.isfinite(problem.evaluate(result.assignment)[0])


def test_nothing_to_start_from_is_an_error():
    problem = random_problem(0)
    with pytest.raises(ProblemError, match="nothing to start from"):
        walk_chains(problem, additive_walks(problem), options=ChainOptions(num_random=0))


@pytest.mark.sample(4)
@pytest.mark.parametrize("seed", range(10))
def test_chains_return_the_frontier_that_they_saw(seed):
    """On small problems they see everything: on additive costs the frontier is that of all assignments."""
    problem = random_problem(seed, max_nodes=4, max_labels=3)
    every = np.array(list(itertools.product(*map(range, problem.num_configurations))))
    times, memories, _ = problem.evaluate_many(every)
    points = sorted({(int(m), float(t)) for m, t in zip(memories, times)})
    true = [(m, t) for m, t in points if not any(a <= m and b <= t and (a, b) != (m, t) for a, b in points)]
    options = ChainOptions(num_random=3, num_proposals=4000, patience=1.0, sharpness=0.2)
    found = walk_chains(problem, additive_walks(problem), options=options)
    assert [(seen.memory, pytest.approx(seen.cost)) for seen in found.seen] == true
    chains = Chains(walk_from=additive_walks(problem), options=options)
    solutions = frontier(problem, "mcmc", chains=chains)
    assert [(point.memory, pytest.approx(point.time)) for point in solutions] == true
    assert [point.memory for point in frontier(problem, "mcmc", chains=chains, max_points=2)][-1] == true[-1][0]


def test_a_chain_ends_when_its_seconds_are_over():
    problem = random_problem(2)
    options = ChainOptions(num_random=1, num_proposals=10**9, seconds=0.05)
    assert len(walk_chains(problem, additive_walks(problem), options=options).costs) < 10**6
