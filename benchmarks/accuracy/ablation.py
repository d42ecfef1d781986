"""Predictions of every reference plan, without a compiler, beside the saved ones: shows which a change has moved.

    python -m benchmarks.accuracy.ablation                            # compare to the byte with the saved predictions
    python -m benchmarks.accuracy.ablation --model gpt --topology v5e:2x4
    python -m benchmarks.accuracy.ablation --save                     # after a change that is meant: save them anew
    python -m benchmarks.accuracy.ablation --without heaps-have-gaps  # as if the compiler did not do that
    python -m benchmarks.accuracy.ablation --leave-out gemma          # a model without the rules made after it
    python -m benchmarks.accuracy.ablation --each --save              # each rule by itself, for docs/compiler_rules.md
    python -m benchmarks.accuracy.ablation --each --save --without all-reduces-are-in-place   # this rule alone

Each model of `benchmarks.accuracy` is traced once and its reference strategies are predicted on every topology; they
are drawn by name, so no search is needed. Where the record of a compiled program exists, its memory is printed beside
both predictions. Exit status 1 when a prediction differs from the saved one and no rule was left out. The names of the
rules are in docs/compiler_rules.md.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks._record import read_lines, write_lines
from benchmarks.accuracy._effects import (
    RECORDS,
    RuleError,
    compiled_memory,
    effects_of_rules,
    made_after,
    write_effects,
)
from benchmarks.accuracy._models import MODELS, TOPOLOGIES
from benchmarks.accuracy._references import analysed, digest, predict_references
from jaxplan.mesh import Topology
from jaxplan.xla.rules import RULES, check_names

SAVED = RECORDS / "reference_predictions.jsonl"

Key = tuple[str, str, str]
"""Model, topology, name of the strategy."""


def predictions(
    models: Sequence[str], topologies: Sequence[str], without: Collection[str] = ()
) -> Iterator[tuple[Key, dict[str, Any]]]:
    """The digest of each reference plan of models on topologies, ``without`` the compiler rules of these names."""
    for model in models:
        base, overrides = MODELS[model]
        graph = analysed(base, overrides)
        for topology in topologies:
            for name, prediction in predict_references(graph, Topology.parse(topology), without):
                yield (model, topology, name), digest(prediction)


def read_saved(path: Path = SAVED) -> dict[Key, dict[str, Any]]:
    """The predictions of a file of JSON lines, one line for each plan."""
    lines = read_lines(path)
    return {(line["model"], line["topology"], line["strategy"]): line["prediction"] for line in lines}


def write_saved(found: Mapping[Key, dict[str, Any]], path: Path = SAVED) -> None:
    """One JSON line for each plan, sorted."""
    lines = [
        {"model": model, "topology": topology, "strategy": name, "prediction": prediction}
        for (model, topology, name), prediction in sorted(found.items())
    ]
    write_lines(path, lines)


def differences(
    saved: Mapping[Key, dict[str, Any]], found: Mapping[Key, dict[str, Any]], compiled: Mapping[Key, int]
) -> Iterator[str]:
    """A line for each plan whose prediction is not the saved one."""
    for key in sorted({*saved, *found}):
        before, now = saved.get(key), found.get(key)
        if before == now:
            continue
        label = "{:<12} {:<9} {:<18}".format(*key)
        if before is None or now is None:
            yield f"{label} {'is new' if before is None else 'is gone'}"
            continue
        fields = ", ".join(_difference(name, before[name], now[name]) for name in now if before[name] != now[name])
        truth = f"; compiled {compiled[key] / 2**20:.1f} MiB" if key in compiled else ""
        yield f"{label} {fields}{truth}"


def errors_of_memory(
    predicted: Mapping[Key, dict[str, Any]], compiled: Mapping[Key, int], topology: str
) -> np.ndarray:
    """(plans,) predicted over compiled bytes, minus 1, of the plans on a topology that were compiled."""
    of = [key for key in sorted(predicted) if key in compiled and key[1] == topology]
    return np.array([predicted[key]["memory_bytes"] / compiled[key] - 1 for key in of])


def summary(label: str, errors: np.ndarray) -> str:
    """Quantiles of errors as one row."""
    if not errors.size:
        return f"{label:<20} nothing compiled"
    size = abs(errors)
    return (
        f"{label:<20} {len(size):>4} plans, mean {size.mean():6.2%}, median {np.median(size):6.2%}, 95 % "
        f"{np.quantile(size, 0.95):6.2%}, lowest {errors.min():+.1%}, highest {errors.max():+.1%}"
    )


def _difference(name: str, before: Any, now: Any) -> str:
    """One field of a prediction, before and now, in the units that people read."""
    if name == "memory_bytes":
        return f"memory {before / 2**20:.1f} -> {now / 2**20:.1f} MiB"
    if name.endswith("_seconds"):
        return f"{name.removesuffix('_seconds')} {before * 1e3:.4g} -> {now * 1e3:.4g} ms"
    if name == "flops":
        return f"FLOPs {before:.4g} -> {now:.4g}"
    return f"other {name.replace('_', ' ')}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.accuracy.ablation", description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=list(MODELS), action="append", help="default: all")
    parser.add_argument("--topology", choices=list(TOPOLOGIES), action="append", help="default: all")
    parser.add_argument("--save", action="store_true", help="replace the saved predictions of these models")
    parser.add_argument("--without", metavar="RULE", action="append", default=[], help="leave a compiler rule out")
    parser.add_argument("--leave-out", choices=list(MODELS), help="one model, without the rules made after it")
    parser.add_argument("--each", action="store_true", help="leave each compiler rule out by itself")
    options = parser.parse_args(arguments)
    jax.config.update("jax_platforms", "cpu")
    models, topologies = options.model or list(MODELS), options.topology or list(TOPOLOGIES)
    without = check_names(options.without)
    if options.each:
        for model, topology in itertools.product(models, topologies):
            effects = list(effects_of_rules([model], [topology], without or RULES))
            print("\n".join(f"{e.rule:<60} {model:<12} {RuleError.of([e])}" for e in effects if e.changed), flush=True)
            if options.save:
                write_effects(effects)
        return 0
    if options.leave_out:
        models, without = [options.leave_out], without | made_after(options.leave_out)
        print("\n".join(["without", *sorted(without)]))
    if without and options.save:
        parser.error("--save is for the predictions of all rules: leave --without and --leave-out out")
    found = dict(predictions(models, topologies, without))
    saved = read_saved() if SAVED.exists() else {}
    asked = {key: value for key, value in saved.items() if key[0] in models and key[1] in topologies}
    compiled = compiled_memory()
    lines = list(differences(asked, found, compiled))
    print("\n".join(lines))
    for topology in topologies:
        print(summary(f"{topology} saved", errors_of_memory(asked, compiled, topology)))
        print(summary(f"{topology} now", errors_of_memory(found, compiled, topology)))
    print(f"{len(found)} reference plans predicted, {len(lines)} differ from the saved predictions")
    if options.save:
        write_saved({**{key: value for key, value in saved.items() if key not in asked}, **found})
        return 0
    return 1 if lines and not without else 0


if __name__ == "__main__":
    raise SystemExit(main())
