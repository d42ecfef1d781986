"""Reference strategies in the forms that practitioners use, as rules over named dimensions of the search space."""

from jaxplan.strategies._own import checked_names as checked_names
from jaxplan.strategies._own import own_strategies as own_strategies
from jaxplan.strategies._own import sketch_of_shardings as sketch_of_shardings
from jaxplan.strategies._reference import REFERENCE_STRATEGIES as REFERENCE_STRATEGIES
from jaxplan.strategies._reference import References as References
from jaxplan.strategies._reference import Strategy as Strategy
from jaxplan.strategies._reference import apply_strategies as apply_strategies
from jaxplan.strategies._reference import reference_names as reference_names
from jaxplan.strategies._reference import reference_solution as reference_solution
from jaxplan.strategies._step import Absent as Absent
from jaxplan.strategies._step import StrategyPlan as StrategyPlan
