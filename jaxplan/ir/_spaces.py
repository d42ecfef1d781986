"""The iteration spaces of all groups: each structure is worked out once, so that equal layers cost one layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from jaxplan.core._interner import Memo
from jaxplan.ir._grouping import Group
from jaxplan.ir._space import GroupSpace, SpaceFacts, group_space


@dataclass(frozen=True, slots=True, kw_only=True)
class _Structure:
    """The structure of a space, apart from names.

    Attributes:
      key: equal for groups with spaces that differ in names alone.
      tensors: the group's tensors in order of appearance.
      names: its named dimensions, ascending; classes without one come last.
    """

    key: Hashable
    tensors: tuple[int, ...]
    names: tuple[int, ...]


Structures = Memo
"""Structures that are known, by their keys: the group, in some program, that was the first of each, its structure and
its space."""


def group_spaces(groups: Sequence[Group], facts: SpaceFacts, known: Structures) -> list[GroupSpace]:
    """`group_space` of every group; new structures are added to ``known``."""
    classes = Memo()
    spaces = []
    for group in groups:
        structure = _structure(group, facts, known)
        if structure.key in known:
            like, of_like, space = known[structure.key]
            spaces.append(_renamed(like, of_like, space, group, structure, classes))
        else:
            space = group_space(group, facts)
            known[structure.key] = group, structure, space
            spaces.append(space)
    return spaces


def _structure(group: Group, facts: SpaceFacts, known: Structures) -> _Structure:
    program, named = facts.program, facts.named
    place: dict[int, int] = {t: i for i, t in enumerate(group.inputs)}
    equations = []
    for e in group.equations:
        eqn = program.equations[e]
        held = [place.setdefault(t, len(place)) for t in eqn.operands]
        made = [place.setdefault(t, len(place)) for t in eqn.results]
        equations.append((eqn.name, known.number(facts.rules[e]), tuple(held), tuple(made)))
    last = len(named.dimensions)
    tensors, first = [program.tensors[t] for t in place], {}
    dims = [[named.of.get((t.index, d), last) for d in range(len(t.shape))] for t in tensors]
    names = sorted({name for of in dims for name in of})
    rank = {name: k for k, name in enumerate(names)}
    described = tuple(
        [
            (
                tensor.shape,
                tensor.kind == "literal",
                first.setdefault(facts.number[tensor.index], i),
                place.get(facts.primal_of.get(tensor.index, -1), -1),
                tuple([rank[name] for name in of]),
            )
            for i, (tensor, of) in enumerate(zip(tensors, dims))
        ]
    )
    return _Structure(
        key=(group.kind, len(group.inputs), tuple(equations), described, last in rank),
        tensors=tuple(place),
        names=tuple(names),
    )


def _renamed(
    like: Group,
    known: _Structure,
    space: GroupSpace,
    group: Group,
    structure: _Structure,
    classes: Memo,
) -> GroupSpace:
    """The space of one group for another of the same structure; ``classes`` holds those that were renamed before."""
    key = (classes.number(space), structure.names)
    if key not in classes:
        name = dict(zip(known.names, structure.names))
        classes[key] = tuple(
            dataclasses.replace(c, named_dimension=name.get(c.named_dimension, -1)) for c in space.classes
        )
    tensor, equation = dict(zip(known.tensors, structure.tensors)), dict(zip(like.equations, group.equations))
    return GroupSpace(
        classes=classes[key],
        factor_class={equation[e]: of for e, of in space.factor_class.items()},
        tensor_dims={tensor[t]: dims for t, dims in space.tensor_dims.items()},
        tensor_partial={tensor[t]: partial for t, partial in space.tensor_partial.items()},
        operand_partial=space.operand_partial,
    )
