"""State of every transformation of Optax, passed and returned in random forms: has each leaf its own successor?

    python -m benchmarks.state_pairs
    python -m benchmarks.state_pairs --seed 7 --forms 12 --only optax.adam optax.contrib.muon

A step has parameters, the state of a transformation, an average of the parameters, a frozen tree of the same shapes
that comes back unchanged, a random key and a count. It is written in a form of `benchmarks.state_forms`, its parts in
random order as arguments and as results, and traced. The same form applied to labels says which result succeeds which
argument. Exit status 1 where a leaf is paired otherwise, or donated although its argument is not updated, or the
reverse.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.lowering._optimizers import constructors, subject_of
from benchmarks.lowering.state_forms import FORMS, Case, Parts
from jaxplan.ir import Program, trace

_APART = {"flat", "nested", "loss_first", "backwards", "in_dictionary", "keywords"}
"""Forms with an argument for each part."""
_TRAINS_NOTHING = "optax.set_to_zero"
"""Parameters come back as they are, and are the caller's to keep where they are an argument of their own."""


def case_of(step: Callable[..., Any], params: Any, opt: Any, batch: Any) -> Case:
    """A train step with parts around it: an average, a frozen tree, a key and a count."""

    def update(parts: Parts, x: jax.Array) -> tuple[Parts, jax.Array]:
        params, opt, loss = step(parts["params"], parts["opt"], x)
        new = {
            "params": params,
            "opt": opt,
            "ema": jax.tree.map(lambda e, p: 0.99 * e + 0.01 * p, parts["ema"], params),
            "frozen": parts["frozen"],
            "key": jax.random.split(parts["key"])[0],
            "count": parts["count"] + 1,
        }
        return new, loss

    key = jax.eval_shape(lambda: jax.random.key(0))
    count = jax.ShapeDtypeStruct((), jnp.int32)
    parts = {"params": params, "opt": opt, "ema": params, "frozen": params, "key": key, "count": count}
    return Case(update, parts, batch)


def _in_order(case: Case, passed: Sequence[str], returned: Sequence[str]) -> Case:
    """The same case with its parts in other orders."""

    def update(parts: Parts, x: Any) -> tuple[Parts, Any]:
        new, loss = case.update(parts, x)
        return {name: new[name] for name in returned}, loss

    return Case(update, {name: case.parts[name] for name in passed}, case.batch)


def _labelled(case: Case) -> Case:
    """The same parts with a name in place of every leaf, and a step that changes nothing."""
    parts = {
        name: jax.tree_util.tree_map_with_path(lambda path, _, n=name: n + jax.tree_util.keystr(path), part)
        for name, part in case.parts.items()
    }
    return Case(lambda parts, _: (parts, jnp.zeros(())), parts, jax.tree.map(lambda _: "batch", case.batch))


def differences(case: Case, form: str, rng: random.Random, unchanged: Sequence[str] = ("frozen",)) -> list[str]:
    """What is paired or donated otherwise than the labels say, in words; ``unchanged`` parts come back as they are."""
    names = list(case.parts)
    passed, returned = rng.sample(names, len(names)), rng.sample(names, len(names))
    step, args, kwargs = FORMS[form](_in_order(case, passed, returned))
    program = trace(step, args, kwargs)
    labelled, args, kwargs = FORMS[form](_in_order(_labelled(case), passed, returned))
    given, found = jax.tree.leaves((args, kwargs)), jax.tree.leaves(labelled(*args, **kwargs))
    kept = {"batch"}
    if form in _APART:  # two parts are bare arrays unless passed by name
        kept |= {*unchanged} if form == "keywords" else {*unchanged, "key", "count"}
    return [*_wrong_pairs(program, given, found), *_wrong_donation(program, given, kept)]


def _wrong_pairs(program: Program, given: Sequence[Any], returned: Sequence[Any]) -> list[str]:
    found = {given[i]: returned[o] for o, i in program.aliases.items()}
    labels = [label for label in given if label != "batch"]
    wrong = [f"{label} -> {found.get(label)}" for label in labels if found.get(label) != label]
    return [*wrong, f"batch -> {found['batch']}"] if "batch" in found else wrong


def _wrong_donation(program: Program, given: Sequence[str], kept: set[str]) -> list[str]:
    return [
        f"{label} {'donated' if is_donated else 'kept'}"
        for label, is_donated in zip(given, program.donated, strict=True)
        if is_donated == any(label.startswith(part) for part in kept)
    ]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = list(constructors())
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--forms", type=int, default=4, help="random forms of each")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    rng = random.Random(options.seed)
    wrong = total = 0
    for name in options.only:
        subject = subject_of(name)
        case = case_of(subject.step, *subject.args)
        for form in rng.choices(list(FORMS), k=options.forms):
            unchanged = ("frozen", "params") if name == _TRAINS_NOTHING else ("frozen",)
            found = differences(case, form, rng, unchanged)
            total, wrong = total + 1, wrong + bool(found)
            if found:
                print(f"{name}, {form}: {'; '.join(found[:4])}{' ...' if len(found) > 4 else ''}", flush=True)
    print(f"{len(options.only)} transformations, {total} forms, {wrong} with a wrong pair or donation")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
