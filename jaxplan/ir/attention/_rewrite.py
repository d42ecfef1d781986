"""A program with each attention as one operator of the forward pass and one of the backward pass."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxplan.ir._program import Equation, Program
from jaxplan.ir._rewrite import Rewrite
from jaxplan.ir._rule import OperatorRule
from jaxplan.ir.attention._chain import Reader
from jaxplan.ir.attention._found import Found, Side
from jaxplan.ir.attention._match import attention_at
from jaxplan.ir.attention._operator import (
    BACKWARD_PRIMITIVE,
    FORWARD_PRIMITIVE,
    VALUE_WIDTH,
    WIDTH,
    Attention,
    Labels,
)

GRADIENTS = ("queries", "keys", "values")


def find_attentions(program: Program, rules: Sequence[OperatorRule]) -> list[Found]:
    """Every attention of a program, in the order of their softmaxes."""
    consumers: dict[int, list[Equation]] = defaultdict(list)
    for eqn in program.equations:
        for t in dict.fromkeys(eqn.operands):
            consumers[t].append(eqn)
    producers: dict[int, dict[int, Equation]] = defaultdict(dict)
    for eqn in program.equations:
        producers[eqn.region].update(dict.fromkeys(eqn.results, eqn))
    makers = {t: eqn for of in producers.values() for t, eqn in of.items()}
    found = [
        attention_at(
            Reader(
                program=program,
                rules=tuple(rules),
                producer=producers[eqn.region],
                makers=makers,
                consumers=consumers,
            ),
            eqn,
        )
        for eqn in program.equations
        if eqn.name == "reduce_max"
    ]
    made = {t: eqn.index for eqn in program.equations for t in eqn.results}
    return [attention for attention in found if attention is not None and _is_ordered(attention, made)]


def _is_ordered(found: Found, made: Mapping[int, int]) -> bool:
    """Whether everything that the operators read is computed before they run."""
    read = [
        found.queries,
        found.keys,
        found.values,
        found.cotangent,
        *(Side(*side) for side in found.chain.sides),
    ]
    dots = [found.dot] if found.dot is not None else []
    dots += [min(found.dots.values(), key=lambda eqn: eqn.index)] if found.dots else []
    forward = read[:3] + read[4:]
    return all(
        side is None or made.get(side.tensor, -1) < dot.index
        for dot, of in zip(dots, (forward, read) if len(dots) == 2 else (read,))
        for side in of
    )


def fused_attention(program: Program, rules: Sequence[OperatorRule], form: str) -> Program:
    """The program with every attention fused; itself where there is none."""
    found = find_attentions(program, rules)
    if not found:
        return program
    rewrite = Rewrite(program=program)
    for attention in found:
        _replace(rewrite, attention, form)
    return dataclasses.replace(rewrite.done(f"attention {form}"), sequences=form)


def _replace(rewrite: Rewrite, found: Found, form: str) -> None:
    """One attention by its operators: the forward one stands at its dot, or, recomputed, in front of the backward
    one, which stands at the first dot that reads a cotangent."""
    program, (product, scores) = rewrite.program, found.chain.product
    rows = tuple(label for label in scores if label != found.key)
    sides = [Side(*value) for value in found.chain.sides]
    dots = [found.dots[name] for name in (*GRADIENTS, "weights") if name in found.dots]
    place = found.dot or min(dots, key=lambda eqn: eqn.index)
    assert found.values is not None
    result = found.result or _added(rewrite, found.values.tensor, (*rows, VALUE_WIDTH), found)
    sums = _added(rewrite, product, rows, found)
    operands = (found.queries, found.keys, found.values, *sides)
    chain = {"key": found.key, "query": found.query, "chain": found.chain.scores(), "form": form}
    chain |= {"scores": scores, "dtype": program.tensors[product].dtype}
    forward = _operator(rewrite, place, operands, (result, sums), chain)
    if found.dot is not None:
        rewrite.instead[place.index] = forward
    else:
        rewrite.before[place.index].append(forward)
    if found.cotangent is None:
        return
    gradients = [
        found.gradients.get(name) or _added(rewrite, side.tensor, side.labels, found)
        for name, side in zip(GRADIENTS, operands)
    ]
    first = min(dots, key=lambda eqn: eqn.index)
    rewrite.instead |= dict.fromkeys(eqn.index for eqn in dots)
    operands = (*operands, result, sums, found.cotangent)
    rewrite.instead[first.index] = _operator(rewrite, first, operands, gradients, chain)


def _operator(
    rewrite: Rewrite,
    place: Equation,
    operands: Sequence[Side],
    results: Sequence[Side],
    chain: dict[str, Any],
) -> Equation:
    """The equation of an attention, in the place of one of its dots."""
    attention = Attention(
        operands=tuple(side.labels for side in operands),
        results=tuple(side.labels for side in results),
        dtypes=tuple(rewrite.tensors[side.tensor].dtype for side in results),
        **chain,
    )
    return dataclasses.replace(
        place,
        primitive=BACKWARD_PRIMITIVE if attention.is_backward else FORWARD_PRIMITIVE,
        params={"attention": attention},
        operands=tuple(side.tensor for side in operands),
        results=tuple(side.tensor for side in results),
    )


def _added(rewrite: Rewrite, like: int, labels: Labels, found: Found) -> Side:
    """A new array: a result or gradient of the dtype of another, or row sums in float32 or more."""
    assert found.values is not None
    shapes = {
        WIDTH: _size(rewrite, found.queries, WIDTH),
        VALUE_WIDTH: _size(rewrite, found.values, VALUE_WIDTH),
    }
    product = rewrite.tensors[found.chain.product[0]]
    shape = tuple(shapes[label] if label < 0 else product.shape[label] for label in labels)
    index = rewrite.add(like, shape, product.trips)
    if not {WIDTH, VALUE_WIDTH} & set(labels):
        dtype = np.dtype(jnp.promote_types(jnp.float32, product.dtype))
        rewrite.tensors[index] = dataclasses.replace(
            rewrite.tensors[index], dtype=dtype, itemsize=dtype.itemsize
        )
    return Side(index, labels)


def _size(rewrite: Rewrite, side: Side, label: int) -> int:
    return rewrite.tensors[side.tensor].shape[side.labels.index(label)]
