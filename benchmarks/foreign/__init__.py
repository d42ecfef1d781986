"""Train steps around models from other people's packages: traced, planned, compiled without their devices, and run."""

from benchmarks.foreign._case import Case as Case
from benchmarks.foreign._registry import MODELS as MODELS
from benchmarks.foreign._registry import build as build
