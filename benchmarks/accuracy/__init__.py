"""Predictions of plans beside the programs that the compiler makes of them: `python -m benchmarks.accuracy`."""

from benchmarks.accuracy._models import HELD_OUT as HELD_OUT
from benchmarks.accuracy._models import MODELS as MODELS
from benchmarks.accuracy._models import TOPOLOGIES as TOPOLOGIES
from benchmarks.accuracy._record import Record as Record
from benchmarks.accuracy._record import read_records as read_records
