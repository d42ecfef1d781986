"""Predictions of every reference plan, without a compiler, beside the saved ones: shows which a change has moved.

    python -m benchmarks.accuracy.ablation                            # compare to the byte with the saved predictions
    python -m benchmarks.accuracy.ablation --model gpt --topology v5e:2x4
    python -m benchmarks.accuracy.ablation --save                     # after a change that is meant: save them anew

Each model of `benchmarks.accuracy` is traced once and its reference strategies are predicted on every topology; they
are drawn by name, so no search is needed. Where the record of a compiled program exists, its memory is printed beside
both predictions. Exit status 1 when a prediction differs from the saved one.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.accuracy._models import MODELS, TOPOLOGIES
from benchmarks.accuracy._record import read_records
from benchmarks.accuracy._references import analysed, digest, predict_references
from jaxplan.core._files import write_whole
from jaxplan.mesh import Topology

RECORDS = Path(__file__).parents[1] / "records"
SAVED = RECORDS / "reference_predictions.jsonl"

Key = tuple[str, str, str]
"""Model, topology, name of the strategy."""


def predictions(models: Sequence[str], topologies: Sequence[str]) -> Iterator[tuple[Key, dict[str, Any]]]:
    """The digest of each reference plan of models on topologies."""
    for model in models:
        base, overrides = MODELS[model]
        graph = analysed(base, overrides)
        for topology in topologies:
            for name, prediction in predict_references(graph, Topology.parse(topology)):
                yield (model, topology, name), digest(prediction)


def read_saved(path: Path = SAVED) -> dict[Key, dict[str, Any]]:
    """The predictions of a file of JSON lines, one line for each plan."""
    lines = map(json.loads, path.read_text().splitlines())
    return {(line["model"], line["topology"], line["strategy"]): line["prediction"] for line in lines}


def write_saved(found: Mapping[Key, dict[str, Any]], path: Path = SAVED) -> None:
    """One JSON line for each plan, sorted."""
    lines = [
        {"model": model, "topology": topology, "strategy": name, "prediction": prediction}
        for (model, topology, name), prediction in sorted(found.items())
    ]
    write_whole(path, "".join(json.dumps(line, sort_keys=True) + "\n" for line in lines))


def compiled_memory() -> dict[Key, int]:
    """Bytes of the compiled programs of reference plans, as recorded by `benchmarks.accuracy`."""
    records = read_records([RECORDS / "accuracy.jsonl"])
    return {
        (r.model, r.topology, r.point): r.compiled_memory
        for r in records
        if r.kind == "reference" and not r.failure
    }


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
    options = parser.parse_args(arguments)
    jax.config.update("jax_platforms", "cpu")
    models, topologies = options.model or list(MODELS), options.topology or list(TOPOLOGIES)
    found = dict(predictions(models, topologies))
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
    return 1 if lines else 0


if __name__ == "__main__":
    raise SystemExit(main())
