"""A random program as data: arguments, statements, results; and as Python that a person can paste."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any, Literal

Shape = tuple[int, ...]
Kind = Literal["plain", "gradient", "update"]
_NAMES = re.compile(r"\b[av]\d+\b")
UPDATES = {
    "momentum": """
value, grads = objective(params)
slots = jax.tree.map(lambda m, g: 0.9 * m + g, slots, grads)
params = jax.tree.map(lambda p, m: p - 0.1 * m, params, slots)
""",
    "anchored": """
value, grads = objective(params)
away = sum(jnp.sum((p - s).astype("float64") ** 2) for p, s in zip(params.values(), slots.values()))
params = jax.tree.map(lambda p, s, g: p - (jnp.tanh(away) * g + 0.1 * (p - s)).astype(p.dtype), params, slots, grads)
""",
    "decay first": """
decay = jax.tree.map(lambda p: 0.1 * jnp.tanh(p), params)
value, grads = objective(params)
params = jax.tree.map(lambda p, d, s, g: p - d - 0.1 * (g + s), params, decay, slots, grads)
""",
    "two passes": """
value, grads = objective(params)
norm = jnp.sqrt(sum(jnp.sum(g.astype("float64") ** 2) for g in grads.values()) + 1)
second, sharp = objective(jax.tree.map(lambda p, g: p + (0.1 * g / norm).astype(p.dtype), params, grads))
slots = jax.tree.map(lambda s, a, b: 0.5 * s + a + b, slots, grads, sharp)
params, value = jax.tree.map(lambda p, s, g: p - 0.1 * (s + g), params, slots, sharp), value + second
""",
    "average": """
before, _ = objective(slots)
value, grads = objective(params)
params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
slots, value = jax.tree.map(lambda s, p: 0.9 * s + 0.1 * p, slots, params), value - before
""",
    "loop": """
def one(params, rate):
    value, grads = objective(params)
    return jax.tree.map(lambda p, g: p - (rate * g).astype(p.dtype), params, grads), value
start, (params, values) = params, lax.scan(one, params, jnp.array([0.1, 0.05]))
slots, value = jax.tree.map(lambda s, p, q: s + p - q, slots, params, start), values.sum()
""",
}
"""How an update program makes new parameters and slots; ``objective`` gives the loss and its gradient."""
HEADER = """\
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

