"""The table of the rules on the compiler, docs/compiler_rules.md, made of the registry.

    python -m benchmarks.accuracy.rules            # write it
    python -m benchmarks.accuracy.rules --check    # exit status 1 when it is not current
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.accuracy._effects import Effect, RuleError, errors_of, read_effects
from jaxplan.core._files import write_whole
from jaxplan.xla._rule import STAGES, CompilerRule, Fitted, Observed
from jaxplan.xla.rules import RULES

DOCUMENT = Path(__file__).parents[2] / "docs" / "compiler_rules.md"
_HEAD = """# Rules on the compiler

Made by `python -m benchmarks.accuracy.rules` of the registry in `jaxplan/xla/rules`; do not edit. Each rule is one
thing that XLA does, which decides buffers, their bytes, their live ranges or the work (docs/prediction.md). Its source
is the URL of a public compiler pass, compiled programs that show it (the compiler for TPUs is not public), or a number
that was fitted to compiled programs. *Made after* names the models by whose compiled programs a rule was made; it is
judged on the others. *Error without* is the mean absolute error of memory over the recorded reference plans, with the
rule and without it, and how many models it changes: `python -m benchmarks.accuracy.ablation --without NAME`.
"""
_BACKENDS = {"gpu": "GPU", "tpu": "TPU", "cpu": "CPU"}


def document() -> str:
    """The whole document."""
    effects = read_effects()
    lines = [_HEAD, f"{len(RULES)} rules.", ""]
    columns = ("rule", "backend", "effect", "source", "made after", "error without", "test")
    for stage in STAGES:
        of_stage = (rule for rule in RULES.values() if rule.stage == stage)
        rules = sorted(of_stage, key=lambda rule: (-len(rule.backends), rule.backends, rule.name))
        lines += [f"## {stage.capitalize()}", "", f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
        lines += [f"| {' | '.join(_cells(rule, effects))} |" for rule in rules]
        lines.append("")
    return "\n".join(lines)


def _cells(rule: CompilerRule, effects: Sequence[Effect]) -> Iterator[str]:
    yield f"`{rule.name}`"
    backends = "all" if len(rule.backends) == len(_BACKENDS) else ", ".join(_BACKENDS[b] for b in rule.backends)
    yield f"{backends} ({rule.arithmetic} arithmetic)" if rule.arithmetic else backends
    yield rule.does
    yield _source(rule.source)
    yield ", ".join(rule.made_after) or "none"
    yield "; ".join(map(_error, errors_of(rule.name, effects))) or "not measured"
    yield f"`{rule.test}`"


def _source(source: str | Fitted | Observed) -> str:
    if isinstance(source, Observed):
        return f"seen: {source.evidence}; `{source.command}`"
    if isinstance(source, Fitted):
        return f"fitted: {source.value:g} {source.unit}; {source.evidence}; `{source.command}`"
    if source.startswith("docs/"):
        return f"[{source}]({source.removeprefix('docs/')})"
    return f"[{source.rsplit('/', 1)[1]}]({source})"


def _error(error: RuleError) -> str:
    return str(error) if error.moved else f"{error.topology}: changes none of {error.models} models"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.accuracy.rules", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing: exit status 1 when it is not current")
    options = parser.parse_args(arguments)
    if options.check:
        return 0 if DOCUMENT.exists() and DOCUMENT.read_text() == document() else 1
    write_whole(DOCUMENT, document())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
