"""Simulated steps beside timelines of compiled programs: do both hide the same communication?

    python -m benchmarks.quality.simulated                       # the recorded reference plans of all pairs
    python -m benchmarks.quality.simulated --pair resnet50@h100:8

The compiled figures are those of benchmarks/records/quality.jsonl: `_timeline` priced them from scheduled HLO with code
and rates of its own. Reference strategies are predicted again, with overlap; nothing is searched or compiled.
*Step* is the simulated step over the timeline's. *Step, same parts* takes the compute and the communication of the
timeline and hides of the communication the share that the simulation hides: its error is that of overlap alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from benchmarks.models import MODELS, build
from benchmarks.quality.__main__ import DEFAULT_LAYERS, layer_overrides
from benchmarks.quality._record import Record, read_records
from jaxplan.cost import Prediction
from jaxplan.mesh import Topology
from jaxplan.search._price import model_of_strategies
from jaxplan.search._traced import analyse_step
from jaxplan.simulate import predictor_of
from jaxplan.strategies import apply_strategies, reference_solution

RECORDS = Path(__file__).parent.parent / "records" / "quality.jsonl"
MEDIAN, TAIL = 0.05, 0.15
"""Bars: absolute errors in the median, and at the 95th percentile."""
HEADER = "| pair | plan | compiled ms | simulated ms | step | step, same parts | hidden, compiled | hidden, simulated |"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One recorded plan, and its prediction with overlap."""

    record: Record
    prediction: Prediction

    @property
    def error(self) -> float:
        """Of the simulated step."""
        return self.prediction.time_seconds / self.record.overlapped_seconds - 1

    @property
    def hidden_compiled(self) -> float:
        """Share of the communication that the timeline hides."""
        record = self.record
        hidden = record.compute_seconds + record.communication_seconds - record.overlapped_seconds
        return hidden / record.communication_seconds if record.communication_seconds else 0.0

    @property
    def hidden_simulated(self) -> float:
        """Share of the communication that the simulation hides."""
        found = self.prediction
        return found.hidden_seconds / found.communication_seconds if found.communication_seconds else 0.0

    @property
    def error_of_overlap(self) -> float:
        """Of a step with the timeline's compute and communication, of which the simulation's share is hidden."""
        record = self.record
        seen = record.communication_seconds * (1 - self.hidden_simulated)
        return (record.compute_seconds + seen) / record.overlapped_seconds - 1

    def line(self) -> str:
        return (
            f"| {self.record.pair} | {self.record.point} | {self.record.overlapped_seconds * 1e3:.3f} "
            f"| {self.prediction.time_seconds * 1e3:.3f} | {self.error:+.1%} | {self.error_of_overlap:+.1%} "
            f"| {self.hidden_compiled:.0%} | {self.hidden_simulated:.0%} |"
        )


def compared(records: Sequence[Record]) -> Iterator[Compared]:
    """The reference plans of one pair that were compiled."""
    model, where = records[0].model, records[0].topology
    step, args = build(model, **layer_overrides(model, DEFAULT_LAYERS)[0])
    topology = Topology.parse(where)
    donated = MODELS[model].donate_argnums
    graph = analyse_step(step, args, {}, donate_argnums=donated, static_argnums=())
    plans = apply_strategies(graph, topology).plans
    priced = model_of_strategies(plans, graph, topology, overlap=True)
    predictor = predictor_of(priced)
    for record in records:
        if record.point in plans and not record.failure:
            solution = reference_solution(priced, plans[record.point])
            yield Compared(record=record, prediction=predictor.predict(*solution)[0])


def figures(label: str, errors: Sequence[float]) -> str:
    """Quantiles of absolute errors beside their bars."""
    size = np.abs(errors)
    return (
        f"{label}: {len(errors)} plans, median {np.median(size):.1%} (bar {MEDIAN:.0%}), "
        f"95th percentile {np.quantile(size, 0.95):.1%} (bar {TAIL:.0%}), signed median {np.median(errors):+.1%}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks.quality.simulated", description="Simulated steps beside timelines of compiled programs."
    )
    parser.add_argument("--pair", metavar="MODEL@TOPOLOGY", action="append", help="default: all that are recorded")
    parser.add_argument("--records", type=Path, default=RECORDS, help="records of benchmarks.quality")
    options = parser.parse_args(arguments)
    jax.config.update("jax_platforms", "cpu")
    by_pair: dict[str, list[Record]] = {}
    for record in read_records([options.records]):
        by_pair.setdefault(record.pair, []).append(record)
    found: list[Compared] = []
    print(HEADER + "\n" + "|---" * HEADER.count(" | ") + "|---|")
    for pair in options.pair or by_pair:
        jax.clear_caches()
        for one in compared(by_pair[pair]):
            found.append(one)
            print(one.line(), flush=True)
    print()
    print(figures("simulated step", [one.error for one in found]))
    print(figures("the same with the timeline's compute and communication", [one.error_of_overlap for one in found]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
