"""Whether the reference strategies are the same of one model however it is written.

    python -m benchmarks.quality.references
    python -m benchmarks.quality.references --topology a100:8 --only recurrent
    python -m benchmarks.quality.references --only accumulation --compile   # needs the GPU compiler, no GPU
    python -m benchmarks.quality.references --write docs/strategies.md      # the lines over 5 %

First table: a model in its plain form and in others (time before the batch, features before it, under `jax.vmap`,
scanned over layers): time and memory of `data`, `zero2` and `fsdp`, and their ratio to the plain form's. Second table:
gradients added up over K micro-batches, cut in several ways, `data` beside K plain steps of a K-th of the batch with
one sum of the gradients, and its memory beside that of one such step, a copy of the gradients, and the part of the
batch that this step does not hold. Beside each ratio stands that of the compiled programs (`timeline` of their HLO,
bytes of the compiler), from `benchmarks/records/references.jsonl`. References are drawn by name, nothing is searched.
Exit status 1 where a predicted ratio is over 5 % and the programs do not differ as much.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import jax

from benchmarks import _record
from benchmarks.quality._forms import Case, accumulated, accumulations, descent, floats, variants
from benchmarks.quality._timeline import timeline
from benchmarks.solvers.reshard_pairs import write_table
from jaxplan import Plan
from jaxplan.audit import compile_plan
from jaxplan.cost import ModelBuilder, tiny_groups
from jaxplan.ir import ordered
from jaxplan.mesh import Topology
from jaxplan.search._make_plan import make_plan
from jaxplan.search._traced import analyse_step
from jaxplan.simulate import predictor_of
from jaxplan.strategies import apply_strategies, reference_solution

MOST = 0.05
START, END = "<!-- forms: begin -->", "<!-- forms: end -->"
NAMES = ("data", "zero2", "fsdp")
MIB = 2**20
RECORDS = Path(__file__).parents[1] / "records" / "references.jsonl"


def draw(case: Case, topology: str, names: Sequence[str] = NAMES) -> dict[str, Plan]:
    """Plans of reference strategies, from a model that has no other configurations."""
    step, args = case
    graph = analyse_step(step, args, {}, donate_argnums=None, static_argnums=())
    machine, tiny = Topology.parse(topology), tiny_groups(graph)
    strategy_plans = {
        name: plan for name, plan in apply_strategies(graph, machine).plans.items() if name in names
    }
    configurations = []
    for v, space in enumerate(graph.spaces):
        whole = ((),) * len(space.classes)
        wanted = (
            set()
            if v in tiny
            else {strategy_plan.configurations[v] for strategy_plan in strategy_plans.values()}
        )
        configurations.append(ordered({whole, *wanted}))
    model = ModelBuilder(graph, machine).build(tuple(configurations))
    predictor = predictor_of(model)
    return {
        name: make_plan(predictor, *reference_solution(model, strategy_plan), name=name)
        for name, strategy_plan in strategy_plans.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Seconds and bytes of a plan on one device, predicted, or read from the compiled program."""

    compute_seconds: float
    communication_seconds: float
    num_bytes: float

    @property
    def seconds(self) -> float:
        return self.compute_seconds + self.communication_seconds

    @classmethod
    def predicted(cls, plan: Plan) -> Figures:
        return cls(
            compute_seconds=plan.time_seconds - plan.communication_seconds,
            communication_seconds=plan.communication_seconds,
            num_bytes=plan.memory_bytes,
        )

    def over(self, other: Figures) -> tuple[float, float]:
        """Ratios of time and memory to another's."""
        return self.seconds / other.seconds, self.num_bytes / other.num_bytes

    def accumulated(self, k: int, further_bytes: int) -> Figures:
        """Those of ``k`` such steps with one reduction, and further bytes."""
        return Figures(
            compute_seconds=k * self.compute_seconds,
            communication_seconds=self.communication_seconds,
            num_bytes=self.num_bytes + further_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The compiled program of one plan: ``what`` names it as the tables do."""

    topology: str
    what: str
    figures: Figures


@dataclass(slots=True)
class Compiler:
    """Compiled figures by plan: from the file, or compiled anew and kept there.

    Attributes:
      topology: name of the machine.
      compiles: whether plans are compiled; otherwise those that the file lacks have no figures.
    """

    topology: str
    compiles: bool
    path: Path = RECORDS
    known: dict[tuple[str, str], Record] = field(init=False)

    def __post_init__(self) -> None:
        self.known = {(r.topology, r.what): r for r in _record.read_records(Record, self.path)}

    def figures(self, what: str, plan: Plan) -> Figures | None:
        if self.compiles:
            report = compile_plan(plan)
            times = timeline(report.hlo_text or "", plan.topology)
            found = Figures(
                compute_seconds=times.compute_seconds,
                communication_seconds=times.communication_seconds,
                num_bytes=report.memory_bytes,
            )
            self.known[self.topology, what] = Record(topology=self.topology, what=what, figures=found)
            _record.write_lines(self.path, (self.known[key] for key in sorted(self.known)))
        record = self.known.get((self.topology, what))
        return None if record is None else record.figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a table: a plan beside the one, or the sum, that it should equal.

    Attributes:
      predicted: figures of both.
      compiled: the same of the compiled programs, where they are known.
    """

    what: str
    predicted: tuple[Figures, Figures]
    compiled: tuple[Figures, Figures] | None = None

    @property
    def ratios(self) -> tuple[float, float]:
        """Predicted time and memory over those wanted."""
        return self.predicted[0].over(self.predicted[1])

    @property
    def compiled_ratios(self) -> tuple[float, float] | None:
        return None if self.compiled is None else self.compiled[0].over(self.compiled[1])

    @property
    def missed(self) -> tuple[str, ...]:
        """Of time and memory, those predicted too large although the compiled programs do not differ as much."""
        compiled = self.compiled_ratios or (1.0, 1.0)
        pairs = zip(("time", "memory"), self.ratios, compiled, strict=True)
        return tuple(name for name, ratio, real in pairs if ratio > (1 + MOST) * max(real, 1.0))

    def __str__(self) -> str:
        of, (time, memory) = self.predicted[0], self.ratios
        figures = f"{of.seconds * 1e3:9.3f} ms {of.num_bytes / MIB:8.0f} MiB"
        text = f"{self.what:44s} {figures}  x{time:5.3f} x{memory:5.3f}"
        if self.compiled_ratios is not None:
            text += "   compiled x{:5.3f} x{:5.3f}".format(*self.compiled_ratios)
        return text + (f"  <- {', '.join(self.missed)}" if self.missed else "")


def compare_forms(forms: Mapping[str, Case], model: str, compiler: Compiler) -> Iterator[Line]:
    """All forms of a model beside the first."""
    plain: dict[str, tuple[Figures, Figures | None]] = {}
    for form, case in forms.items():
        plans = draw(case, compiler.topology)
        found = {
            name: (Figures.predicted(plan), compiler.figures(f"{model}, {form}: {name}", plan))
            for name, plan in plans.items()
        }
        plain = plain or found
        for name, (predicted, compiled) in found.items():
            wanted, known = plain[name]
            both = None if compiled is None or known is None else (compiled, known)
            yield Line(what=f"{model}, {form}: {name}", predicted=(predicted, wanted), compiled=both)


def compare_accumulations(
    compiler: Compiler, numbers: Sequence[int] = (1, 2, 4, 8), models: Sequence[str] | None = None
) -> Iterator[Line]:
    """Accumulating steps beside plain ones of a part of the batch."""
    devices = Topology.parse(compiler.topology).num_devices
    for model, (loss, params, batch) in accumulated().items():
        gradients = sum(leaf.size * 4 for leaf in jax.tree.leaves(params))
        for k in numbers if models is None or model in models else ():
            part = floats(batch[0] // k, *batch[1:])
            plan = draw((descent(jax.grad(loss)), (params, part)), compiler.topology, ("data",))["data"]
            further = gradients + (k - 1) * part.size * 4 // devices
            wanted = Figures.predicted(plan).accumulated(k, further)
            known = compiler.figures(f"{model}, one of K={k}: data", plan)
            for form, case in accumulations(loss, params, k, batch).items():
                what = f"{model}, {form}, K={k}: data"
                plan = draw(case, compiler.topology, ("data",))["data"]
                compiled = compiler.figures(what, plan)
                both = (
                    None if compiled is None or known is None else (compiled, known.accumulated(k, further))
                )
                yield Line(what=what, predicted=(Figures.predicted(plan), wanted), compiled=both)


def all_lines(compiler: Compiler, only: str = "") -> Iterator[Line]:
    """The lines of both tables, of models whose name holds a text."""
    for model, forms in variants().items():
        if only in model:
            yield from compare_forms(forms, model, compiler)
    for model in accumulated():
        if only in f"accumulation {model}":
            yield from compare_accumulations(compiler, models=(model,))


def table(lines: Iterable[Line]) -> list[str]:
    """The lines over 5 %, for the documentation; forms, or strategies, of equal figures are one row."""
    rows: dict[tuple[str, str, str], list[str]] = {}
    for line in lines:
        if max(line.ratios) > 1 + MOST:
            both = line.ratios, line.compiled_ratios or (math.nan, math.nan)
            figures = " | ".join("x{:.3f}, x{:.3f}".format(*pair) for pair in both)
            model, form, rest = _parts(line.what)
            rows.setdefault((model, rest, figures), []).append(form)
    head = ["| form | predicted time, memory | compiled |", "|---|---|---|"]
    return head + [f"| {model}{', '.join(forms)}{rest} | {figures} |" for (model, rest, figures), forms in rows.items()]


def _parts(what: str) -> tuple[str, str, str]:
    """The form of micro-batches, or the strategy, between what stands before and behind it."""
    if ", K=" in what:
        model, form, rest = what.split(", ", 2)
        return f"{model}, ", form, f", {rest}"
    before, _, name = what.rpartition(": ")
    return f"{before}: ", name, ""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--topology", default="h100:8")
    parser.add_argument("--only", default="", help="models whose name holds this")
    parser.add_argument(
        "--compile", action="store_true", help="compile the plans anew and keep their figures"
    )
    parser.add_argument("--records", type=Path, default=RECORDS, help="the file of compiled figures")
    parser.add_argument("--write", type=Path, default=None, help="put the lines over 5 %% into this document")
    options = parser.parse_args(argv)
    compiler = Compiler(options.topology, options.compile, options.records)
    lines = list[Line]()
    worst, missed, total = 0.0, 0, 0
    for line in all_lines(compiler, options.only):
        print(line, flush=True)
        lines.append(line)
        worst, missed, total = max(worst, *line.ratios), missed + bool(line.missed), total + 1
    print(
        f"{total} lines, worst predicted ratio {worst:.3f}, {missed} over 5 % although the programs are not"
    )
    if options.write:
        write_table(table(lines), options.write, START, END)
    return int(missed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
