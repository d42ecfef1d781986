"""The experiments by name, in the order of the page."""

from __future__ import annotations

from benchmarks.papers import (
    cost_model,
    flexflow_figure6,
    flexflow_placed,
    flexflow_section83,
    flexflow_table5,
    pase_figure6,
    pase_table1,
    pase_table2,
    tensoropt_figure6,
    tensoropt_figure7,
    tensoropt_figure8,
    tensoropt_table1,
    tensoropt_table3,
    tensoropt_table4,
    tofu_figure9,
    tofu_figure10,
    tofu_figure11,
    tofu_search_time,
    tofu_table1,
)
from benchmarks.papers._experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (
        tensoropt_table1,
        tensoropt_figure6,
        tensoropt_figure7,
        tensoropt_figure8,
        cost_model,
        tensoropt_table3,
        tensoropt_table4,
        pase_table1,
        pase_figure6,
        pase_table2,
        flexflow_figure6,
        flexflow_placed,
        flexflow_table5,
        flexflow_section83,
        tofu_table1,
        tofu_figure9,
        tofu_figure10,
        tofu_figure11,
        tofu_search_time,
    )
}
