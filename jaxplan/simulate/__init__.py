"""Simulated execution of a plan: streams, overlap, and the resulting memory."""

from jaxplan.simulate._operator_walk import simulated_walks as simulated_walks
from jaxplan.simulate._overlapped import OverlappedPredictor as OverlappedPredictor
from jaxplan.simulate._overlapped import predictor_of as predictor_of
from jaxplan.simulate._simulated_plan import PlanSimulator as PlanSimulator
from jaxplan.simulate._simulated_plan import Simulation as Simulation
from jaxplan.simulate._simulated_plan import simulate_plan as simulate_plan
