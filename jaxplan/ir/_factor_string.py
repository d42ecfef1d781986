"""Factor strings: rules written as people write einsum and einops, ``(h w) c -> h w c``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from jaxplan.errors import RuleError
from jaxplan.ir._rule import Factor, FactorKind, OperatorRule, Reducer, TensorFactors

_TOKEN = re.compile(r"\s*(\w+|[()])")
_FORM = "expected something like 'b i k, b k j -> b i j' or '(h w) c -> h w c'"


def factor_rule(
    notation: str,
    sizes: Mapping[str, int],
    *,
    reduce: Mapping[str, Reducer] | None = None,
    whole: Sequence[str] = (),
    window: Sequence[str] = (),
    family: str = "contraction",
    linear: tuple[tuple[int, ...], ...] = (),
) -> OperatorRule:
    """The rule that a factor string says.

    Tensors are separated by commas, dimensions by spaces; ``(h w)`` is one dimension of two factors, major
    first; ``1`` is a dimension of size 1, ``()`` a scalar. Nothing before ``->`` means no operands. A name
    of size 1 is dropped.

    Args:
      notation: the factor string.
      sizes: size of every name.
      reduce: name -> reducer, for the names that no result has.
      whole, window: names of factors of these kinds; all others are ``map``.
      family, linear: as in `OperatorRule`.

    Raises:
      RuleError: malformed string, a name without a size, or a name that is only among the operands and not in
        ``reduce`` or ``whole``.

    Example:
      >>> rule = factor_rule("i k, k j -> i j", {"i": 32, "k": 16, "j": 64}, reduce={"k": "sum"})
      >>> [factor.kind for factor in rule.factors]
      ['map', 'reduce', 'map']
    """
    operands, results = (_parse_side(side, notation) for side in _split_arrow(notation))
    names = list(dict.fromkeys(name for tensor in (*operands, *results) for dim in tensor for name in dim))
    missing = [name for name in names if name not in sizes]
    if missing:
        raise RuleError(f"factor string {notation!r}: no size for {missing}; given were {dict(sizes)}")
    in_results = {name for tensor in results for dim in tensor for name in dim}
    reducers = reduce or {}
    for name in names:
        if name not in in_results and name not in reducers and name not in whole:
            raise RuleError(
                f"factor string {notation!r}: {name!r} is in no result; "
                f"add reduce={{{name!r}: 'sum'}} or whole=[{name!r}]"
            )
    kept = [name for name in names if sizes[name] != 1]
    index = {name: position for position, name in enumerate(kept)}
    kinds: dict[str, FactorKind] = {name: _kind(name, reducers, whole, window) for name in kept}
    return OperatorRule(
        factors=tuple(
            Factor(size=sizes[name], kind=kinds[name], reducer=reducers.get(name), name=name) for name in kept
        ),
        operands=tuple(_indices(tensor, index) for tensor in operands),
        results=tuple(_indices(tensor, index) for tensor in results),
        family=family,
        linear=linear,
    )


def _kind(
    name: str, reducers: Mapping[str, Reducer], whole: Sequence[str], window: Sequence[str]
) -> FactorKind:
    if name in reducers:
        return "reduce"
    if name in whole:
        return "whole"
    return "window" if name in window else "map"


def _indices(tensor: list[list[str]], index: Mapping[str, int]) -> TensorFactors:
    return tuple(tuple(index[name] for name in dim if name in index) for dim in tensor)


def _split_arrow(notation: str) -> list[str]:
    sides = notation.split("->")
    if len(sides) != 2:
        raise RuleError(f"factor string {notation!r} needs exactly one '->'; {_FORM}")
    return sides


def _parse_side(side: str, notation: str) -> list[list[list[str]]]:
    return [_parse_tensor(text, notation) for text in side.split(",")] if side.strip() else []


def _parse_tensor(text: str, notation: str) -> list[list[str]]:
    """Dimensions of one tensor, each a list of names."""
    if text.strip() == "()":
        return []
    if _TOKEN.sub("", text).strip():
        raise RuleError(f"factor string {notation!r}: cannot read {text.strip()!r}; {_FORM}")
    dims: list[list[str]] = []
    group: list[str] | None = None
    for token in _TOKEN.findall(text):
        if token == "(" and group is None:
            group = []
        elif token == ")" and group:
            dims.append(group)
            group = None
        elif token in "()":
            raise RuleError(f"factor string {notation!r}: unexpected {token!r} in {text.strip()!r}; {_FORM}")
        elif group is not None:
            group.append(token)
        else:
            dims.append([] if token == "1" else [token])
    if group is not None or not dims:
        raise RuleError(f"factor string {notation!r}: {text.strip()!r} is empty or not closed; {_FORM}")
    return dims
