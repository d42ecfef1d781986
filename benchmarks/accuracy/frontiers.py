"""A digest of the frontier of every model of the registry on two topologies: shows which a change has moved.

    python -m benchmarks.accuracy.frontiers --save before.json   # at the start of a change that must move nothing
    python -m benchmarks.accuracy.frontiers --read before.json   # after each step; exit status 1 on a difference
    python -m benchmarks.accuracy.frontiers --model gpt-tiny --topology h100:8

A digest covers each point and each reference: layouts of its inputs and outputs, configurations, repeated gathers,
recomputed blocks, bytes and seconds, all to the last bit. ``--save`` writes after every model, and goes on with a file
that an interrupted run left.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

import jaxplan
from benchmarks.models import MODELS, build
from jaxplan.core._files import write_whole

TOPOLOGIES = ("h100:8", "v5e:2x4")


def plan_digest(plan: jaxplan.Plan) -> dict[str, Any]:
    """Bytes and seconds of a plan in clear, and everything that decides its program as a hash."""
    decided = (
        plan.configurations, plan.repeated, plan.remat, plan.input_shardings, plan.output_shardings,
        plan.donate_argnums,
    )  # fmt: skip
    return {
        "name": plan.name,
        "memory_bytes": plan.memory_bytes,
        "compute_seconds": plan.compute_seconds,
        "communication_seconds": plan.communication_seconds,
        "decided": hashlib.sha256(repr(decided).encode()).hexdigest()[:16],
    }


def frontier_digest(model: str, topology: str) -> list[dict[str, Any]] | str:
    """The digests of all points and references; the name of the error where there is no plan."""
    jax.clear_caches()
    step, args = build(model)
    try:
        found = jaxplan.plan(step, *args, topology=topology, progress=False)
    except jaxplan.JaxplanError as error:
        return type(error).__name__
    return [plan_digest(plan) for plan in (*found.points, *found.references.values())]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.accuracy.frontiers", description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=list(MODELS), action="append", help="default: all")
    parser.add_argument("--topology", action="append", help=f"default: {', '.join(TOPOLOGIES)}")
    parser.add_argument("--save", type=Path, help="write the digests as JSON")
    parser.add_argument("--read", type=Path, help="compare with the digests of this file")
    options = parser.parse_args(arguments)
    jax.config.update("jax_platforms", "cpu")
    known = json.loads(options.read.read_text()) if options.read else {}
    found = json.loads(options.save.read_text()) if options.save and options.save.exists() else {}
    differing = 0
    for model in options.model or MODELS:
        for topology in options.topology or TOPOLOGIES:
            key = f"{model} {topology}"
            if key in found:
                continue
            found[key] = frontier_digest(model, topology)
            differs = bool(options.read) and known.get(key) != found[key]
            differing += differs
            print(f"{key:<30} {len(found[key])} plans{'  DIFFERS' if differs else ''}", flush=True)
            if options.save:
                write_whole(options.save, json.dumps(found, indent=0, sort_keys=True) + "\n")
    print(f"{len(found)} frontiers, {differing} differ" if options.read else f"{len(found)} frontiers")
    return 1 if differing else 0


if __name__ == "__main__":
    raise SystemExit(main())