jax.config.update("jax_enable_x64", True)
MESH = Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("d", "m"))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A named value of a program.

    Attributes:
      name: ``a3`` of an argument, ``v7`` of the result of a statement.
      bound: its elements are about this large at most.
    """

    name: str
    shape: Shape
    dtype: str
    bound: float = 1.0

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_float(self) -> bool:
        return self.dtype in ("float64", "float32", "bfloat16")

    @property
    def is_int(self) -> bool:
        return self.dtype == "int32"


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function that a statement calls; it sees the names around it.

    Attributes:
      name: ``f3``; ``parameters`` are values, ``results`` texts.
    """

    name: str
    parameters: tuple[Value, ...]
    statements: tuple[Statement, ...]
    results: tuple[str, ...]
    decorator: str = ""

    def lines(self) -> list[str]:
        head = f"def {self.name}({', '.join(p.name for p in self.parameters)}):"
        body = [line for statement in self.statements for line in statement.lines()]
        body.append(f"return {', '.join(self.results)}")
        return [*([f"@{self.decorator}"] if self.decorator else []), head, *(f"    {line}" for line in body)]

    def reads(self) -> set[str]:
        """Names of the values around it that it reads."""
        made = {p.name for p in self.parameters} | {v.name for s in self.statements for v in s.results}
        read = {name for s in self.statements for name in s.reads()} | set(
            _NAMES.findall(" ".join(self.results))
        )
        return read - made


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """``results = text``, after the definitions of the functions that the text calls."""

    results: tuple[Value, ...]
    text: str
    functions: tuple[Function, ...] = ()

    def lines(self) -> list[str]:
        defined = [line for function in self.functions for line in function.lines()]
        return [*defined, f"{', '.join(v.name for v in self.results)} = {self.text}"]

    def reads(self) -> set[str]:
        """Names of the values that it reads."""
        return names_in(self.text) | {name for function in self.functions for name in function.reads()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A step.

    Attributes:
      arguments: in order of their names' first use.
      results: of a plain program; of a gradient and an update, the terms of the loss.
      kind: ``plain``: returns the results. ``gradient``: the gradient of a scalar of them, in every float argument.
        ``update``: parameters and momenta, returned updated by that gradient, and the loss.
      num_parameters: of an update, how many of the float arguments are state.
      update: one of `UPDATES`, how parameters are updated.
      seed: of the arguments' values.
    """

    arguments: tuple[Value, ...]
    statements: tuple[Statement, ...]
    results: tuple[Value, ...]
    kind: Kind
    num_parameters: int = 0
    seed: int = 0
    update: str = "momentum"

    @property
    def floats(self) -> tuple[str, ...]:
        """Names of the arguments that are differentiated, parameters first."""
        return tuple(a.name for a in self.arguments if a.is_float)

    @property
    def parameters(self) -> tuple[str, ...]:
        return self.floats[: max(1, self.num_parameters)]

    @property
    def dtypes(self) -> set[str]:
        """Of all values, those in inner functions too."""
        texts = "\n".join(self.source_lines())
        known = {v.dtype for s in self.statements for v in s.results} | {a.dtype for a in self.arguments}
        return known | {name for name in ("bfloat16", "float32") if name in texts}

    def source(self) -> str:
        """A module that defines ``step`` and ``args``."""
        return "\n".join([HEADER, *self.source_lines(), "", *self._argument_lines()]) + "\n"

    def source_lines(self) -> list[str]:
        names = ", ".join(a.name for a in self.arguments)
        body = [line for statement in self.statements for line in statement.lines()]
        if self.kind == "plain":
            returned = "".join(f"{v.name}, " for v in self.results)
            return [f"def step({names}):", *(f"    {line}" for line in body), f"    return ({returned})"]
        return [*_indented(f"def loss({names}):", [*body, f"return {self._loss()}"]), "", *self._step_lines()]

    def _loss(self) -> str:
        terms = [f'jnp.sum(jnp.sin({v.name}).astype("float64"))' for v in self.results if v.is_float]
        return " + ".join(terms) or "jnp.float64(0)"

    def _step_lines(self) -> list[str]:
        names = [a.name for a in self.arguments]
        if self.kind == "gradient":
            numbers = tuple(i for i, name in enumerate(names) if name in self.floats)
            return [f"step = jax.value_and_grad(loss, {numbers})"]
        others = [name for name in names if name not in self.parameters]
        given = ", ".join(f"{name}={name}" for name in others)
        return _indented(
            f"def step({', '.join(['state', *others])}):",
            [
                'params, slots = state["params"], state["slots"]',
                f"objective = jax.value_and_grad(lambda params: loss(**params, {given}))",
                *UPDATES[self.update].strip().splitlines(),
                'return {"params": params, "slots": slots}, value',
            ],
        )

    def _argument_lines(self) -> list[str]:
        made = {
            a.name: f"_value({a.shape}, {a.dtype!r}, {a.bound}, {i})" for i, a in enumerate(self.arguments)
        }
        if self.kind != "update":
            given = ", ".join(made.values())
        else:
            params = ", ".join(f"{n!r}: {made[n]}" for n in self.parameters)
            slots = ", ".join(f"{n!r}: {made[n]} * 0" for n in self.parameters)
            others = [made[a.name] for a in self.arguments if a.name not in self.parameters]
            state = f'{{"params": {{{params}}}, "slots": {{{slots}}}}}'
            given = ", ".join([state, *others])
        return [
            "def _value(shape, dtype, bound, number):",
            f"    rng = np.random.default_rng([{self.seed}, number])",
            '    if dtype == "bool":',
            "        return rng.random(shape) < 0.5",
            '    if "int" in dtype:',
            "        return rng.integers(-int(bound), int(bound) + 1, shape).astype(dtype)",
            "    return np.asarray(rng.uniform(-bound, bound, shape)).astype(jnp.dtype(dtype))",
            "",
            f"args = ({given}{',' if given else ''})",
        ]

    def build(self) -> tuple[Any, tuple[Any, ...]]:
        """The step and its arguments."""
        namespace: dict[str, Any] = {}
        exec(compile(self.source(), "<fuzz>", "exec"), namespace)
        return namespace["step"], namespace["args"]

    def trimmed(self) -> Program:
        """Without arguments that nothing reads."""
        read = {name for s in self.statements for name in s.reads()} | {v.name for v in self.results}
        kept = tuple(a for a in self.arguments if a.name in read)
        return dataclasses.replace(self, arguments=kept)


def names_in(text: str) -> set[str]:
    """Names of values in a text."""
    return set(_NAMES.findall(text))


def _indented(head: str, body: list[str]) -> list[str]:
    return [head, *(f"    {line}" for line in body)]
