"""Parts of a plan that a person fixes: specs of leaves and hints, splits of dimensions, families, own shardings."""

from __future__ import annotations

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxplan
from jaxplan.ir import ClassLimit, FactorClass, enumerate_configurations, enumerate_restricted

AXES = {"data": 4, "tensor": 2}
OPTIMIZER = optax.sgd(1e-2, momentum=0.9)


def loss(params, x, y):
    for block in params.values():
        x = jaxplan.hint(jnp.tanh(x @ block["up"]) @ block["down"], "residual")
    return jnp.mean((x - y) ** 2)


def train_step(params, slots, batch):
    value, grads = jax.value_and_grad(loss)(params, batch["x"], batch["y"])
    updates, slots = OPTIMIZER.update(grads, slots)
    return optax.apply_updates(params, updates), slots, value


def arguments(width: int = 64, hidden: int = 128, batch: int = 32):
    keys = jax.random.split(jax.random.key(0), 6)
    params = {
        f"block_{i}": {
            "up": jax.random.normal(keys[2 * i], (width, hidden)) / 8,
            "down": jax.random.normal(keys[2 * i + 1], (hidden, width)) / 8,
        }
        for i in range(2)
    }
    data = {name: jax.random.normal(keys[4 + i], (batch, width)) for i, name in enumerate("xy")}
    return params, OPTIMIZER.init(params), data


def planned(pins=None, topology="cpu:8", **options):
    return jaxplan.plan(train_step, *arguments(), topology=topology, pins=pins, **options)


def parts(plan, spec):
    sizes = {axis.name: axis.size for axis in plan.topology.axes}
    names = [(entry,) if isinstance(entry, str) else entry or () for entry in spec]
    return tuple(math.prod(sizes[name] for name in of) for of in names)


def axis_names(spec):
    return {n for entry in spec if entry for n in ((entry,) if isinstance(entry, str) else entry)}


def test_a_spec_holds_in_every_plan_and_results_stay_equal():
    """Kernels pinned over declared axes are stored so, and the planned step computes as on one device."""
    frontier = planned({"up": P("data", "tensor")}, axes=AXES)
    expected = train_step(*arguments())
    for plan in frontier.points:
        for block in plan.in_specs[0].values():
            assert parts(plan, block["up"]) == (4, 2)
    found = frontier.fastest().jit()(*arguments())
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


def test_data_loading_constrained_to_the_batch_pays_for_operators_that_want_it_otherwise():
    """TensorOpt, section 4.2: examples arrive split over all devices, and a wide layer of few of them gathers them."""
    args = jax.eval_shape(lambda: arguments(width=4096, hidden=4096, batch=64))
    free, loaded = (
        jaxplan.plan(train_step, *args, topology="1080ti:8", pins=pins, axes={"all": 8})
        for pins in (None, {"batch": P("all")})
    )
    assert any(parts(free.fastest(), free.fastest().in_specs[2][name])[:1] != (8,) for name in "xy")
    for plan in loaded.points:
        assert all(parts(plan, plan.in_specs[2][name])[:1] == (8,) for name in "xy")
    assert loaded.fastest().time_seconds > free.fastest().time_seconds


def test_a_subtree_is_whole_and_another_is_split():
    frontier = planned({"params/block_0": "whole", "params/block_1/up": "split"})
    for plan in frontier.points:
        assert all(not axis_names(spec) for spec in plan.in_specs[0]["block_0"].values())
        assert axis_names(plan.in_specs[0]["block_1"]["up"])


def test_a_split_of_the_batch_has_so_many_parts():
    """The batch arrives in as many parts as asked for, although eight would be faster."""
    for number in (2, 4):
        for plan in planned({"batch": jaxplan.Split(number)}).points:
            assert all(parts(plan, spec)[0] == number for spec in plan.in_specs[2].values())


def test_a_split_within_a_node_uses_no_axis_across_nodes():
    dimension = "block_0/down.0"
    plans = planned({dimension: jaxplan.Split(2, within="node"), "params/*/down": "split"}, "h100:2x4").points
    assert plans
    forbidden = planned({"params/*": jaxplan.Forbid("node")}, "h100:2x4").points
    across = {axis.name for axis in forbidden[0].topology.axes if axis.level == 0}
    for plan in forbidden:
        for spec in jax.tree.leaves(plan.in_specs[0], is_leaf=lambda s: isinstance(s, P)):
            assert not across & axis_names(spec)


def test_an_update_runs_on_the_pieces_that_a_pin_asks_for():
    """Axes in an order that is not dealt otherwise: slots are split as the parameter, or finer."""
    for plan in planned({"params/*/up": P(None, "tensor")}, "h100:2x8", axes={"data": 4, "tensor": 4}).points:
        assert all(block["up"] == P(None, ("gpu1", "gpu2")) for block in plan.in_specs[0].values())


