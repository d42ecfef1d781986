"""Solvers of the sharding problem, on plain arrays: they know nothing of JAX.

`Problem` holds nodes with configurations and edges with matrices, `solve` returns one fastest assignment,
`frontier` all that nothing beats in both time and memory.
"""

from jaxplan.solvers._chain import Walk as Walk
from jaxplan.solvers._chain import additive_walks as additive_walks
from jaxplan.solvers._coalesce import coalesce as coalesce
from jaxplan.solvers._edge import Edge as Edge
from jaxplan.solvers._frontier import FRONTIER_SOLVERS as FRONTIER_SOLVERS
from jaxplan.solvers._frontier import SOLVERS as SOLVERS
from jaxplan.solvers._frontier import frontier as frontier
from jaxplan.solvers._frontier import outline as outline
from jaxplan.solvers._hull import Hull as Hull
from jaxplan.solvers._mcmc import ChainOptions as ChainOptions
from jaxplan.solvers._mcmc import Chains as Chains
from jaxplan.solvers._mcmc import walk_chains as walk_chains
from jaxplan.solvers._one_mesh import Meaning as Meaning
from jaxplan.solvers._one_mesh import one_mesh as one_mesh
from jaxplan.solvers._problem import Problem as Problem
from jaxplan.solvers._restrict import restrict as restrict
from jaxplan.solvers._single import heuristic_solution as heuristic_solution
from jaxplan.solvers._solution import Solution as Solution
from jaxplan.solvers._solution import bound_at as bound_at
from jaxplan.solvers._solution import relative_gap as relative_gap
from jaxplan.solvers._solve import solve as solve
from jaxplan.solvers._tofu import all_row_greedy as all_row_greedy
from jaxplan.solvers._tofu import all_row_random as all_row_random
from jaxplan.solvers._tofu import critical_dp as critical_dp
from jaxplan.solvers._tofu import greedy_largest_first as greedy_largest_first
from jaxplan.solvers._tofu import recursive_dp as recursive_dp
from jaxplan.solvers._triples import Triple as Triple
from jaxplan.solvers._triples import join_triples as join_triples
