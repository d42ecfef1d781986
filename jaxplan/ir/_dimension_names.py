"""Names of dimensions as people use them, by the operators that use a dimension; paths of parameters play no part.

=============  =========================================================================================================
name           evidence in the forward pass
=============  =========================================================================================================
sequence       a softmax over the scores of a dot of two activations normalises it, and a second dot sums over it
               (attention: keys, and the queries across from them); a convolution with one spatial dimension slides
               over it; or a loop runs over it and a table is looked up along it
heads          the dimension that both dots of attention map, comes from features, and is no batch
head_dim       the first dot of attention sums over it, and the second takes it from the values
hidden         projections to queries, keys or values sum over it, and the projection behind attention returns it
vocabulary     rows of a table that integers of the data address along a sequence, with the scores of such rows; or rows
               that are scores themselves, because one table is both (tied embeddings)
classes        scores that integer labels pick from, where no table has as many rows
experts        both operands of a dot with a parameter and its result have it, and a maximum, a sort or a top-k over it
               routes; or groups of a ragged dot
rows, columns  first and second spatial dimension of a two-dimensional convolution, where no dot sums over it
channels       features of a convolution
=============  =========================================================================================================

A dimension with evidence for two names has neither, with two exceptions: rows are a sequence where one convolution
alone cuts them into patches and every attention is over them, and the features that attention projects are hidden
ones although a convolution makes them, unless a two-dimensional convolution reads them.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from jaxplan.ir._batch import Batch
from jaxplan.ir._dimension_uses import DimensionUses, Dot
from jaxplan.ir._dimensions import NamedDimensions
from jaxplan.ir._image_rows import names_of_rows
from jaxplan.ir._parameter_reads import PASSED_ON
from jaxplan.ir._program import Equation, Program
from jaxplan.ir._rule import OperatorRule
from jaxplan.ir._union import UnionFind
from jaxplan.ir._values import Values

_KEEPS_ELEMENTS = frozenset({"elementwise", "shape"})
_CUTS = frozenset({"slice", "dynamic_slice", "pad", "concatenate"})
_MOST_STEPS = 200
"""Equations between two dots of one attention, at most: a walk that is longer has left it."""



@dataclass(frozen=True, slots=True, kw_only=True)
class _Attention:
    """``scores`` of queries and keys, softmax over ``keys``, and the sum of ``values`` by them."""

    scores: Dot
    values: Dot
    keys: int
    probabilities: int  # operand of ``values`` that holds them


def dimension_names(
    program: Program, rules: Sequence[OperatorRule], values: Values, named: NamedDimensions, batch: Batch
) -> NamedDimensions:
    """The same dimensions under the names that the operators give them; those without evidence, or with evidence for
    two, keep their paths."""
    uses = DimensionUses(program=program, rules=rules, values=values, named=named, batch=batch)
    evidence = _Evidence(uses=uses)
    renamed = named.with_names(evidence.names())
    return dataclasses.replace(renamed, names_at=names_of_rows(uses, renamed, evidence.rows, evidence.convolutions))


@dataclass(frozen=True, kw_only=True)
class _Evidence:
    uses: DimensionUses

    def names(self) -> dict[int, str]:
        found: dict[int, set[str]] = defaultdict(set)
        for name, dimensions in self._claims().items():
            for k in dimensions:
                if k >= 0 and k not in self.uses.batch.dimensions:
                    found[k].add(name)
        return {k: name for k, claimed in found.items() if (name := self._settled(k, claimed))}

    def _settled(self, k: int, claimed: set[str]) -> str:
        if claimed == {"sequence", "rows"} and self._is_patches(k):
            claimed = {"sequence"}
        if claimed == {"hidden", "channels"}:
            claimed = {"channels"} if k in self._read_by_images else {"hidden"}
        return next(iter(claimed)) if len(claimed) == 1 else ""

    def _is_patches(self, k: int) -> bool:
        return self._num_convolutions[k] == 1 and all(one.keys == k for one in self._attentions)

    def _claims(self) -> dict[str, set[int]]:
        attentions = self._attentions
        heads, head_dims = set(), set()
        for one in attentions:
            features = [k for k in one.scores.mapped if k in self._features and k not in self.uses.batch.dimensions]
            heads |= set(features) if len(features) == 1 else set()
            taken = [k for k in one.values.free[1 - one.probabilities] if k != one.keys]
            for dims in (one.scores.summed, taken):
                head_dims |= set(dims) if len(dims) == 1 else set()
        vocabulary, classes = self._scored()
        return {
            "sequence": self._sequences,
            "heads": heads,
            "head_dim": head_dims,
            "hidden": self._hidden(),
            "vocabulary": vocabulary,
            "classes": classes,
            "experts": self._experts() - heads,
            **self._images(),
        }

    @cached_property
    def _features(self) -> frozenset[int]:
        """Dimensions that a dot with a parameter gives to its result, and those that are cut from them."""
        found = {k for dot in self.uses.dots.values() if dot.leaf is not None for k in dot.free[dot.leaf]}
        for eqn, rule in self.uses.forward:
            if rule.family != "shape":
                continue
            minor = {f for t, dims in zip(eqn.operands, rule.operands, strict=True)
                     for k, factors in zip(self.uses.dims(t), dims, strict=True) if k in found for f in factors}
            for t, dims in zip(eqn.results, rule.results, strict=True):
                cut = zip(self.uses.dims(t), dims, strict=True)
                found |= {k for k, factors in cut if factors and factors[0] in minor and k >= 0}
        return frozenset(found)

    # Attention

    def _same_elements(self, t: int) -> Iterator[tuple[Equation, int]]:
        """(equation, operand) that read a tensor or an element-wise result of it."""
        size, seen, stack = self.uses.program.tensors[t].num_elements, {t}, [t]
        for _ in range(_MOST_STEPS):
            if not stack:
                return
            t = stack.pop()
            for e in self.uses.values.consumers[t]:
                eqn = self.uses.program.equations[e]
                if eqn.phase != "forward":
                    continue
                yield eqn, eqn.operands.index(t)
                if self._keeps_elements(e):
                    tensors = self.uses.program.tensors
                    new = [r for r in eqn.results if tensors[r].num_elements == size and r not in seen]
                    seen.update(new)
                    stack += new

    def _keeps_elements(self, e: int) -> bool:
        """Whether each element of the result is one of an operand, or a function of it; so does a dot without a sum,
        such as a mask of heads."""
        name = self.uses.program.equations[e].name
        if name in PASSED_ON or self.uses.rules[e].family in _KEEPS_ELEMENTS:
            return True
        return e in self.uses.dots and not self.uses.dots[e].summed

    def _reduced(self, eqn: Equation) -> tuple[int, ...]:
        rule, named = self.uses.rules[eqn.index], self.uses.dims(eqn.operands[0])
        reduced = [d for d, f in enumerate(rule.operands[0]) if f and rule.factors[f[0]].kind == "reduce"]
        return tuple(named[d] for d in reduced)

    @cached_property
    def _attentions(self) -> list[_Attention]:
        found = []
        for dot in self.uses.dots.values():
            if dot.leaf is None and dot.summed and all(dot.free):
                found += self._attention_of(dot)
        return found

    def _attention_of(self, scores: Dot) -> list[_Attention]:
        readers = list(self._same_elements(self.uses.program.equations[scores.equation].results[0]))
        between = {*scores.free[0], *scores.free[1]}.difference(self.uses.batch.dimensions)
        normalised = {self._reduced(eqn) for eqn, _ in readers if eqn.name == "reduce_max"}
        keys = {dims[0] for dims in normalised if len(dims) == 1} & between
        found = []
        for eqn, operand in readers:
            dot = self.uses.dots.get(eqn.index)
            if dot is not None and dot.leaf is None and len(keys.intersection(dot.summed)) == 1 and operand < 2:
                (key,) = keys.intersection(dot.summed)
                found.append(_Attention(scores=scores, values=dot, keys=key, probabilities=operand))
        return found

    @cached_property
    def _sequences(self) -> set[int]:
        found = set(self._slid | self._looped)
        for one in self._attentions:
            found.add(one.keys)
            for mine, other in (one.scores.free, one.scores.free[::-1]):
                across = [k for k in other if k not in self._held]
                if mine == (one.keys,) and one.keys not in other and len(across) == 1:
                    found.add(across[0])
        return found

    @cached_property
    def _parts_of_sequences(self) -> frozenset[int]:
        """Sequences, and parts that are cut from them or joined to them: all tokens but the last, the next ones."""
        joined = UnionFind(len(self.uses.named.dimensions))
        for eqn, _ in self.uses.forward:
            if eqn.name in _CUTS:
                for mine, part in zip(self.uses.dims(eqn.operands[0]), self.uses.dims(eqn.results[0]), strict=True):
                    if mine >= 0 and part >= 0:
                        joined.join(mine, part)
        sequences = {joined.find(k) for k in self._sequences}
        return frozenset(k for k in range(len(self.uses.named.dimensions)) if joined.find(k) in sequences)

    @cached_property
    def _held(self) -> frozenset[int]:
        """Dimensions of parameters that are multiplied."""
        found: set[int] = set()
        for dot in self.uses.dots.values():
            if dot.leaf is not None:
                found.update(self.uses.dims(self.uses.program.equations[dot.equation].operands[dot.leaf]))
        return frozenset(found)

    def _hidden(self) -> set[int]:
        """Dimensions that projections into attention sum over, as far as projections behind it return them."""
        summed, returned = set(), set()
        for one in self._attentions:
            operands = (*self.uses.program.equations[one.scores.equation].operands[:2],
                        self.uses.program.equations[one.values.equation].operands[1 - one.probabilities])
            for t in operands:
                projections = self._projections(t)
                summed |= {k for dot in projections for k in dot.summed} if len(projections) == 1 else set()
            for eqn, _ in self._same_elements(self.uses.program.equations[one.values.equation].results[0]):
                dot = self.uses.dots.get(eqn.index)
                if dot is not None and dot.leaf is not None:
                    returned |= set(dot.free[dot.leaf])
        return summed & returned

    def _projections(self, t: int) -> list[Dot]:
        """The dots that a tensor is computed of, without another dot between."""
        found, seen, stack = [], {t}, [t]
        for _ in range(_MOST_STEPS):
            if not stack:
                return found
            producer = self.uses.values.producer[stack.pop()]
            if producer in self.uses.dots:
                found.append(self.uses.dots[producer])
            elif producer >= 0:
                new = [r for r in self.uses.program.equations[producer].operands if r not in seen]
                seen.update(new)
                stack += new
        return []

    # Tables, labels, loops, experts, convolutions

    @cached_property
    def _tables(self) -> dict[int, set[int]]:
        """Rows of tables that integers of the data address, and the dimensions that they are looked up along."""
        return self._indexed(of_parameters=True)

    def _indexed(self, *, of_parameters: bool) -> dict[int, set[int]]:
        found: dict[int, set[int]] = defaultdict(set)
        for eqn, rule in self.uses.forward:
            if rule.family != "gather" or len(rule.indexed) != 1 or self.uses.origins[eqn.operands[1]] != "integers":
                continue
            if (self.uses.leaf(eqn.operands[0]) is not None) != of_parameters:
                continue
            (factor, _), named = rule.indexed[0], self.uses.dims(eqn.operands[0])
            rows = next(named[d] for d, factors in enumerate(rule.operands[0]) if factors == (factor,))
            found[rows].update(self.uses.dims(eqn.operands[1]))
        return found

    @cached_property
    def _looped(self) -> set[int]:
        """Dimensions that tables are looked up along and a loop runs over, and those that the loop stacks."""
        along = {k for of in self._tables.values() for k in of}
        found: set[int] = set()
        for region in self.uses.program.regions:
            entries = [self.uses.program.equations[e] for body in region.entries for e in body]
            slices = [e.operands[0] for e in entries if e.params["role"] == "x" and e.phase == "forward"]
            taken = {self.uses.dims(t)[0] for t in slices if self.uses.leaf(t) is None} & (along | found)
            if taken:
                exits = [self.uses.program.equations[e] for e in region.exits]
                found |= taken | {self.uses.dims(e.results[0])[0] for e in exits if e.params["role"] == "y"}
        return found

    def _picked(self) -> dict[int, set[int]]:
        """Scores that integer labels pick from, and the dimensions of the labels."""
        found = self._indexed(of_parameters=False)
        for eqn, _ in self.uses.forward:
            origins = [self.uses.origins[t] for t in eqn.operands]
            if eqn.name == "eq" and set(origins) == {"free", "integers"}:
                rows = self._counted(eqn.operands[origins.index("free")])
                result = set(self.uses.dims(eqn.results[0]))
                if rows in result:
                    found[rows] |= result - {rows}
        return found

    def _counted(self, t: int) -> int:
        """The dimension along which a constant counts (an iota); -1 for any other."""
        producer = self.uses.values.producer[t]
        while producer >= 0:
            eqn = self.uses.program.equations[producer]
            if eqn.name == "iota":
                return self.uses.dims(eqn.results[0])[eqn.params["dimension"]]
            if eqn.name not in PASSED_ON | {"broadcast_in_dim"}:
                return -1
            producer = self.uses.values.producer[eqn.operands[0]]
        return -1

    def _scored(self) -> tuple[set[int], set[int]]:
        """Vocabularies, and classes."""
        scores = {k for dot in self.uses.dots.values() if dot.leaf is not None for k in dot.free[dot.leaf]}
        picked = {k: along for k, along in self._picked().items() if k in scores}
        tables = {k for k, along in self._tables.items() if along & self._sequences}
        sizes = {self.uses.named.dimensions[k].size for k in tables}
        along_sequence = {k for k, along in picked.items() if along & self._parts_of_sequences}
        scored = {k for k in along_sequence if self.uses.named.dimensions[k].size in sizes}
        if len(tables) == 1:
            vocabulary = set(tables)
        else:
            scored_sizes = {self.uses.named.dimensions[k].size for k in scored}
            vocabulary = {k for k in tables if k in scores or self.uses.named.dimensions[k].size in scored_sizes}
        sizes = {self.uses.named.dimensions[k].size for k in vocabulary}
        vocabulary |= {k for k in scored if self.uses.named.dimensions[k].size in sizes}
        vocabulary |= picked.keys() & self._tables.keys()
        return vocabulary, picked.keys() - vocabulary

    def _experts(self) -> set[int]:
        found, routed = set(), set()
        for eqn, _ in self.uses.forward:
            if eqn.name in ("reduce_max", "argmax"):
                routed |= set(self._reduced(eqn))
            elif eqn.name in ("top_k", "sort") and self.uses.program.tensors[eqn.operands[0]].shape:
                routed.add(self.uses.dims(eqn.operands[0])[eqn.params.get("dimension", -1)])
            elif eqn.name == "ragged_dot_general" and self.uses.leaf(eqn.operands[1]) is not None:
                groups = eqn.params["ragged_dot_dimension_numbers"].rhs_group_dimensions
                found |= {self.uses.dims(eqn.operands[1])[d] for d in groups}
        for dot in self.uses.dots.values():
            if dot.leaf is not None:
                found |= routed.intersection(dot.mapped)
        return found

    @cached_property
    def _slid(self) -> frozenset[int]:
        """Dimensions that convolutions with one spatial dimension slide over."""
        return frozenset(dims[2] for _, dims in self._convolved if len(dims) == 3)

    def _images(self) -> dict[str, set[int]]:
        """Rows, columns and channels.

        A dimension that others slide over alone is time, so the second is no column; one that a dot with a parameter
        sums over leads a flattened image (the patches of an MLP-Mixer).
        """
        images = [dims for _, dims in self._convolved if len(dims) == 4 and dims[2] not in self._slid]
        flattened = {k for dot in self.uses.dots.values() if dot.leaf is not None for k in dot.summed}
        return {
            "rows": {dims[2] for dims in images} - flattened,
            "columns": {dims[3] for dims in images} - flattened,
            "channels": {dims[1] for _, dims in self._convolved},
        }

    @property
    def rows(self) -> set[int]:
        """Dimensions that begin with the rows of images."""
        return self._images()["rows"]

    @property
    def _read_by_images(self) -> set[int]:
        return {dims[1] for is_operand, dims in self._convolved if is_operand and len(dims) == 4}

    @cached_property
    def _convolved(self) -> list[tuple[bool, tuple[int, ...]]]:
        """(is it the operand, batch, features and spatial dimensions) of the data and result of each convolution."""
        found = []
        for eqn in self.convolutions:
            numbers = eqn.params["dimension_numbers"]
            for t, places in ((eqn.operands[0], numbers.lhs_spec), (eqn.results[0], numbers.out_spec)):
                named = self.uses.dims(t)
                found.append((t == eqn.operands[0], tuple(named[place] for place in places)))
        return found

    @cached_property
    def convolutions(self) -> list[Equation]:
        """Those of the data with a parameter."""
        found = [eqn for eqn, rule in self.uses.forward if rule.family == "convolution"]
        return [eqn for eqn in found if self.uses.leaf(eqn.operands[1]) is not None]

    @cached_property
    def _num_convolutions(self) -> Counter[int]:
        """By how many convolutions each dimension is read."""
        return Counter(k for eqn in self.convolutions for k in set(self.uses.dims(eqn.operands[0])))
