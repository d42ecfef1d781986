"""docs/papers.md, written from the records."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks._record import read_lines
from benchmarks.papers._experiment import Experiment, Verdict
from benchmarks.papers._records import Record
from benchmarks.papers._registry import EXPERIMENTS
from benchmarks.papers._tolerance import WORDS

SENTENCES = Path(__file__).parent / "sentences.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """One sentence of an evaluation section, or a few that say one thing.

    Attributes:
      sentence: its first words, or its subject.
      claims: `Claim.published` of those that judge it.
      no_claim: why there is none: it describes the setting, explains a claim, or is an opinion.
    """

    paper: str
    section: str
    sentence: str
    claims: Sequence[str]
    no_claim: str


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
conclusions: an order, a ratio, the sizes that fit. Where it disagrees, the reason stands beside it with the figures
that the command of the experiment measured for it: the cause switched off, or the quantities that differ.
Seconds are those of the processor, of some runs those by the
clock beside other work, which are three to six times as many.

"""
_CHOICES = """
Some choices were made after a first run was seen, so the verdicts that rest on them are weaker than the others:

- TensorOpt gives neither the size of its images (128 here) nor its numbers of tokens (64). Where a verdict turns on one
  of them, another value stands beside it: images of 144, whose memory is nearest to the paper's Table 1; 32 tokens.
- GB of a K80 and of the tables are taken as GiB (the parameters of VGG16 in TensorOpt's Table 1 show it).
- A turning point is twice as steep as the rest of a frontier; three times was asked for at first.
- The operators of VGG16 are counted without bias, after a count with them.
- PaSE does not say whether its batches are those of each device: both are shown, and its ratios may be met by either.
- FlexFlow's K80 reaches half of its rate on products of 128 rows; with 25, which its Figure 7c asks for, verdicts that
  turn on it are shown too. Its chains start from data parallelism, as the paper's do; the random start that the paper
  has besides is left out where operators have devices of their own.
- Tofu's swapping drops the least recently used array; the paper's drops none that is read soon, without saying how
  soon. Both ends are shown: least recent use, and the best replacement there is.

PaSE's two ratios and Tofu's search times are not in the copies at hand.
"""


def page(records: Mapping[str, Record]) -> str:
    """The page: all verdicts in numbers, then each experiment that is on record."""
    shown = {name: records[name] for name in EXPERIMENTS if name in records}
    verdicts = {
        name: EXPERIMENTS[name].verdicts(record.rows, record.causes) for name, record in shown.items()
    }
    lines = [
        _HEAD + "\n".join(textwrap.wrap(WORDS, 116)),
        _CHOICES,
        "| experiment | agrees | disagrees | not covered | seconds |",
        "|---|---|---|---|---|",
    ]
    for name, record in shown.items():
        counts = Counter(verdict.outcome for verdict in verdicts[name])
        cells = [str(counts[outcome]) for outcome in ("agrees", "disagrees", "not covered")]
        lines.append(f"| `{name}`: {EXPERIMENTS[name].title} | {' | '.join(cells)} | {record.seconds:.0f} |")
    for name, record in shown.items():
        lines += ["", *_section(EXPERIMENTS[name], record, verdicts[name])]
    return "\n".join([*lines, *_not_run(records), *_read()]) + "\n"


def sentences() -> list[Sentence]:
    """The evaluation sections, sentence by sentence, and the claims that judge each."""
    return [Sentence(**{"no_claim": "", **line}) for line in read_lines(SENTENCES)]


def _read() -> list[str]:
    """How many sentences were read, and those that no claim judges."""
    lines = [
        "",
        "## Sentences that were read",
        "",
        f"`benchmarks/papers/{SENTENCES.name}` lists the evaluation sections sentence by sentence, as far as each says",
        "something of its own, with the claims that judge it. Those without one:",
        "",
        "| section | sentence | why no claim |",
        "|---|---|---|",
    ]
    rows = [
        f"| {of.paper} {of.section} | {of.sentence} | {of.no_claim} |" for of in sentences() if not of.claims
    ]
    return [*lines, *rows]


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
    lines += ["| section | published | ours | verdict | why |", "|---|---|---|---|---|"]
    return [*lines, *map(_verdict, verdicts)]


def _verdict(verdict: Verdict) -> str:
    claim = verdict.claim
    cells = (claim.source, claim.published, verdict.ours or "-", verdict.outcome, verdict.why or "-")
    return f"| {' | '.join(cells)} |"
