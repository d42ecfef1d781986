"""docs/papers.md, written from the records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from benchmarks.papers._experiment import Experiment, Verdict
from benchmarks.papers._records import Record
from benchmarks.papers._registry import EXPERIMENTS

PAGE = Path(__file__).parents[2] / "docs" / "papers.md"

_HEAD = """# The four papers, repeated

FlexFlow (Jia et al., SysML 2019), PaSE (Elango, IPDPS 2021), TensorOpt (Cai et al., 2020) and Tofu (Wang et al.,
EuroSys 2019) measured their systems on certain networks and clusters. Here the networks are steps in JAX
(`benchmarks/models`, parameters within 1 % of the literature), the clusters are presets from data sheets
(docs/topology.md), the searches are the solvers of docs/solvers.md, and every time and memory is predicted or
simulated: nothing ran on a GPU. No rate or
bandwidth is tuned for an experiment.

```sh
python -m benchmarks.papers                      # list the experiments
python -m benchmarks.papers tensoropt-figure6    # run one: its table, and a verdict per claim
python -m benchmarks.papers all --save           # run all, keep the rows, and write this page from them
```

This page is written by the last command (`tests/benchmarks/test_papers.py` holds it to the records). A verdict compares
conclusions: an order, a ratio, what fits. Where it disagrees, the reason and the command that shows it stand beside it.
Seconds are those of the processor, of some runs those by the clock beside other work, which are three to six times as
many.

Some choices were made after a first run was seen, so their verdicts are weaker than the others: the size of TensorOpt's
images (128, for the memory of its Table 1) and of its sequences; 12 GiB, not GB, for a K80; a turning point is twice as
steep as the rest of a frontier (three times at first); a frontier within 2 % of memory counts as one point for
Mesh-TensorFlow; PaSE's batches are read as per device and as shared, and its two ratios may be met within a quarter by
either reading.
PaSE's two ratios and Tofu's search times were not read off the papers again.
"""


def page(records: Mapping[str, Record]) -> str:
    """The page: all verdicts in numbers, then each experiment that is on record."""
    shown = {name: records[name] for name in EXPERIMENTS if name in records}
    verdicts = {name: EXPERIMENTS[name].verdicts(record.rows) for name, record in shown.items()}
    lines = [_HEAD, "| experiment | agrees | disagrees | not covered | seconds |", "|---|---|---|---|---|"]
    for name, record in shown.items():
        counts = Counter(verdict.outcome for verdict in verdicts[name])
        cells = [str(counts[outcome]) for outcome in ("agrees", "disagrees", "not covered")]
        lines.append(f"| `{name}`: {EXPERIMENTS[name].title} | {' | '.join(cells)} | {record.seconds:.0f} |")
    for name, record in shown.items():
        lines += ["", *_section(EXPERIMENTS[name], record, verdicts[name])]
    return "\n".join([*lines, *_not_run(records)]) + "\n"


def _not_run(records: Mapping[str, Record]) -> list[str]:
    """The claims of experiments that are not on record, if any."""
    claims = [
        f"| {claim.source}: {claim.published} | `python -m benchmarks.papers {name}` |"
        for name, experiment in EXPERIMENTS.items()
        if name not in records
        for claim in experiment.claims
    ]
    head = ["", "## Not covered: no run on record", "", "| published | command |", "|---|---|"]
    return [*head, *claims] if claims else []


def _section(experiment: Experiment, record: Record, verdicts: list[Verdict]) -> list[str]:
    lines = [
        f"## {experiment.title}",
        "",
        f"`python -m benchmarks.papers {experiment.name}`",
        "",
        experiment.setting,
        "",
    ]
    if record.rows:
        lines += [experiment.table(record.rows), ""]
    lines += ["| published | ours | verdict |", "|---|---|---|"]
    return [*lines, *map(_verdict, verdicts)]


def _verdict(verdict: Verdict) -> str:
    claim = verdict.claim
    outcome = verdict.outcome
    if outcome != "agrees" and claim.reason:
        outcome += f": {claim.reason}" + (f" (`{claim.shown_by}`)" if claim.shown_by else "")
    return f"| {claim.source}: {claim.published} | {verdict.ours or '-'} | {outcome} |"
