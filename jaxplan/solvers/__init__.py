"""Solvers of the layout problem, on plain arrays: they know nothing of JAX.

`Problem` holds nodes with configurations and edges with matrices, `solve` returns one fastest assignment,
`frontier` all that nothing beats in both time and memory.
"""

from jaxplan.solvers._frontier import frontier as frontier
from jaxplan.solvers._problem import Problem as Problem
from jaxplan.solvers._solution import Solution as Solution
from jaxplan.solvers._solve import solve as solve