def test_a_forbidden_dimension_is_split_nowhere():
    for plan in planned({"batch": jaxplan.Forbid()}).points:
        assert all(parts(plan, spec)[:1] in ((), (1,)) for spec in plan.in_specs[2].values())


def token_step(params, batch):
    """Examples are mixed along their sequence, and flattened to tokens for two dots."""

    def objective(params):
        x = jnp.tanh(jnp.einsum("bsd,st->btd", params["table"][batch["tokens"]], params["mix"]))
        tokens = jax.nn.relu(x.reshape(-1, x.shape[-1]) @ params["up"]) @ params["down"]
        return jnp.mean(tokens**2)

    value, grads = jax.value_and_grad(objective)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


TOKENS = 4, 4096


def token_arguments():
    def shape(*dims, dtype=jnp.float32):
        return jax.ShapeDtypeStruct(dims, dtype)

    kernels = {"mix": shape(TOKENS[1], TOKENS[1]), "up": shape(256, 4096), "down": shape(4096, 256)}
    return {"table": shape(512, 256), **kernels}, {"tokens": shape(*TOKENS, dtype=jnp.int32)}


def axes_behind_the_batch(plan):
    """The axes that split a dimension of flattened tokens into more parts than there are examples."""
    sizes = [axis.size for axis in plan.topology.axes]
    return {
        axes[n]
        for space, config in zip(plan.graph.spaces, plan.configurations, strict=True)
        for cls, axes in zip(space.classes, config, strict=True)
        if cls.sizes == (math.prod(TOKENS),)
        for n in range(len(axes))
        if math.prod(sizes[a] for a in axes[: n + 1]) > TOKENS[0]
    }


@pytest.mark.parametrize("pin", [jaxplan.Forbid(), jaxplan.Forbid("gpu2")])
def test_a_forbidden_sequence_is_not_split_among_flattened_tokens_either(pin):
    """Four examples on eight devices: the third axis that splits the tokens splits the sequence."""
    free, found = (
        jaxplan.plan(token_step, *token_arguments(), topology="h100:8", pins=pins)
        for pins in (None, {"mix.1": pin})
    )
    assert any(map(axes_behind_the_batch, free.points))
    axes = free.fastest().topology.axes
    allowed = {a for a, axis in enumerate(axes) if pin.axes and axis.name not in pin.axes}
    assert all(axes_behind_the_batch(plan) <= allowed for plan in found.points)


def test_a_dimension_is_found_at_each_argument_that_has_it():
    """The features between two layers are rows of one kernel and columns of the other, in any block."""
    ways = [{f"block_{i}/{name}": jaxplan.Split(2) for i in range(2)} for name in ("up.1", "down.0")]
    found = [planned(pins, "h100:8").fastest() for pins in (*ways, {"block_*/up.1": jaxplan.Split(2)})]
    assert found[0].configurations == found[1].configurations == found[2].configurations
    assert "tensor 2" in found[0].summary
    with pytest.raises(jaxplan.ArgumentError, match="dimension of an argument such as"):
        planned({"block_0/up.7": jaxplan.Split(2)}, "h100:8")


