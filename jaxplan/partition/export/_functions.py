"""Write jaxprs as Python functions over flat arrays."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from jaxplan.core import _compat
from jaxplan.errors import UnsupportedError
from jaxplan.partition.export._literals import Literals, NotWritable
from jaxplan.partition.export._templates import ELEMENTWISE, IMPORTS, ONE_OPERAND, TEMPLATES, TUPLES

_HOLE = re.compile(r"\$(@?)(\d*)(\*?)(\w*)")
_NOT_WRITABLE_MSG = (
    "the plan cannot be written as a script: {primitive} holds {value}.\n"
    "  given:    {line}\n"
    "  expected: operators of JAX with parameters that are numbers, names and shapes\n"
    "  likely cause: a callback, a kernel or a primitive of one's own, which is Python code\n"
    "  fix: run the plan with plan.jit(), or leave that operator out of the exported step"
)

SCAN = '''def scan(body, consts, carry, xs, **options):
    """`lax.scan` of a function of flat constants, carries and slices."""

    def flat(carry, xs):
        results = body(*consts, *carry, *xs)
        return results[:len(carry)], results[len(carry):]

    carry, ys = lax.scan(flat, carry, xs, **options)
    return (*carry, *ys)'''
WHILE = '''def while_loop(cond, cond_consts, body, body_consts, carry):
    """`lax.while_loop` of functions of flat constants and carries."""
    return lax.while_loop(lambda c: cond(*cond_consts, *c)[0], lambda c: body(*body_consts, *c), carry)'''


class Functions:
    """Source of functions, equal ones written once.

    Attributes:
      literals: source of values.
      written: name -> source of a function, those that call others behind them.
      helpers: source of the helpers that they call.
      dropped: names of equations without results that are left out.
    """

    def __init__(self, literals: Literals) -> None:
        self.literals = literals
        self.written: dict[str, str] = {}
        self.helpers: dict[str, str] = {}
        self.dropped: list[str] = []
        self._by_text: dict[str, str] = {}

    def function(self, jaxpr: Any, base: str) -> str:
        """The name of a function of flat arguments that returns a tuple; ``base``: the first part of its name."""
        opened, consts = _compat.open_jaxpr(jaxpr)
        arguments = [f"x{i}" for i in range(len(opened.invars))]
        lines = self.body(opened, consts, arguments)
        head = f"({', '.join(arguments)}):"
        text = "\n".join([head, *(line for line in lines if not line.lstrip().startswith("#"))])
        known = self._by_text.get(text)
        if known is not None:
            return known
        base = re.sub(r"\W", "_", base) or "function"
        base = base if base[0].isalpha() or base[0] == "_" else f"f_{base}"
        name = f"{base}_f{len(self.written)}"  # no result of an equation is called so
        self.written[name] = "\n".join([f"def {name}{head}", *lines])
        self._by_text[text] = name
        return name

    def body(self, jaxpr: Any, consts: Sequence[Any], arguments: Sequence[str]) -> list[str]:
        """The lines of a function, indented, the last one a return."""
        env: dict[Any, str] = dict(zip(jaxpr.invars, arguments, strict=True))
        env |= {var: self.literals.array(value) for var, value in zip(jaxpr.constvars, consts, strict=True)}
        lines: list[str] = []
        told, taken = "", frozenset(arguments)

        def read(atom: Any) -> str:
            return self.literals.array(atom.val) if isinstance(atom, _compat.Literal) else env[atom]

        for number, eqn in enumerate(jaxpr.eqns):
            source = self._source(eqn, [read(atom) for atom in eqn.invars])
            if source is None:
                continue
            expression, is_tuple = source
            where = _where(eqn)
            if where and where != told:
                lines.append(f"    # {where}")
                told = where
            names = ["_"] * len(eqn.outvars)
            for i, var in enumerate(eqn.outvars):
                if not _compat.is_drop_var(var):
                    name = f"{_short(eqn)}_{number}" + (f"_{i}" if len(names) > 1 else "")
                    names[i] = env[var] = f"{name}_" if name in taken else name
            target = ", ".join(names) + ("," if is_tuple and len(names) == 1 else "")
            lines.append(f"    {target} = {expression}")
        results = [read(atom) for atom in jaxpr.outvars]
        lines.append(f"    return ({', '.join(results)}{',' if len(results) == 1 else ''})")
        return lines

    def _source(self, eqn: Any, operands: list[str]) -> tuple[str, bool] | None:
        """The expression of an equation, and whether it gives a tuple; None for one that is left out."""
        name = eqn.primitive.name
        if name in ("debug_callback", "debug_print"):
            self.dropped.append(_where(eqn) or name)
            return None
        try:
            special = _SPECIAL.get(name)
            if special is not None:
                return special(self, eqn.params, operands)
            return self._call(eqn, operands)
        except NotWritable as error:
            raise UnsupportedError(
                _NOT_WRITABLE_MSG.format(
                    primitive=name, value=error, line=_compat.eqn_source_line(eqn) or "a line that is not known"
                )
            ) from error

    def _call(self, eqn: Any, operands: list[str]) -> tuple[str, bool]:
        name = eqn.primitive.name
        params = {key: None if _is_open(value) else value for key, value in eqn.params.items()}
        many = name in ONE_OPERAND and len(operands) != 1
        if name in ELEMENTWISE and all(value is None for value in params.values()):
            return f"lax.{name}({', '.join(operands)})", False
        template, *ignored = TEMPLATES.get(name, "").split(" ~")
        used = {found[4] for found in _HOLE.finditer(template)} | set(ignored)
        if template and not many and all(value is None or key in used for key, value in params.items()):
            if name in IMPORTS:
                self.literals.imports.add(IMPORTS[name])
            return _HOLE.sub(lambda hole: self._filled(hole, params, operands), template), name in TUPLES
        arguments = [*operands, *(f"{key}={self.literals.of(value)}" for key, value in params.items())]
        bind = f"{self.literals.named(eqn.primitive)}.bind"
        return f"{bind}({', '.join(arguments)})", eqn.primitive.multiple_results

    def _filled(self, hole: re.Match[str], params: Mapping[str, Any], operands: list[str]) -> str:
        names_axes, number, rest, name = hole.groups()
        if rest:
            return ", ".join(operands[int(number or 0) :])
        if number:
            return operands[int(number)]
        return self.literals.axes(params[name]) if names_axes else self.literals.of(params[name])

    def scan(self, params: Any, operands: list[str]) -> tuple[str, bool]:
        self.helpers["scan"] = SCAN
        num_consts, num_carry = _compat.scan_counts(params, len(operands))
        body = self.function(params["jaxpr"], "loop_body")
        carry = num_consts + num_carry
        parts = [_tuple(operands[:num_consts]), _tuple(operands[num_consts:carry]), _tuple(operands[carry:])]
        options = {name: params[name] for name in ("length", "reverse", "unroll")}
        text = ", ".join(f"{name}={value!r}" for name, value in options.items() if value is not False)
        return f"scan({body}, {', '.join(parts)}, {text})", True

    def while_loop(self, params: Any, operands: list[str]) -> tuple[str, bool]:
        self.helpers["while_loop"] = WHILE
        cond = self.function(params["cond_jaxpr"], "loop_goes_on")
        body = self.function(params["body_jaxpr"], "loop_body")
        first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
        parts = [cond, _tuple(operands[:first]), body, _tuple(operands[first:second]), _tuple(operands[second:])]
        return f"while_loop({', '.join(parts)})", True

    def cond(self, params: Any, operands: list[str]) -> tuple[str, bool]:
        branches = [self.function(branch, "branch") for branch in params["branches"]]
        return f"lax.switch({operands[0]}, [{', '.join(branches)}], {', '.join(operands[1:])})", True

    def called(self, params: Any, operands: list[str]) -> tuple[str, bool]:
        jaxpr = params["jaxpr"] if "jaxpr" in params else params["call_jaxpr"]
        return f"{self.function(jaxpr, str(params.get('name', 'function')))}({', '.join(operands)})", True

    def checkpoint(self, params: Any, operands: list[str]) -> tuple[str, bool]:
        """A recomputed block lies behind a barrier, as JAX lowers it."""
        name = self.function(params["jaxpr"], "checkpointed")
        if params["differentiated"] and params["prevent_cse"]:
            return f"{name}(*lax.optimization_barrier({_tuple(operands)}))", True
        return f"{name}({', '.join(operands)})", True

    def shard_map(self, params: Any, operands: list[str]) -> tuple[str, bool]:
        mesh = params["mesh"]
        body = self.function(params["jaxpr"], _main_operator(params["jaxpr"]))
        manual = frozenset(params.get("newly_manual_axes", params.get("manual_axes", mesh.axis_names)))
        in_specs, out_specs = (_tuple(list(map(self.literals.spec, params[key]))) for key in ("in_specs", "out_specs"))
        some = ""
        if manual != set(mesh.axis_names):
            some = f", axis_names={self.literals.of(frozenset(map(str, manual)))}"
        mapped = (
            f"jax.shard_map({body}, mesh={self.literals.mesh_name(mesh)}, in_specs={in_specs}, out_specs={out_specs}, "
            f"check_vma={params['check_vma']}{some})"
        )
        return f"{mapped}({', '.join(operands)})", True

    def constraint(self, params: Any, operands: list[str]) -> tuple[str, bool]:
        sharding = params["sharding"]
        if not isinstance(sharding, jax.sharding.NamedSharding) or params.get("layout") is not None:
            raise NotWritable(f"the sharding {sharding}")
        return f"lax.with_sharding_constraint({operands[0]}, {self.literals.of(sharding)})", False

    def device_put(self, params: Any, operands: list[str]) -> tuple[str, bool]:
        places = _tuple([self.literals.of(place) for place in params["devices"]])
        return f"jax.device_put({_tuple(operands)}, {places})", True


_Special = Callable[[Functions, Any, list[str]], tuple[str, bool]]
_SPECIAL: Mapping[str, _Special] = {
    "scan": Functions.scan,
    "while": Functions.while_loop,
    "cond": Functions.cond,
    "jit": Functions.called,
    "pjit": Functions.called,
    "closed_call": Functions.called,
    "core_call": Functions.called,
    "custom_jvp_call": Functions.called,
    "custom_vjp_call": Functions.called,
    "checkpoint": Functions.checkpoint,
    "remat": Functions.checkpoint,
    "remat2": Functions.checkpoint,
    "shard_map": Functions.shard_map,
    "sharding_constraint": Functions.constraint,
    "device_put": Functions.device_put,
}


def _is_open(value: Any) -> bool:
    """Whether a parameter is a sharding that says nothing, because no axis of its mesh is explicit."""
    is_named = isinstance(value, jax.sharding.NamedSharding)
    return is_named and all(kind != jax.sharding.AxisType.Explicit for kind in value.mesh.axis_types)


def _main_operator(jaxpr: Any) -> str:
    """The collective of a manual region, or else its dot."""
    names = [eqn.primitive.name for eqn in jaxpr.eqns]
    found = next((name for name in (*ONE_OPERAND, "dot_general") if name in names), "on_pieces")
    return {"dot_general": "dot", "psum": "all_reduce"}.get(found, found)


def _tuple(items: Sequence[str]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


def _short(eqn: Any) -> str:
    return {"sharding_constraint": "placed", "shard_map": "pieces", "dot_general": "dot"}.get(
        eqn.primitive.name, re.sub(r"\W", "_", eqn.primitive.name)
    )


def _where(eqn: Any) -> str:
    """Line of the step and name stack of an equation; '' where the lowering put it in."""
    line = _compat.eqn_source_line(eqn)
    if not line:
        return ""
    _, _, rest = line.rpartition("/")
    stack = _compat.eqn_name_stack(eqn)
    return f"{rest}  {stack}".rstrip()
