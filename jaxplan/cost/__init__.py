"""What a plan costs: compute, resharding, memory; as tables for the solvers and as the prediction of one plan."""

from jaxplan.cost._buffers import Buffers as Buffers
from jaxplan.cost._compute import flops_of as flops_of
from jaxplan.cost._flows import Flow as Flow
from jaxplan.cost._flows import boundary_layouts as boundary_layouts
from jaxplan.cost._flows import find_flows as find_flows
from jaxplan.cost._flows import layout_of as layout_of
from jaxplan.cost._in_place import LARGE_PARAMETER_BYTES as LARGE_PARAMETER_BYTES
from jaxplan.cost._model import CostModel as CostModel
from jaxplan.cost._model_builder import ModelBuilder as ModelBuilder
from jaxplan.cost._model_builder import build_cost_model as build_cost_model
from jaxplan.cost._overlapped import OverlappedPredictor as OverlappedPredictor
from jaxplan.cost._overlapped import predictor_of as predictor_of
from jaxplan.cost._prediction import Collective as Collective
from jaxplan.cost._prediction import Prediction as Prediction
from jaxplan.cost._prediction import Predictor as Predictor
from jaxplan.cost._pricing import KEEP as KEEP
from jaxplan.cost._pricing import REPEAT as REPEAT
from jaxplan.cost._residents import RESIDENTS as RESIDENTS
from jaxplan.cost._simulated_plan import PlanSimulator as PlanSimulator
from jaxplan.cost._simulated_plan import Simulation as Simulation
from jaxplan.cost._simulated_plan import simulate_plan as simulate_plan
from jaxplan.cost._simulated_plan import simulated_walks as simulated_walks
from jaxplan.cost._transfers import Span as Span
from jaxplan.cost._transfers import Transfer as Transfer
from jaxplan.cost._transfers import plan_transfers as plan_transfers
from jaxplan.cost._user_meshes import check_user_meshes as check_user_meshes
