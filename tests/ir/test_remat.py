"""Blocks found by structure, and programs that recompute them, against `jax.checkpoint` and closed forms."""

from __future__ import annotations

import itertools
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.models import build
from jaxplan.core import _compat
from jaxplan.core._interner import Memo
from jaxplan.ir import Remat, analyse, recomputable_blocks, rematerialise, trace
from jaxplan.mesh import Topology
from jaxplan.search._microbatches import in_microbatches
from jaxplan.xla import Target
from jaxplan.xla._buffers import analyse_buffers

BATCH, WIDTH, HIDDEN, LAYERS = 32, 8, 24, 3


def block(p, h):
    return h + jnp.tanh(h @ p["up"]) @ p["down"]


def make_step(block_fn=block):
    def step(params, x, y):
        def loss_fn(params):
            h = x
            for p in params:
                h = block_fn(p, h)
            return jnp.mean((h - y) ** 2)

        loss, gradients = jax.value_and_grad(loss_fn)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss

    return step


def make_args(dtype=jnp.float32):
    draw = np.random.default_rng(0)

    def array(*shape):
        return jnp.asarray(draw.normal(size=shape), dtype)

    params = [{"up": array(WIDTH, HIDDEN), "down": array(HIDDEN, WIDTH)} for _ in range(LAYERS)]
    return params, array(BATCH, WIDTH), array(BATCH, WIDTH)


@pytest.fixture(scope="module")
def graph():
    return analyse(trace(make_step(), make_args()))


def evaluate(program, arguments):
    """The results of a program on one device, equation by equation."""
    env = dict(zip(program.inputs, arguments, strict=True))
    env.update((t.index, t.value) for t in program.tensors if t.kind in ("literal", "constant"))
    for eqn in program.equations:
        operands = [env[t] for t in eqn.operands]
        results = _compat.bind_like(eqn.origin, eqn.primitive, dict(eqn.params), operands, "")
        env.update(zip(eqn.results, results, strict=True))
    return [env[t] for t in program.outputs]


def saved_bytes(graph):
    buffers = analyse_buffers(graph, Target.of(Topology.parse("h100:8").chip))
    return sum(buffers.num_bytes[t] for t in buffers.saved if graph.program.tensors[t].shape)


def test_a_rung_analysed_with_shared_structures_equals_one_analysed_alone(graph):
    blocks, structures = recomputable_blocks(graph), Memo()
    for remat in (
        Remat(num_all=len(blocks), of=len(blocks)),
        Remat(num_contractions=1, of=len(blocks)),
        Remat(num_all=1, num_contractions=1, of=len(blocks)),
    ):
        again = rematerialise(graph, remat, blocks, structures).graph
        alone = analyse(again.program)
        assert [e.index for e in again.program.equations] == list(range(len(again.rules)))
        assert again.rules == alone.rules and again.values == alone.values
        assert again.grouping == alone.grouping and again.spaces == alone.spaces
    assert len(structures) < len(again.spaces) * 3


def test_blocks_of_a_transformer_are_its_layers():
    step, args = build("gpt-tiny")
    assert len(recomputable_blocks(analyse(trace(step, args)))) == 2


def test_checkpointed_or_scanned_layers_have_no_blocks():
    def scanned(params, x):
        def loss_fn(params):
            return jnp.sum(jax.lax.scan(lambda h, p: (block(p, h), None), x, params)[0])

        return jax.grad(loss_fn)(params)

    params, x, y = make_args()
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *params)
    assert recomputable_blocks(analyse(trace(scanned, (stacked, x)))) == ()
    assert recomputable_blocks(analyse(trace(make_step(jax.checkpoint(block)), (params, x, y)))) == ()


