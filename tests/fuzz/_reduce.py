"""Make a failing program, and its strategy, small: drop statements and results for as long as it fails.

The result of a dropped statement becomes an argument, so that every smaller program is one too.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator

from tests.fuzz._check import Outcome, Subject
from tests.fuzz._program import Function, Program, Statement, Value

MAX_ATTEMPTS = 250
FailsFn = Callable[[Program], bool]


def reduce_program(program: Program, fails: FailsFn) -> Program:
    """The smallest failing program that dropping one thing after another finds."""
    left, changed = MAX_ATTEMPTS, True
    while changed and left > 0:
        changed = False
        for smaller in _smaller(program):
            left -= 1
            if fails(smaller):
                program, changed = smaller, True
                break
            if left <= 0:
                break
    return program


def reduce_strategy(subject: Subject, outcome: Outcome) -> Outcome:
    """Replicate one group after another for as long as it fails."""
    for v in range(len(outcome.strategy.configurations) if outcome.strategy else 0):
        strategy = outcome.strategy
        assert strategy is not None
        whole = ((),) * len(strategy.configurations[v])
        if strategy.configurations[v] == whole:
            continue
        configurations = (*strategy.configurations[:v], whole, *strategy.configurations[v + 1 :])
        tried = subject.try_strategy(dataclasses.replace(strategy, configurations=configurations))
        if tried.kind == outcome.kind:
            outcome = tried
    return outcome


def _smaller(program: Program) -> Iterator[Program]:
    """Programs with one thing less, those that drop much first."""
    for statement in program.statements[:-1]:  # nothing after it
        if {v.name for v in program.results} != {v.name for v in statement.results}:
            yield _with(program, results=statement.results)
    if len(program.results) > 1:
        half = len(program.results) // 2
        yield _with(program, results=program.results[:half])
        yield _with(program, results=program.results[half:])
        for i in range(len(program.results)):
            yield _with(program, results=(*program.results[:i], *program.results[i + 1 :]))
    if program.kind != "plain":
        yield _with(program, kind="plain")
    if program.kind == "update":
        yield _with(program, kind="gradient")
    for i in reversed(range(len(program.statements))):
        yield _without(program, i)
    for i, statement in enumerate(program.statements):
        for f, function in enumerate(statement.functions):
            for j in reversed(range(len(function.statements))):
                yield _without_inner(program, i, f, j)


def _with(program: Program, **changes: object) -> Program:
    return live(dataclasses.replace(program, **changes))  # type: ignore[arg-type]


def _without(program: Program, index: int) -> Program:
    """A statement's results become arguments."""
    dropped = program.statements[index]
    names = _new_names(program, dropped.results)
    kept = [_renamed(s, names) for i, s in enumerate(program.statements) if i != index]
    results = tuple(names.get(v.name, v) for v in program.results)
    arguments = (*program.arguments, *names.values())
    return live(dataclasses.replace(program, statements=tuple(kept), results=results, arguments=arguments))


def _without_inner(program: Program, index: int, f: int, inner: int) -> Program:
    statement = program.statements[index]
    function = statement.functions[f]
    names = _new_names(program, function.statements[inner].results)
    body = tuple(_renamed(s, names) for j, s in enumerate(function.statements) if j != inner)
    results = tuple(_rename(text, names) for text in function.results)
    smaller = dataclasses.replace(function, statements=body, results=results)
    functions = (*statement.functions[:f], smaller, *statement.functions[f + 1 :])
    statements = list(program.statements)
    statements[index] = dataclasses.replace(statement, functions=functions)
    return live(
        dataclasses.replace(
            program, statements=tuple(statements), arguments=(*program.arguments, *names.values())
        )
    )


def _new_names(program: Program, values: tuple[Value, ...]) -> dict[str, Value]:
    first = 1 + max((int(a.name[1:]) for a in program.arguments), default=-1)
    return {
        v.name: dataclasses.replace(v, name=f"a{first + i}", bound=v.bound if v.is_int else min(v.bound, 1.0))
        for i, v in enumerate(values)
    }


def _rename(text: str, names: dict[str, Value]) -> str:
    return re.sub(r"\bv\d+\b", lambda m: names[m[0]].name if m[0] in names else m[0], text)


def _renamed(statement: Statement, names: dict[str, Value]) -> Statement:
    functions = tuple(
        dataclasses.replace(
            f,
            statements=tuple(_renamed(s, names) for s in f.statements),
            results=tuple(_rename(text, names) for text in f.results),
        )
        for f in statement.functions
    )
    return dataclasses.replace(statement, text=_rename(statement.text, names), functions=functions)


def live(program: Program) -> Program:
    """Without statements and arguments that nothing reads."""
    read = {v.name for v in program.results}
    kept: list[Statement] = []
    for statement in reversed(program.statements):
        if any(v.name in read for v in statement.results):
            kept.append(statement)
            read |= statement.reads()
    statements = tuple(_live_inside(s) for s in reversed(kept))
    return dataclasses.replace(program, statements=statements).trimmed()


def _live_inside(statement: Statement) -> Statement:
    return dataclasses.replace(statement, functions=tuple(map(_live_function, statement.functions)))


def _live_function(function: Function) -> Function:
    read = set(re.findall(r"\b[av]\d+\b", " ".join(function.results)))
    kept: list[Statement] = []
    for statement in reversed(function.statements):
        if any(v.name in read for v in statement.results):
            kept.append(statement)
            read |= statement.reads()
    return dataclasses.replace(function, statements=tuple(_live_inside(s) for s in reversed(kept)))
