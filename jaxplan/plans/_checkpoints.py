"""Checkpoints of the state of a planned step, written by Orbax, with the plan's file beside them.

Orbax keeps global arrays: what was saved under one plan is restored under another one, on another number of devices or
processes, bit for bit. A checkpoint has its final name only once it is whole, so that an interrupted save leaves
the previous ones as they were. https://orbax.readthedocs.io/en/latest/guides/checkpoint/orbax_checkpoint_101.html
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxplan.core._paths import keys
from jaxplan.errors import ArgumentError, MissingExtraError, PlanMismatchError
from jaxplan.frontend import _nnx
from jaxplan.frontend._static_leaves import hold_statics, release_statics
from jaxplan.partition import batch_arguments, put
from jaxplan.plans._plan_data import PlanData

PLAN_FILE = "plan.json"
_MOST_NAMED = 4
_MOST_SHOWN = 1000

_MISSING_MSG = (
    "checkpoints need Orbax, which is not installed.\n"
    "  given:    {folder!r}\n"
    "  expected: the package orbax-checkpoint\n"
    "  fix:      pip install 'jaxplan[checkpoint]'"
)
_NONE_MSG = (
    "there is no checkpoint {which}in {folder!r}.\n"
    "  given:        {numbers}\n"
    "  expected:     a folder that plan.checkpoints(folder).save(...) wrote\n"
    "  likely cause: another folder, or no save was finished yet\n"
    "  fix:          look at plan.checkpoints(folder).numbers, or create the state: plan.init(...)"
)
_OTHER_STATE_MSG = (
    "the checkpoint {number} in {folder!r} does not hold the state of this plan's step.\n"
    "  expected:     {expected}\n"
    "  differs:      {differs}\n"
    "  likely cause: the model or the optimizer has changed since it was saved\n"
    "  fix:          restore it with the step that it was saved by, and convert it"
)
_STRUCTURE_MSG = (
    "the state to save is not that of the planned step.\n"
    "  given:    {given}\n"
    "  expected: {expected}\n"
    "  fix:      checkpoints.save(number, params, opt_state): what the step takes and returns, in its order"
)


class Checkpoints:
    """Saves and restores the arguments of a step that are its state; made by `Plan.checkpoints`.

    Use it in a ``with`` statement, or call `close`: saving goes on behind the training.
    """

    def __init__(
        self,
        plan: PlanData,
        shardings: Sequence[Any],
        folder: str | os.PathLike[str],
        *,
        save_plan: Callable[[str], None],
        keep: int | None = None,
    ) -> None:
        """``shardings``: of each argument leaf; ``save_plan`` writes the plan's file."""
        self._folder = str(folder) if "://" in str(folder) else os.path.abspath(folder)
        try:
            import orbax.checkpoint as ocp
        except ImportError as error:
            raise MissingExtraError(_MISSING_MSG.format(folder=self._folder)) from error
        self._save_plan, self._ocp = save_plan, ocp
        self._arguments = _state_arguments(plan, shardings)
        if not self._arguments:
            raise ArgumentError("the planned step has no state: none of its arguments comes back updated")
        self._manager = ocp.CheckpointManager(
            self._folder,
            options=ocp.CheckpointManagerOptions(max_to_keep=keep),
            item_handlers=ocp.StandardCheckpointHandler(),
        )

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Wait until all saves are finished."""
        self._manager.close()

    @property
    def numbers(self) -> tuple[int, ...]:
        """Of the checkpoints that are whole, ascending."""
        return tuple(sorted(self._manager.all_steps()))

    @property
    def latest(self) -> int | None:
        """The largest number; None without any."""
        return max(self.numbers, default=None)

    def save(self, number: int, *state: Any) -> None:
        """Save the state under a number, such as that of the training step; returns once the values are copied.

        Args:
          state: the arguments that are state, in the order of the step's.

        Raises:
          ArgumentError: they are not those of the step.
        """
        opened = hold_statics(_nnx.opened_tree(list(state)))
        leaves = [jax.tree.leaves(tree) for tree in opened]
        expected = [shapes for _, shapes in self._arguments.values()]
        if [list(map(_type, of)) for of in leaves] != [list(map(_type, of)) for of in expected]:
            given = ", ".join(map(_described, leaves))
            raise ArgumentError(_STRUCTURE_MSG.format(given=given, expected=self._expected()))
        if jax.process_index() == 0 and "://" not in self._folder:
            os.makedirs(self._folder, exist_ok=True)
            self._save_plan(os.path.join(self._folder, PLAN_FILE))
        placed = [[put(x, t.sharding) for x, t in zip(*of, strict=True)] for of in zip(leaves, expected, strict=True)]
        trees = [tree for tree, _ in self._arguments.values()]
        items = dict(zip(self._arguments, map(_item, trees, placed), strict=True))
        self._manager.save(number, args=self._ocp.args.StandardSave(items), force=True)

    def restore(self, number: int | None = None) -> Any:
        """The state of a checkpoint, by default the latest, placed as the plan has it; one argument, or a tuple.

        Raises:
          ArgumentError: there is none.
          PlanMismatchError: it holds other arrays than the step's state.
        """
        which = self.latest if number is None else number
        if which is None or which not in self.numbers:
            shown = "" if number is None else f"{number} "
            numbers = f"checkpoints {list(self.numbers)}"
            raise ArgumentError(_NONE_MSG.format(which=shown, folder=self._folder, numbers=numbers))
        items = {name: _item(tree, shapes) for name, (tree, shapes) in self._arguments.items()}
        try:
            found = self._manager.restore(which, args=self._ocp.args.StandardRestore(items))
        except (ValueError, KeyError) as error:
            differs = self._changed(which, items) or str(error)[:_MOST_SHOWN]
            raise PlanMismatchError(
                _OTHER_STATE_MSG.format(
                    number=which, folder=self._folder, expected=self._expected(), differs=differs
                )
            ) from error
        restored = _nnx.closed([self._argument(name, found[name]) for name in self._arguments])
        return restored[0] if len(restored) == 1 else tuple(restored)

    def _changed(self, number: int, items: Any) -> str:
        """Arrays of another shape in a checkpoint than in the plan, by path."""
        saved = {_names(path): leaf.shape for path, leaf in _with_paths(self._manager.item_metadata(number))}
        wanted = {_names(path): leaf.shape for path, leaf in _with_paths(items)}
        both = [p for p in wanted if p in saved and saved[p] != wanted[p]]
        changed = [f"{p} is {saved[p]}, and {wanted[p]} in the plan" for p in both]
        missing = [f"{p} is only in the plan" for p in wanted if p not in saved]
        missing += [f"{p} is only in the checkpoint" for p in saved if p not in wanted]
        return "; ".join([*changed, *missing][:_MOST_NAMED])

    def _argument(self, name: str, item: Any) -> Any:
        """An argument of the step from its item, objects opened."""
        tree, shapes = self._arguments[name]
        arrays = iter(jax.tree.leaves(item))
        leaves = [put(np.zeros(x.shape, x.dtype), x.sharding) if _is_empty(x) else next(arrays) for x in shapes]
        return release_statics(tree.unflatten(leaves))

    def _expected(self) -> str:
        return ", ".join(f"{name}: {_described(shapes)}" for name, (_, shapes) in self._arguments.items())


def _state_arguments(plan: PlanData, shardings: Sequence[Any]) -> dict[str, tuple[Any, list[Any]]]:
    """By name, the arguments that hold state or parameters: their trees, and shapes and shardings of their arrays."""
    program = plan.require_program().program
    names = program.argument_names
    batches = {start for start, _ in batch_arguments(plan)}
    tensors = [program.tensors[t] for t in program.inputs]
    shapes = [jax.ShapeDtypeStruct(t.shape, t.dtype, sharding=s) for t, s in zip(tensors, shardings, strict=True)]
    found, start = {}, 0
    for tree in (tree for arguments in program.in_tree.children() for tree in arguments.children()):
        stop = start + tree.num_leaves
        if stop > start and start not in batches:
            first = keys(program.in_paths[start])[0]
            label = names[int(first)] if first.isdigit() and int(first) < len(names) else first
            found[label] = (tree, shapes[start:stop])
        start = stop
    return found


def _item(tree: Any, leaves: Sequence[Any]) -> Any:
    """An argument as Orbax takes it: without settings, objects and empty arrays."""
    item = tree.unflatten([None if _is_empty(leaf) else leaf for leaf in leaves])
    return _nnx.states(release_statics(item, by=lambda value: None))


def _with_paths(tree: Any) -> list[Any]:
    return [(path, leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0] if hasattr(leaf, "shape")]


def _names(path: Any) -> str:
    return "/".join(keys(jax.tree_util.keystr(path)))


def _is_empty(leaf: Any) -> bool:
    return 0 in np.shape(leaf)


def _type(leaf: Any) -> tuple[tuple[int, ...], Any]:
    found = leaf if hasattr(leaf, "dtype") else jax.typeof(leaf)
    return tuple(found.shape), found.dtype


def _described(leaves: Sequence[Any]) -> str:
    return f"{len(leaves)} arrays of {sum(math.prod(np.shape(leaf)) for leaf in leaves):,} elements"
