"""Solvers of the layout problem on plain arrays; they know nothing of JAX."""

from jaxplan.solvers._problem import Problem as Problem
from jaxplan.solvers._solution import Solution as Solution
