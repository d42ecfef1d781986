"""How far each compiler rule carries the predictions: errors with it, and with it left out."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import _record
from benchmarks.accuracy._models import MODELS
from benchmarks.accuracy._record import read_records
from benchmarks.accuracy._references import analysed, predict_references
from jaxplan.cost import Prediction
from jaxplan.ir import StepGraph
from jaxplan.mesh import Topology
from jaxplan.xla import Buffers, Target, analyse_buffers
from jaxplan.xla.rules import RULES

RECORDS = Path(__file__).parents[1] / "records"
EFFECTS = RECORDS / "compiler_rules.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """The effect of a rule on the predicted memory of the reference plans of one model on one topology.

    Attributes:
      rule, topology, model: names.
      plans: how many of them were compiled, and so have errors.
      changed: how many of all predictions it moves, of memory, time or collectives.
      error_with, error_without: sums of the absolute errors of memory over ``plans``, of one.
    """

    rule: str
    topology: str
    model: str
    plans: int
    changed: int
    error_with: float
    error_without: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleError:
    """A rule over all models that were measured on one topology.

    Attributes:
      models: how many were measured.
      moved: those of them with predictions that it moves.
      error_with, error_without: mean absolute errors of memory, of one; None where nothing was compiled.
    """

    rule: str
    topology: str
    models: int
    moved: tuple[str, ...]
    error_with: float | None
    error_without: float | None

    @classmethod
    def of(cls, effects: Sequence[Effect]) -> RuleError:
        """Of the effects of one rule on one topology."""
        plans = sum(effect.plans for effect in effects)
        return cls(
            rule=effects[0].rule,
            topology=effects[0].topology,
            models=len(effects),
            moved=tuple(sorted(effect.model for effect in effects if effect.changed)),
            error_with=sum(effect.error_with for effect in effects) / plans if plans else None,
            error_without=sum(effect.error_without for effect in effects) / plans if plans else None,
        )

    def __str__(self) -> str:
        moved = f"{len(self.moved)} of {self.models} models"
        if self.error_with is None or self.error_without is None:
            return f"{self.topology}: {moved}"
        return f"{self.topology}: {self.error_with:.2%} -> {self.error_without:.2%}, {moved}"


def made_after(model: str) -> frozenset[str]:
    """Rules that were made after compiled programs of a model."""
    return frozenset(name for name, rule in RULES.items() if model in rule.made_after)


def effects_of_rules(
    models: Sequence[str], topologies: Sequence[str], names: Collection[str] = tuple(RULES)
) -> Iterator[Effect]:
    """One `Effect` for each model, topology, and rule of that among ``names``."""
    compiled = compiled_memory()
    for model in models:
        graph = analysed(*MODELS[model])
        for topology in map(Topology.parse, topologies):
            target = Target.of(topology.chip)
            plain, buffers = dict(predict_references(graph, topology)), _buffers(graph, topology)
            for name in (name for name in RULES if name in names and RULES[name].applies_to(target)):
                has_effect = _buffers(graph, topology, [name]) != buffers
                found = dict(predict_references(graph, topology, [name])) if has_effect else plain
                known = {plan: compiled.get((model, topology.name, plan)) for plan in plain}
                truth = {plan: size for plan, size in known.items() if size}
                yield Effect(
                    rule=name,
                    topology=topology.name,
                    model=model,
                    plans=len(truth),
                    changed=sum(found[plan] != plain[plan] for plan in plain),
                    error_with=_error(plain, truth),
                    error_without=_error(found, truth),
                )


def _error(predicted: Mapping[str, Prediction], compiled: Mapping[str, int]) -> float:
    """Sum of absolute errors of memory."""
    return round(sum(abs(predicted[plan].memory_bytes / size - 1) for plan, size in compiled.items()), 5)


def _buffers(graph: StepGraph, topology: Topology, without: Sequence[str] = ()) -> tuple[Buffers | None, ...]:
    """All that predictions take from the compiler rules, in both orders of execution; names are not compared."""
    target = Target.of(topology.chip, topology.num_devices)
    found = analyse_buffers(graph, dataclasses.replace(target, without=frozenset(without)))
    one = dataclasses.replace(found, target=target, decided_by=(), in_order=None)
    other = found.in_order and dataclasses.replace(found.in_order, target=target, decided_by=())
    return one, other


def compiled_memory() -> dict[tuple[str, str, str], int]:
    """(model, topology, strategy) -> bytes of the compiled program, as recorded by `benchmarks.accuracy`."""
    records = read_records([RECORDS / "accuracy.jsonl"])
    return {
        (r.model, r.topology, r.point): r.compiled_memory
        for r in records
        if r.kind == "reference" and not r.failure
    }


def read_effects(path: Path = EFFECTS) -> list[Effect]:
    """The effects of a file of JSON lines."""
    return _record.read_records(Effect, path)


def write_effects(effects: Collection[Effect], path: Path = EFFECTS) -> None:
    """One JSON line for each effect; those of other models, topologies and rules in the file stay."""
    kept = {(e.rule, e.topology, e.model): e for e in [*read_effects(path), *effects]}
    _record.write_lines(path, (effect for _, effect in sorted(kept.items())))


def errors_of(rule: str, effects: Collection[Effect]) -> Iterator[RuleError]:
    """Those of one rule, one for each topology."""
    topologies = sorted({effect.topology for effect in effects if effect.rule == rule})
    for topology in topologies:
        yield RuleError.of([e for e in effects if e.rule == rule and e.topology == topology])
