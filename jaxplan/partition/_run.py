"""Evaluate a program as a plan says, under `jax.jit`: constraints, manual islands, transfers, barriers.

A copy that the plan makes again in the backward pass is tied by an optimization barrier to a value of that pass, so
that the compiler neither merges the two gathers nor issues the second one early.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxplan.core import _compat
from jaxplan.cost import Transfer, passes_partial, sharding_of
from jaxplan.ir import CONTRACTION_FAMILIES, CUT, JOIN, UNGROUPED, WHOLE, Equation
from jaxplan.mesh import Sharding, Step
from jaxplan.partition._behind import run_behind
from jaxplan.partition._evaluation import Place
from jaxplan.partition._indexed import in_bounds
from jaxplan.partition._local import run_local, runs_on_pieces
from jaxplan.partition._micro_batches import cut, join
from jaxplan.partition._regions import run_region
from jaxplan.partition._replay import Replay
from jaxplan.partition._steps import Executor
from jaxplan.partition._unpooled import scatter_to_own_zeros, wait_for_gradient
from jaxplan.partition._user_sharding import user_params
from jaxplan.xla import UNPOOLING, is_gradient

_Copy = tuple[int, Sharding, int]
"""A resharded value: tensor, layout, and which execution of its transfer."""
_Due = tuple[_Copy | int, Any]
"""A gradient: the copy that was resharded, or the tensor whose sum is still to be taken; and its value."""
_PINNED_FAMILIES = frozenset(
    {"contraction", "convolution", "gather", "scatter", "reduction", "region", "unknown", "window"}
)


def run_replay(replay: Replay, executor: Executor, arguments: Sequence[Any]) -> list[Any]:
    """Evaluate a planned program on flat global arguments; call under `jax.jit`."""
    return Run(replay, executor, {}, {}).run(arguments)


class Run:
    """The environment of one evaluation (see `jax.core.eval_jaxpr`)."""

    def __init__(self, replay: Replay, executor: Executor, env: Any, copies: Any) -> None:
        self.replay, self.executor = replay, executor
        self.graph, self.program = replay.graph, replay.graph.program
        self.env: MutableMapping[int, Any] = env
        self.copies: MutableMapping[_Copy, Any] = copies
        self.made: list[_Due] = []  # gradients since the last barrier of the backward pass
        self.due: list[_Due] = []  # those of the one before
        self.last_product: tuple[int, ...] = ()
        self.latest: dict[int, Any] = {}  # of the last product that makes no gradient of a parameter: its result
        self.passed: dict[tuple[int, int], Any] = {}  # operands that products kept apart share, as last read
        self.partway: dict[tuple[int, Sharding, tuple[Step, ...]], Any] = {}  # of transfers that begin alike
        self.early: set[int] = set()  # equations evaluated before their turn

    def run(self, arguments: Sequence[Any]) -> list[Any]:
        for t, value in zip(self.program.inputs, arguments, strict=True):
            self.env[t] = self.executor.constrain(value, self.replay.home(t)) if np.ndim(value) else value
        for tensor in self.program.tensors:
            if tensor.kind in ("literal", "constant"):
                self.env[tensor.index] = tensor.value
        end = len(self.program.equations)
        self.evaluate(0, end, -1)
        shardings = self.replay.out_layouts()
        return [
            self._read(t, sharding, end, None) for t, sharding in zip(self.program.outputs, shardings, strict=True)
        ]

    def evaluate(self, start: int, stop: int, region: int) -> None:
        """Evaluate a range of equations in the body of ``region`` (-1: outside of all)."""
        index = start
        while index < stop:
            inner = self.replay.region_at.get((region, index))
            if inner is not None:
                run_region(self, inner)
                last = inner.stop
            else:
                if index not in self.early:
                    self._evaluate(self.program.equations[index])
                last = index + 1
            if region < 0:  # a body sees the values around it, and they are not its own to forget
                for done in range(index, last):
                    for t in self.replay.last_use.get(done, ()):
                        self._forget(t)
            index = last

    def evaluate_again(self, indices: Sequence[int]) -> None:
        for eqn in self.equations(indices):
            self._evaluate(eqn)

    def evaluate_early(self, index: int) -> None:
        self.early.add(index)
        self._evaluate(self.program.equations[index])

    def child(self) -> Run:
        """An evaluation that sees this one's values and keeps its own."""
        return Run(self.replay, self.executor, ChainMap({}, self.env), ChainMap({}, self.copies))

    def equations(self, indices: Sequence[int]) -> list[Equation]:
        return [self.program.equations[i] for i in indices]

    def dtype(self, t: int) -> Any:
        return self.program.tensors[t].dtype

    def home(self, t: int) -> Sharding:
        return self.replay.home(t)

    def pin(self, t: int, value: Any) -> Any:
        """A value in the layout in which its group makes it."""
        placed = self.program.tensors[t].shape and self.graph.grouping.tensor_group[t] != UNGROUPED
        return self.executor.constrain(value, self.replay.home(t)) if placed else value

    def read_replicated(self, t: int, equation: int) -> Any:
        """A value whole on every device."""
        if self.graph.values.free[t] or self.graph.grouping.tensor_group[t] == UNGROUPED:
            return self.env[t]
        return self._read(t, Sharding.replicated(len(self.program.tensors[t].shape)), equation, None)

    def read_operand(self, eqn: Equation, position: int, tie: Place | None = None) -> Any:
        """An operand in the layout that the equation's group wants."""
        t, group = eqn.operands[position], self.graph.grouping.equation_group[eqn.index]
        if group == UNGROUPED:
            return self.read_replicated(t, eqn.index)
        sharding = self._required(eqn, group, t)
        if (
            sharding.partial and self.graph.values.free[t]
        ):  # what an accumulation starts from: zero on every device
            shape = self.program.tensors[t].shape
            return self.executor.constrain(
                jnp.zeros((self.executor.size(sharding.partial), *shape), self.dtype(t)), sharding
            )
        return self._read(t, sharding, eqn.index, tie)

    def tie(self, tensors: Sequence[int]) -> Place | None:
        """What a repeated copy waits for: the largest of the values that are there already, one of the backward pass if
        there is any; or else the product before (a parameter that is reshaped for a product is alone).

        Where the compiler computes what a product reads inside of it, what is there already is no buffer, and waiting
        for it would make one of it (the gradient of the logits). So there the copy waits for a product.
        """
        if self.replay.chip.fuses_products and self.latest:
            return self.latest, next(iter(self.latest))
        ready = [
            t
            for t in tensors
            if self.program.tensors[t].shape
            and self.program.tensors[t].kind == "computed"
            and t not in self.replay.late
            and not self.graph.values.free[t]
            and t in self.env
        ]
        if not ready:
            ready = [t for t in self.last_product if t in self.env]
        return (self.env, max(ready, key=self._lateness)) if ready else None

    def _lateness(self, t: int) -> tuple[bool, int]:
        made_by = self.program.equations[self.graph.values.producer[t]]
        return made_by.phase == "backward", self.program.tensors[t].num_elements

    def _forget(self, t: int) -> None:
        self.env.pop(t, None)
        self._forget_copies(t)

    def _forget_copies(self, t: int) -> None:
        for key in [key for key in self.copies if key[0] == t]:
            del self.copies[key]
        for key in [key for key in self.partway if key[0] == self.graph.values.merged[t]]:
            del self.partway[key]

    def _evaluate(self, eqn: Equation) -> None:
        if eqn.primitive is lax.optimization_barrier_p:
            self._barrier(eqn)
            return
        group = self.graph.grouping.equation_group[eqn.index]
        if group == UNGROUPED:
            operands = [self.read_replicated(t, eqn.index) for t in eqn.operands]
            self.env.update(zip(eqn.results, self._bind(eqn, operands), strict=True))
            return
        shardings = [self._required(eqn, group, t) for t in eqn.operands]
        operands = self._read_all(eqn, shardings)
        if eqn.index in self.replay.tables and self.made:
            operands = [self._zeros_in_turn(eqn, shardings[0]), *operands[1:]]
        family = self.graph.rules[eqn.index].family
        if eqn.index in self.replay.apart:
            self._read_apart(eqn, operands)
        if eqn.index in self.replay.awaited and family != "gather":
            there = [i for i in range(len(operands)) if self.replay.is_there(eqn, i)] or list(
                range(len(operands))
            )
            for i, value in zip(there, self._await(eqn, [operands[i] for i in there]), strict=True):
                operands[i] = value
        if (how := self.replay.unpooled.get(eqn.index)) is not None:
            operands = wait_for_gradient(self, eqn, how, operands)
        position = self.replay.settled.get(eqn.index)
        # A barrier writes what would be computed inside of the product (the gradient of logits), so none for nothing.
        if position is not None and (self.made or self.due or self.replay.is_there(eqn, position)):
            (operands[position],) = self._after_all([operands[position]])
        if eqn.index in self.replay.behind:
            first = self.replay.behind[eqn.index]
            operands = run_behind(self, eqn, first, operands, shardings, self.replay.written)
        results = self._apply(eqn, group, operands, shardings)
        if eqn.index in self.replay.awaited and family == "gather":
            results = self._await(eqn, results)
        elif eqn.index in self.replay.looked_up or eqn.index in self.replay.cut_apart:
            results = lax.optimization_barrier(results)
        self.env.update(zip(eqn.results, results, strict=True))
        if family in CONTRACTION_FAMILIES:
            self.last_product = eqn.results
            if not is_gradient(self.graph, eqn.results[0]):
                self.latest = {eqn.results[0]: results[0]}
        for t in eqn.results:
            if t in self.replay.gradients:
                self._resolve(t)
            elif t in self.replay.sums or t in self.replay.at_home:
                if t in self.replay.at_home:
                    self.env[t] = self.executor.as_stored(self.env[t], self.replay.home(t))
                self.made.append((t, self.env[t]))

    def _read_all(self, eqn: Equation, shardings: Sequence[Sharding]) -> list[Any]:
        """The operands; those whose copy is made again first, because the one that they wait for is read after it."""
        tie = self.tie(eqn.operands)
        if tie is not None and tie[1] in eqn.operands:
            sharding = shardings[eqn.operands.index(tie[1])]
            tie = next(((self.copies, key) for key in self.copies if key[:2] == (tie[1], sharding)), tie)
        found: dict[int, Any] = {}
        for i in sorted(range(len(shardings)), key=lambda i: eqn.operands[i] not in self.replay.late):
            found[i] = self._read(eqn.operands[i], shardings[i], eqn.index, tie)
        return [found[i] for i in range(len(shardings))]

    def _read_apart(self, eqn: Equation, operands: list[Any]) -> None:
        """Let a product read each operand that it shares through one barrier more than the product before."""
        for shared in self.replay.apart[eqn.index]:
            position = shared[1]
            if shared in self.passed:
                operands[position] = lax.optimization_barrier(self.passed[shared])
            self.passed[shared] = operands[position]

    def _await(self, eqn: Equation, values: list[Any]) -> list[Any]:
        """Parameters that are not to be gathered before these operands, or results, of an equation are there.

        What goes in is written: not what a product computes inside of it, probabilities of attention.
        """
        parameters = self.replay.awaited[eqn.index]
        values, waiting = lax.optimization_barrier((values, [self.env[t] for t in parameters]))
        self.env.update(zip(parameters, waiting, strict=True))
        return list(values)

    def _resolve(self, t: int) -> None:
        """A gradient goes to where its parameter is stored as soon as it is made."""
        transfer = self.replay.gradients[t]
        key = (t, transfer.target, 0)
        self.copies[key] = self.executor.as_stored(
            self._transfer(self.env[t], transfer, None), transfer.target
        )
        self.made.append((key, self.copies[key]))

    def _zeros_in_turn(self, eqn: Equation, sharding: Sharding) -> Any:
        """The zeros that a table's gradient is added to, there when the gradients made before it are where they go.

        The compiler was seen to make the zeros of 26 tables in one fusion, to hold all of them, and to put off products
        that make gradients until after the tables'.
        """
        fill = self.program.equations[self.graph.values.producer[eqn.operands[0]]]
        scalars = [self.program.tensors[t].value for t in fill.operands]
        made, self.made = self.made, []
        scalars = self._after(scalars, made)
        return self.executor.constrain(self._bind(fill, scalars)[0], sharding)

    def _barrier(self, eqn: Equation) -> None:
        """All equations of one barrier at the first of them: nothing of it is there before all of it is.

        Values that are computed for nothing pass by, or they would have to be stored. A barrier of the backward pass
        begins to compute a region again. The gradients of parameters that were resharded before the previous one
        have to be there by then: the compiler was seen to put off the products that make them to the end, and to
        keep all that they need until there.
        """
        if eqn.results[0] in self.env:
            return
        held: list[Equation] = []
        for other in self.program.equations[eqn.index :]:
            if other.primitive is not eqn.primitive or other.origin is not eqn.origin:
                break
            if self.graph.values.free[other.operands[0]]:
                self.env[other.results[0]] = self.env[other.operands[0]]
            else:
                held.append(other)
        again = [self._repeats(other) for other in held]
        values = [
            self.env[other.operands[0]] if transfer else self.read_operand(other, 0)
            for other, transfer in zip(held, again, strict=True)
        ]
        values = self.settle(values) if eqn.index in self.replay.settled_barriers else self._after_due(values)
        for other, transfer, value in zip(held, again, values, strict=True):
            self.env[other.results[0]] = self._transfer(value, transfer, None) if transfer else value
        if eqn.phase != "backward":
            self.due = []

    def _repeats(self, eqn: Equation) -> Transfer | None:
        """The transfer that is made again for a barrier: behind it, or the compiler would make both as one."""
        (t,), group = eqn.operands, self.graph.grouping.equation_group[eqn.index]
        if group == UNGROUPED or self.graph.grouping.tensor_group[t] == UNGROUPED:
            return None
        sharding = self._required(eqn, group, t)
        if self.replay.home(t) == sharding:
            return None
        (_, _, turn), transfer = self._copy(t, sharding, eqn.index)
        return transfer if turn else None

    def _after_due(self, values: Sequence[Any]) -> list[Any]:
        """Values that are there when the gradients are that were made before the last time this was asked for."""
        due, self.due, self.made = self.due, self.made, []
        return self._after(values, due)

    def _after_all(self, values: Sequence[Any], others: Sequence[_Due] = ()) -> list[Any]:
        """Values that are there when all gradients are, and ``others``, that were made so far."""
        made, self.made, self.due = [*self.due, *self.made, *others], [], []
        return self._after(values, made)

    def settle(self, values: Sequence[Any]) -> list[Any]:
        """Values that a loop of the backward pass, or a region computed again, begins with, there when all gradients
        made before it are, and parts of them."""
        return self._after_all(
            values, [(t, self.env[t]) for t in sorted(self.replay.summands) if t in self.env]
        )

    def _after(self, values: Sequence[Any], gradients: Sequence[_Due]) -> list[Any]:
        """Values that are there when the gradients are.

        The compiler forgets what a barrier holds and nobody reads, so what was computed of a gradient that was read
        already (a cast) is computed again of what comes out.
        """
        tied, made = lax.optimization_barrier((list(values), [value for _, value in gradients]))
        for (key, _), value in zip(gradients, made, strict=True):
            self._replace(key, value)
        return tied

    def _replace(self, key: _Copy | int, value: Any) -> None:
        """Put a value in the place of a tensor, or of a copy of it, and compute again what was computed of it."""
        t = key if isinstance(key, int) else key[0]
        was_forgotten = t not in self.env
        if isinstance(key, int):
            self._forget_copies(t)
            self.env[t] = value
        else:
            self.copies[key] = value
        for eqn in self.equations(self.graph.values.consumers[t]):
            if all(r in self.env for r in eqn.results) and self._is_made_of(eqn, key):
                self._evaluate(eqn)
        if was_forgotten:
            self._forget(t)

    def _is_made_of(self, eqn: Equation, key: _Copy | int) -> bool:
        """Whether an equation reads one array, and that is the one under ``key``; never one with an effect."""
        if not eqn.results or getattr(eqn.origin, "effects", None):
            return False
        arrays = [t for t in eqn.operands if self.program.tensors[t].kind != "literal"]
        if len(arrays) != 1 or isinstance(key, int):
            return len(arrays) == 1
        group = self.graph.grouping.equation_group[eqn.index]
        return group != UNGROUPED and self._required(eqn, group, key[0]) == key[1]

    def _apply(self, eqn: Equation, group: int, operands: list[Any], shardings: list[Sharding]) -> list[Any]:
        homes = [self.replay.home(t) for t in eqn.results]
        split = self._split(eqn, group)
        if runs_on_pieces(self.graph.rules[eqn.index], split):
            return self._island(eqn, operands, shardings, homes, split)
        if eqn.name == CUT:
            return [self._cut(eqn, operands[0], homes[0])]
        if any(sharding.partial for sharding in shardings):
            mapped = jax.vmap(lambda *args: self._bind(eqn, args))(*operands)
            return [self.executor.constrain(r, home) for r, home in zip(mapped, homes, strict=True)]
        if self.graph.rules[eqn.index].family == "user":
            return self._as_the_step_says(eqn, operands, homes)
        results = [
            self.executor.constrain(r, home) if self._is_pinned(eqn, t) else r
            for t, r, home in zip(eqn.results, self._bind(eqn, operands), homes, strict=True)
        ]
        if eqn.index in self.replay.taken_apart:
            return [self.executor.least_padded(r, home) for r, home in zip(results, homes, strict=True)]
        return results

    def _cut(self, eqn: Equation, x: Any, home: Sharding) -> Any:
        """Micro-batches of which each device cuts its own out of its part of the batch."""
        shape, parts, axes = self.program.tensors[eqn.results[0]].shape, self.replay.num_parts, home.dims[1]

        def pin(x: Any, dim: int) -> Any:
            if parts % self.executor.size(axes):
                return x
            dims = [(), (), (), *home.dims[2:]]
            dims[dim] = axes
            return self.executor.constrain(x, Sharding(tuple(dims)))

        return self.executor.constrain(cut(x, shape, parts, pin), home)

    def _as_the_step_says(self, eqn: Equation, operands: list[Any], homes: list[Sharding]) -> list[Any]:
        """A constraint of the user's is the layout of its group; a `jax.shard_map` runs between such layouts."""
        if eqn.name == "shard_map":
            group = self.graph.grouping.equation_group[eqn.index]
            shardings = [self._required(eqn, group, t) for t in eqn.operands]
            pinned = [
                self.executor.constrain(x, sharding) if np.ndim(x) else x
                for x, sharding in zip(operands, shardings, strict=True)
            ]
            operands = self._bind(eqn, pinned, user_params(eqn, self.executor))
        return [
            self.executor.constrain(r, home) if np.ndim(r) else r
            for r, home in zip(operands, homes, strict=True)
        ]

    def _is_pinned(self, eqn: Equation, t: int) -> bool:
        if not self.program.tensors[t].shape:
            return False
        if eqn.name == "pad" and any(min(config) < 0 for config in eqn.params["padding_config"]):
            return True  # the compiler fails where it splits what is cut
        return self.graph.rules[eqn.index].family in _PINNED_FAMILIES or t in self.replay.crossing

    def _split(self, eqn: Equation, group: int) -> dict[int, tuple[str, ...]]:
        """Factors that the group's configuration splits, with the mesh axes."""
        config = self.replay.configurations[group]
        classes = self.graph.spaces[group].factor_class[eqn.index]
        return {f: self.executor.names(config[c]) for f, c in enumerate(classes) if c != WHOLE and config[c]}

    def _island(self, eqn: Equation, operands, shardings, homes, split) -> list[Any]:
        rule, tensors = self.graph.rules[eqn.index], self.program.tensors
        partial = bool(homes[0].partial)
        traced = [i for i, t in enumerate(eqn.operands) if tensors[t].kind != "literal"]
        out_shapes = [
            home.local_shape(tensors[t].shape, self.executor.axes)
            for t, home in zip(eqn.results, homes, strict=True)
        ]

        def body(*pieces: Any) -> list[Any]:
            local = list(operands)
            for i, piece in zip(traced, pieces, strict=True):
                local[i] = piece
            results = run_local(
                eqn, rule, lambda params, xs: self._bind(eqn, xs, params), local, split, out_shapes
            )
            return [r[None] for r in results] if partial else results

        return self.executor.manual(body, [operands[i] for i in traced], [shardings[i] for i in traced], homes)

    def _bind(
        self, eqn: Equation, operands: Sequence[Any], params: Mapping[str, Any] | None = None
    ) -> list[Any]:
        params = dict(eqn.params if params is None else params)
        if eqn.name == CUT:
            return [cut(operands[0], self.program.tensors[eqn.results[0]].shape, self.replay.num_parts)]
        if eqn.name == JOIN:
            return [join(operands[0], self.replay.num_parts)]
        operands = in_bounds(eqn.name, params, operands)
        if eqn.name == UNPOOLING and self.replay.chip.is_gpu:
            return scatter_to_own_zeros(eqn, params, operands)
        return _compat.bind_like(eqn.origin, eqn.primitive, params, operands, eqn.name_stack)

    def _required(self, eqn: Equation, group: int, t: int) -> Sharding:
        sharding = sharding_of(self.graph, self.replay.configurations, group, t, produced=False)
        home = self.replay.home(t)
        hands_on = (t, sharding) not in self.replay.by_read or passes_partial(self.graph, group, eqn.index, t)
        return home if home.partial and hands_on else sharding

    def _read(self, t: int, sharding: Sharding, equation: int, tie: Place | None) -> Any:
        """Tensor ``t`` in ``layout``: as it is, from a copy already made, or through its transfer."""
        tensor = self.program.tensors[t]
        if tensor.kind == "literal":
            return self.env[t]
        if self.graph.grouping.tensor_group[t] == UNGROUPED or self.graph.values.free[t]:
            return self.executor.constrain(self.env[t], sharding) if tensor.shape else self.env[t]
        if self.replay.home(t) == sharding:
            return self.env[t]
        key, transfer = self._copy(t, sharding, equation)
        if key not in self.copies:
            self.copies[key] = self._transfer(self.env[t], transfer, tie if key[2] else None)
        return self.copies[key]

    def _copy(self, t: int, sharding: Sharding, equation: int) -> tuple[_Copy, Transfer]:
        """The copy that an equation reads, and what makes it."""
        transfer = self.replay.by_read[t, sharding]
        return (t, sharding, transfer.execution_at(equation)), transfer

    def place_of(self, eqn: Equation, t: int) -> Place:
        """Where an operand is held, in the layout in which an equation reads it."""
        group = self.graph.grouping.equation_group[eqn.index]
        if group == UNGROUPED or self.graph.grouping.tensor_group[t] == UNGROUPED:
            return self.env, t
        sharding = self._required(eqn, group, t)
        if self.replay.home(t) == sharding:
            return self.env, t
        self._read(t, sharding, eqn.index, None)
        return self.copies, self._copy(t, sharding, eqn.index)[0]

    def _made_again(self, value: Any, t: int, tie: Place) -> Any:
        """A value that is not there before the tie is: whoever reads the tie reads it here, or the barrier is dropped.

        A cast of a parameter is made again too, or it would be kept beside the parameter from the forward pass. Where
        nobody may read the tie any more the value depends on an element of it (`Executor.behind`).
        """
        values, key = tie
        index = self.graph.values.producer[t]
        cast = self.program.equations[index] if index >= 0 else None
        if cast and (cast.name != "convert_element_type" or not self._is_stored_like(cast.operands[0], t)):
            cast = None
        source = self.env[cast.operands[0]] if cast else value
        if self.replay.chip.fuses_products:
            sharding = key[1] if isinstance(key, tuple) else self.replay.home(key)
            source = self.executor.behind(source, self.replay.home(t), values[key], sharding)
        else:
            source, values[key] = lax.optimization_barrier((source, values[key]))
        return self._bind(cast, [source])[0] if cast else source

    def _is_stored_like(self, source: int, t: int) -> bool:
        """Whether a tensor is an input of the step, still there, in the layout of another."""
        is_input = source in self.env and self.program.tensors[source].kind == "input"
        return is_input and self.replay.home(source) == self.replay.home(t)

    def _transfer(self, value: Any, transfer: Transfer, tie: Place | None) -> Any:
        if transfer.carried != transfer.tensor:  # what it was cast from
            value = lax.convert_element_type(value, self.dtype(transfer.carried))
        if transfer.repeated and tie is not None:
            value = self._made_again(value, transfer.tensor, tie)
        steps = transfer.path.steps
        source = self.graph.values.merged[transfer.carried], transfer.path.shardings[0]
        is_alike, done = source in self.replay.alike and len(transfer.spans) == 1, 0
        if is_alike:
            done = next((n for n in range(len(steps), 0, -1) if (*source, steps[:n]) in self.partway), 0)
            value = self.partway[*source, steps[:done]] if done else value
        for n, step in enumerate(steps[done:], done + 1):
            value = self.executor.apply(value, step)
            if step.kind == "all-reduce" and self.program.tensors[transfer.tensor].shape:
                value = lax.optimization_barrier(
                    value
                )  # or the compiler makes others of it and a slice after it
            if is_alike:
                self.partway[*source, steps[:n]] = value
        if transfer.carried != transfer.tensor:
            value = lax.convert_element_type(value, self.dtype(transfer.tensor))
        is_held = (transfer.tensor, transfer.target) in self.replay.held_whole
        return lax.optimization_barrier(value) if is_held else value