def test_blocks_of_a_perceptron_are_cut_where_it_is_narrow(graph):
    """From one residual stream to the next: nothing of the wide hidden values crosses."""
    blocks = recomputable_blocks(graph)
    assert len(blocks) == LAYERS
    for before, after in itertools.pairwise(blocks):
        assert before.stop == after.start and before.kind == after.kind
        last = graph.program.equations[before.stop - 1]
        assert graph.program.tensors[last.results[0]].shape == (BATCH, WIDTH)


def test_a_step_without_repeats_has_no_blocks():
    def step(w, x):
        return jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w) ** 2))(w)

    shapes = jax.ShapeDtypeStruct((8, 4), jnp.float32), jax.ShapeDtypeStruct((16, 8), jnp.float32)
    assert recomputable_blocks(analyse(trace(step, shapes))) == ()


@pytest.mark.parametrize("num_all", range(1, LAYERS + 1))
def test_saved_bytes_of_a_perceptron(graph, num_all):
    """A block saves its stream and its hidden values, one recomputed only the stream; the first stream is the
    batch, and the last is read by the loss."""
    stream, hidden = 4 * BATCH * WIDTH, 4 * BATCH * HIDDEN
    assert saved_bytes(graph) == LAYERS * (stream + hidden)
    again = rematerialise(graph, Remat(num_all=num_all, of=LAYERS)).graph
    assert saved_bytes(again) == LAYERS * stream + (LAYERS - num_all) * hidden


def test_contractions_are_kept(graph):
    """A block keeps the dot before ``tanh`` instead of its result; no dot is made again."""
    again = rematerialise(graph, Remat(num_contractions=LAYERS, of=LAYERS)).graph
    names = [Counter(e.name for e in g.program.equations) for g in (graph, again)]
    assert names[1]["dot_general"] == names[0]["dot_general"]
    assert names[1]["tanh"] == names[0]["tanh"] + LAYERS


def test_it_is_the_program_of_checkpoint(graph):
    """Recomputed blocks equal those of `jax.checkpoint` around each block, group by group."""
    again = rematerialise(graph, Remat(num_all=LAYERS, of=LAYERS)).graph
    wanted = analyse(trace(make_step(jax.checkpoint(block)), make_args()))
    counts = [Counter(e.name for e in g.program.equations) for g in (again, wanted)]
    barriers = [count.pop("optimization_barrier") for count in counts]
    assert counts[0] == counts[1] and 0 < barriers[0] <= barriers[1]
    assert len(again.grouping.groups) == len(wanted.grouping.groups) == len(graph.grouping.groups)
    assert saved_bytes(again) == saved_bytes(wanted)