def test_rows_of_images_are_pinned_by_their_name_where_patches_are_called_a_sequence():
    """The two are one named dimension: patches are rows and columns merged, and begin with the rows."""

    def step(params, images):
        def objective(params):
            x = jax.lax.conv_general_dilated(
                images, params["patches"], (4, 4), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            x = x.reshape(x.shape[0], -1, x.shape[-1]) + params["positions"]
            scores = jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", x @ params["query"], x @ params["key"]))
            return jnp.mean(jnp.einsum("bqk,bkd->bqd", scores, x @ params["value"]) ** 2)

        value, grads = jax.value_and_grad(objective)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    def shape(*dims):
        return jax.ShapeDtypeStruct(dims, jnp.float32)

    kernels = {name: shape(16, 16) for name in ("query", "key", "value")}
    params = {**kernels, "patches": shape(4, 4, 3, 16), "positions": shape(16, 16)}
    for name in ("rows", "sequence"):
        frontier = jaxplan.plan(step, params, shape(8, 16, 16, 3), topology="cpu:4", pins={name: jaxplan.Forbid()})
        for plan in frontier.points:
            assert parts(plan, plan.in_specs[1])[1:2] in ((), (1,))
            assert parts(plan, plan.in_specs[0]["positions"])[:1] in ((), (1,))


def test_families_hold_what_they_name():
    """Data parallelism stores everything whole; within fsdp no plan is faster than without pins."""
    for plan in planned("data").points:
        specs = jax.tree.leaves(plan.in_specs[:2], is_leaf=lambda s: isinstance(s, P))
        assert not any(map(axis_names, specs))
    free, fsdp = planned(), planned("fsdp only")
    assert fsdp.fastest().time_seconds >= free.fastest().time_seconds
    assert fsdp.leanest().memory_bytes <= min(fsdp.references[n].memory_bytes for n in ("data", "fsdp"))


def test_a_hint_is_pinned_like_an_argument():
    frontier = planned({"residual": P("data", None)}, axes=AXES)
    assert frontier.points
    with pytest.raises(jaxplan.InfeasibleError, match=r"(?s)'batch': Split.*'residual'"):
        planned({"batch": jaxplan.Split(8), "residual": P(None, "tensor")}, axes=AXES)


@pytest.mark.parametrize(
    ("pins", "message"),
    [
        ({"params/blok_0": "whole"}, r"matches nothing.*nearest: params/block_0"),
        ({"block_0/down.0": "split"}, r"'block_0/down.0' is a dimension.*fix: 'block_0/down.0': jaxplan.Split"),
        ({"block_0/down.0": P("data")}, r"'block_0/down.0' is a dimension"),
        ({"batch": 8}, r"fix: jaxplan.Split\(8\)"),
        ({"up": P("rows")}, r"axis 'rows', which is not declared"),
        ({"up": P("data", "data")}, "same devices"),
        ({"up": P(None, None, "data")}, "3 entries"),
        ("zero", "family"),
        (7, "expected: a mapping"),
        ({"bach": jaxplan.Split(2)}, "nearest: batch"),
    ],
)
def test_a_pin_that_cannot_be_read_says_why(pins, message):
    with pytest.raises(jaxplan.ArgumentError, match=f"(?s){message}"):
        planned(pins, axes=AXES)


def test_a_split_that_does_not_divide_names_the_pin():
    with pytest.raises(jaxplan.InfeasibleError, match=r"(?s)'batch': Split\(3\).*32") as error:
        planned({"batch": jaxplan.Split(3)})
    assert "would fit" not in str(error.value)  # 32 examples are in three parts on no machine


def test_ways_out_of_too_little_memory_meet_the_pins():
    stored = 4 * 2 * 4 * 64 * 128  # parameters and momentum of four matrices, float32
    limit = f"{stored // 1024 + 1}KiB"
    with pytest.raises(jaxplan.InfeasibleError) as error:
        planned("data", memory=limit)
    assert "megatron" not in str(error.value)  # it fits, and is not of the family


def test_axes_must_multiply_to_the_devices():
    with pytest.raises(jaxplan.ArgumentError, match="devices are left over"):
        planned({"up": P("data")}, axes={"data": 2})


def shardings():
    mesh = AbstractMesh((4, 2), ("data", "tensor"))

    def of(*spec):
        return NamedSharding(mesh, P(*spec))

    params, slots, _ = arguments()
    kernels = {block: {"up": of("data", "tensor"), "down": of("tensor", "data")} for block in params}
    return kernels, (slots[0]._replace(trace=kernels), *slots[1:]), of("data")


def test_own_shardings_are_a_reference():
    """They are stored as written, priced, compared with, and chosen by name; rules by path give the same."""
    frontier = planned(references={"mine": shardings()}, axes=AXES)
    mine = frontier.references["mine"]
    assert {parts(mine, spec) for block in mine.in_specs[0].values() for spec in block.values()} == {(4, 2), (2, 4)}
    assert frontier.fastest().time_seconds <= mine.time_seconds
    rules = {"up": P("data", "tensor"), "down": P("tensor", "data"), "batch": P("data")}
    again = planned(references={"rules": rules}, axes=AXES).references["rules"]
    assert again.in_specs == mine.in_specs and again.time_seconds == mine.time_seconds
    expected = train_step(*arguments())
    found = frontier.choose("mine").jit()(*arguments())
    np.testing.assert_allclose(found[2], expected[2], rtol=1e-4)


def test_own_shardings_that_one_operator_cannot_run_on_are_absent_with_the_reason():
    """An update alone reads both arrays, and runs on one split of them."""
    shape = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    split = P(("gpu0", "gpu1", "gpu2"))

    def step(params, slots):
        slots = [0.9 * m + jnp.cos(m) for m in slots]
        return [w - 0.1 * m for w, m in zip(params, slots, strict=True)], slots

    own = {"slots split": (P(), split), "both split": (split, split)}
    frontier = jaxplan.plan(step, [shape] * 2, [shape] * 2, topology="h100:8", references=own)
    assert frontier.references["both split"].in_specs == ([P(split[0], None)] * 2,) * 2
    assert "slots split" not in frontier.references
    assert frontier.absent["slots split"] == "the argument params/0 cannot be stored so: slots/0 is updated with it"


def test_own_shardings_are_compared_with_beside_pins_that_rule_them_out():
    frontier = planned({"params/*": "whole"}, references={"mine": shardings()})
    assert {"data", "fsdp", "mine"} <= set(frontier.references)
    for plan in frontier.points:
        specs = jax.tree.leaves(plan.in_specs[0], is_leaf=lambda s: isinstance(s, P))
        assert not any(map(axis_names, specs))


@pytest.mark.parametrize(
    ("references", "message"),
    [
        ({"data": None}, "name of another plan"),
        ({"mine": (None,)}, "is for 1 argument, and the step takes 3"),
        ({"mine": ({}, None, None)}, "structure"),
        ({"mine": {"nothing": P("data")}}, "matches no argument"),
        ([1], "shardings of the arguments by name"),
    ],
)
def test_own_shardings_that_cannot_be_read_say_why(references, message):
    with pytest.raises(jaxplan.ArgumentError, match=f"(?s){message}"):
        planned(references=references, axes=AXES)


def test_restricted_configurations_are_those_of_all_that_meet_the_limit():
    """Brute force: with few axes, filtering all configurations finds what the restricted enumeration finds."""
    classes = [FactorClass(sizes=(16,), named_dimension=k) for k in range(3)]
    sizes, levels = (2, 2, 2), (0, 1, 1)
    every = enumerate_configurations(classes, sizes, levels, most=10_000)
    limits = {
        "parts": ClassLimit(classes=frozenset({1}), parts=2),
        "among": ClassLimit(classes=frozenset({0, 2}), among=frozenset({1, 2})),
        "split": ClassLimit(classes=frozenset({0, 1}), is_split=True),
        "span": ClassLimit(classes=frozenset({1}), among=frozenset({0}), span=(2, 8)),
    }
    for chosen in itertools.chain.from_iterable(itertools.combinations(limits, n) for n in (1, 2, 3, 4)):
        of = [limits[name] for name in chosen]

        def keeps(config, chosen=chosen):
            size = [math.prod(sizes[a] for a in axes) for axes in config]
            return (
                ("parts" not in chosen or size[1] == 2)
                and ("among" not in chosen or not {0} & {a for c in (0, 2) for a in config[c]})
                and ("split" not in chosen or size[0] > 1 or size[1] > 1)
                and ("span" not in chosen or {0}.issuperset(config[1][1:]))  # all axes have size 2
            )

        assert set(enumerate_restricted(classes, sizes, levels, of)) == set(filter(keeps, every))


def test_a_plan_says_which_pins_limit_an_argument(tmp_path):
    frontier = planned({"block_0/up": P(None, "tensor"), "batch": jaxplan.Split(4)}, axes=AXES)
    plan = frontier.fastest()
    plan.save(tmp_path / "plan.json")
    for of in (plan, jaxplan.load(tmp_path / "plan.json", train_step, *arguments())):
        assert [pin.text for pin in of.pins] == [f"'block_0/up': {P(None, 'tensor')!r}", "'batch': Split(4)"]
        assert "pinned by   'block_0/up'" in of.explain("params/block_0/up")
        assert "pinned by" not in of.explain("params/block_1/up")
        assert "2 arguments" in of.explain()  # the matrix and its momentum; both arrays of the batch
    data = frontier.references["data"]  # splits the batch into 8: ruled out, and shown to compare with
    assert not data.pins
    assert "pinned by" not in data.explain("params/block_0/up")


def test_pins_after_another_search_give_what_they_give_at_first():
    traced = jaxplan.trace(train_step, *arguments())
    for topology, pins in (("cpu:8", None), ("cpu:4", "data"), ("cpu:8", "data"), ("cpu:8", None)):
        traced.plan(topology=topology, pins=pins)
    again = traced.plan(topology="cpu:8", pins={"batch": jaxplan.Split(2)})
    first = planned({"batch": jaxplan.Split(2)})
    figures = [
        {plan.name: (plan.in_specs, plan.time_seconds, plan.memory_bytes, len(plan.pins)) for plan in plans}
        for of in (again, first)
        for plans in (of, of.references.values())
    ]
    assert figures[:2] == figures[2:]


def test_pins_that_leave_too_little_memory_are_said_as_memory() -> None:
    """Stages, which are looked for where nothing fits, take no pins: that is no other error."""
    x = jax.ShapeDtypeStruct((1024, 1024), "float32")
    with pytest.raises(jaxplan.InfeasibleError, match=r"no plan fits 1\.00 KiB"):
        jaxplan.plan(lambda x: jnp.tanh(x @ x), x, topology="h100:2", pins={"x": "whole"}, memory="1KiB")
