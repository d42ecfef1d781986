"""The experiments by name, in the order of the page."""

from __future__ import annotations

from benchmarks.papers import pase_figure6, pase_table1, pase_table2
from benchmarks.papers._experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (
        pase_table1,
        pase_figure6,
        pase_table2,
    )
}