def test_blocks_in_micro_batches_are_those_of_checkpoint():
    """The blocks and their barriers stand in the loop over slices; parameters, the same in each trip, pass by."""
    arguments = make_args()
    sliced = in_microbatches(analyse(trace(make_step(), arguments)), 2)
    blocks = recomputable_blocks(sliced)
    assert len(blocks) == LAYERS and {block.passes.region for block in blocks} == {0}
    again = rematerialise(sliced, Remat(num_all=LAYERS, of=LAYERS), blocks).graph
    wanted = in_microbatches(analyse(trace(make_step(jax.checkpoint(block)), arguments)), 2)
    counts = [Counter(e.name for e in g.program.equations) for g in (again, wanted)]
    barriers = [e for e in again.program.equations if e.name == "optimization_barrier"]
    for count in counts:
        del count["optimization_barrier"]
    assert counts[0] == counts[1] and barriers
    (region,) = again.program.regions
    assert all(region.ranges[0][0] <= e.index < region.ranges[0][1] and e.region == 0 for e in barriers)
    shapes = {again.program.tensors[e.operands[0]].shape for e in barriers}
    assert shapes == {(BATCH // 2, WIDTH)}


def test_values_are_the_same_bit_by_bit(graph):
    again = rematerialise(graph, Remat(num_all=1, num_contractions=1, of=LAYERS))
    assert again.graph.program.fingerprint == graph.program.fingerprint and again.graph.traced is graph
    arguments = jax.tree.leaves(make_args())
    for got, wanted in zip(
        evaluate(again.graph.program, arguments), evaluate(graph.program, arguments), strict=True
    ):
        np.testing.assert_array_equal(got, wanted)


def test_copies_are_in_the_groups_of_their_originals(graph):
    again = rematerialise(graph, Remat(num_all=LAYERS, of=LAYERS))
    groups: dict[int, set[int]] = {}
    for e, original in again.original.items():
        before = graph.grouping.equation_group[original]
        groups.setdefault(again.graph.grouping.equation_group[e], set()).add(before)
    assert all(len(before) == 1 for before in groups.values())


def test_every_copy_comes_after_the_gradient_that_needs_it(graph):
    """All that a copy reads has passed its barrier, and the gradient of the block after it is part of that barrier."""
    program = rematerialise(graph, Remat(num_all=LAYERS, of=LAYERS)).graph.program
    made = {t: e for e in program.equations for t in e.results}
    barriers: dict[int, list] = {}
    for eqn in program.equations:
        if eqn.name == "optimization_barrier":
            barriers.setdefault(id(eqn.origin), []).append(eqn)
    assert len(barriers) == LAYERS
    for parts in barriers.values():
        sources = [made.get(e.operands[0]) for e in parts]
        assert any(e is not None and e.phase == "backward" for e in sources)
        assert [e.index for e in parts] == list(range(parts[0].index, parts[0].index + len(parts)))


def test_choices_are_checked():
    for wrong in ({"of": 4}, {"num_all": 5, "of": 4}, {"num_all": -1, "num_contractions": 2, "of": 4}):
        with pytest.raises(ValueError, match="expected some of 4 blocks"):
            Remat(**wrong)
    assert str(Remat(num_all=2, of=12)) == "recomputes 2 of 12 blocks"


def test_barriers_keep_equal_values_apart(graph):
    """A copy equals its original, and the compiler does not merge the two."""
    values = rematerialise(graph, Remat(num_all=LAYERS, of=LAYERS)).graph.values
    program = rematerialise(graph, Remat(num_all=LAYERS, of=LAYERS)).graph.program
    tanhs = [e.results[0] for e in program.equations if e.name == "tanh"]
    assert len(tanhs) == 2 * LAYERS
    assert len({values.number[t] for t in tanhs}) == LAYERS
    assert len({values.merged[t] for t in tanhs}) == 2 * LAYERS
    assert graph.values.merged == graph.values.number  # nothing is kept apart in the step as it was traced


def test_parameters_pass_by_the_barrier(graph):
    again = rematerialise(graph, Remat(num_all=LAYERS, of=LAYERS))
    parameters = set(again.graph.state)
    held = {e.operands[0] for e in again.graph.program.equations if e.name == "optimization_barrier"}
    assert parameters and not parameters & held


def test_a_dots_result_is_held_in_the_sharding_of_its_reader(graph):
    """``tanh`` is recomputed from a dot's result, which is held in the sharding of ``tanh``, not of the dot."""
    again = rematerialise(graph, Remat(num_contractions=LAYERS, of=LAYERS)).graph
    program, group = again.program, again.grouping.equation_group
    made = {t: e for e in program.equations for t in e.results}
    of_products = [
        eqn
        for eqn in program.equations
        if eqn.name == "optimization_barrier" and made[eqn.operands[0]].name == "dot_general"
    ]
    readers = [again.values.consumers[eqn.results[0]] for eqn in of_products if eqn.phase == "backward"]
    held = [e for e in of_products if program.tensors[e.results[0]].shape == (BATCH, HIDDEN)]
    assert len(held) == LAYERS and readers
    for eqn in held:
        (reader,) = again.values.consumers[eqn.results[0]]
        assert program.equations[reader].name == "tanh"
        assert group[eqn.index] == group[reader] != group[made[eqn.operands[0]].index]
