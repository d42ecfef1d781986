"""Simulated execution of a plan: streams, overlap, and the resulting memory."""

from jaxplan.simulate._operator_walk import simulated_walks as simulated_walks
from jaxplan.simulate._overlapped import OverlappedPredictor as OverlappedPredictor
from jaxplan.simulate._overlapped import overlapped_bound as overlapped_bound
from jaxplan.simulate._overlapped import predictor_of as predictor_of
from jaxplan.simulate._pipeline import PipelineRun as PipelineRun
from jaxplan.simulate._pipeline import StageCost as StageCost
from jaxplan.simulate._pipeline import run_pipeline as run_pipeline
from jaxplan.simulate._schedules import Schedule as Schedule
from jaxplan.simulate._schedules import StageTask as StageTask
from jaxplan.simulate._schedules import gpipe as gpipe
from jaxplan.simulate._schedules import interleaved as interleaved
from jaxplan.simulate._schedules import one_f_one_b as one_f_one_b
from jaxplan.simulate._segment_seconds import segment_seconds as segment_seconds
from jaxplan.simulate._simulated_plan import PlanSimulator as PlanSimulator
from jaxplan.simulate._simulated_plan import Simulation as Simulation
from jaxplan.simulate._simulated_plan import simulate_plan as simulate_plan
