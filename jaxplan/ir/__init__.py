"""From jaxpr to a graph of tensor dimensions: trace, operator rules, groups, iteration spaces."""

from jaxplan.ir._configurations import MAX_CONFIGURATIONS as MAX_CONFIGURATIONS
from jaxplan.ir._configurations import Configuration as Configuration
from jaxplan.ir._configurations import common_block_devices as common_block_devices
from jaxplan.ir._configurations import enumerate_configurations as enumerate_configurations
from jaxplan.ir._dimensions import NamedDimension as NamedDimension
from jaxplan.ir._dimensions import NamedDimensions as NamedDimensions
from jaxplan.ir._dimensions import dimension_graph as dimension_graph
from jaxplan.ir._groups import UNGROUPED as UNGROUPED
from jaxplan.ir._groups import Group as Group
from jaxplan.ir._groups import Grouping as Grouping
from jaxplan.ir._model import StepGraph as StepGraph
from jaxplan.ir._model import analyse as analyse
from jaxplan.ir._program import Equation as Equation
from jaxplan.ir._program import Program as Program
from jaxplan.ir._program import Tensor as Tensor
from jaxplan.ir._registry import local_params as local_params
from jaxplan.ir._registry import operator_rule as operator_rule
from jaxplan.ir._registry import register_rule as register_rule
from jaxplan.ir._rule import Factor as Factor
from jaxplan.ir._rule import OperatorRule as OperatorRule
from jaxplan.ir._space import WHOLE as WHOLE
from jaxplan.ir._space import FactorClass as FactorClass
from jaxplan.ir._space import GroupSpace as GroupSpace
from jaxplan.ir._trace import trace as trace
from jaxplan.ir._values import Values as Values
