"""Train steps around models from other people's packages: traced, planned, compiled without their devices, and run."""

from benchmarks.compat._case import Case as Case
from benchmarks.compat._registry import MODELS as MODELS
from benchmarks.compat._registry import build as build
