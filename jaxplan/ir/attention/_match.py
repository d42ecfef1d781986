"""Finds attention in a program: a dot, scores, a softmax over keys, a dot; and its gradient, by the values computed.

From the maximum over keys on, every value that is made of the scores is followed, and must have a place: it is a
weight, a row sum, a gradient of these, or one of five dots. Where one value has none (dropout of weights, weights that
are returned), the attention stays as it is.
"""

from __future__ import annotations

from jaxplan.ir._program import Equation
from jaxplan.ir.attention._chain import Reader, chain_of, main_path
from jaxplan.ir.attention._follow import Follower
from jaxplan.ir.attention._found import Found, Unknown, dot_sides
from jaxplan.ir.attention._operator import WIDTH


def attention_at(reader: Reader, maximum: Equation) -> Found | None:
    """The attention with this maximum over keys; None where there is none, or only a part of one."""
    try:
        found = _scores_at(reader, maximum)
        return None if found is None else Follower(reader, found, maximum).follow()
    except Unknown:
        return None


def _scores_at(reader: Reader, maximum: Equation) -> Found | None:
    """Queries, keys, and how the scores are made of them."""
    axes, scores = tuple(maximum.params["axes"]), maximum.operands[0]
    path = main_path(reader, scores) if len(axes) == 1 else None
    if path is None:
        return None
    product = next((t for eqn in path[-1:] for t in eqn.operands if _is_dot_of(reader, t, scores)), scores)
    dot = reader.producer.get(product)
    if dot is None or dot.name != "dot_general":
        return None
    labels = tuple(range(len(reader.program.tensors[product].shape)))
    axis = axes[0]
    for eqn in path:
        if eqn.name == "transpose":
            axis = eqn.params["permutation"][axis]
    sides = dot_sides(reader, dot, labels)
    if sides is None or not any(axis in side.labels for side in sides):
        return None
    keys, queries = sides if axis in sides[0].labels else sides[::-1]
    if axis in queries.labels:
        return None
    shape = reader.program.tensors[product].shape
    rows = [label for label in queries.labels if label != WIDTH and label not in keys.labels]
    alike = [label for label in rows if shape[label] == shape[axis]]
    others = [label for label in keys.labels if label not in queries.labels and label != axis]
    if not alike or others or shape[axis] == 1:
        return None
    chain = chain_of(reader, path, product, labels, (axis, alike[-1]))
    return (
        None if chain is None else Found(chain=chain, queries=queries, keys=keys, key=axis, query=alike[-1])
    )


def _is_dot_of(reader: Reader, t: int, scores: int) -> bool:
    made, tensors = reader.producer.get(t), reader.program.tensors
    return (
        made is not None
        and made.name == "dot_general"
        and tensors[t].num_elements == tensors[scores].num_elements
    )
