"""Every strategy communicates and holds as much as its definition implies: closed forms of the model's dimensions."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jaxplan
from jaxplan.strategies import References
from tests.strategies.small_models import (
    CNN_BATCH,
    CNN_PARAMS,
    F32,
    IMAGE_PARAMS,
    IMAGES,
    Sizes,
    cnn_case,
    communicated,
    gpt_case,
    gpt_logits,
    gpt_params,
    image_case,
    momentum_step,
    references_of,
    totals,
)

DEVICES = 8
GPT = Sizes()
MOE = Sizes(experts=8, layers=1)
WIDE = Sizes(width=2048, hidden=8192, vocabulary=16384, layers=1)  # so that bytes count more than latency
PARAMETERS = {name: F32 * math.prod(shape) for name, shape in gpt_params(GPT).items()}
TOTAL = sum(PARAMETERS.values())
A = GPT.activation_bytes
SMALL = 2 * F32 * GPT.batch * GPT.tokens  # the traffic of softmax over a split vocabulary is below this


@pytest.fixture(scope="module")
def gpt() -> tuple[dict[str, jaxplan.Plan], References]:
    return references_of(*gpt_case(GPT), f"h100:{DEVICES}")


@pytest.fixture(scope="module")
def nodes() -> tuple[dict[str, jaxplan.Plan], References]:
    return references_of(*gpt_case(WIDE), "h100:2x4")


@pytest.fixture(scope="module")
def moe() -> tuple[dict[str, jaxplan.Plan], References]:
    return references_of(*gpt_case(MOE), f"h100:{DEVICES}")


@pytest.fixture(scope="module")
def cnn() -> tuple[dict[str, jaxplan.Plan], References]:
    return references_of(*cnn_case(), f"h100:{DEVICES}")


def state(plan: jaxplan.Plan) -> tuple[int, int]:
    return plan.memory_parts["parameters"], plan.memory_parts["optimizer state"]


def test_data_parallelism_sums_every_gradient_once(gpt) -> None:
    plan = gpt[0]["data"]
    assert totals(plan, SMALL) == {("all-reduce", DEVICES): TOTAL}
    assert sum(communicated(plan, SMALL)["all-reduce", DEVICES].values()) == len(PARAMETERS)
    assert state(plan) == (TOTAL, TOTAL)


def test_zero1_splits_only_slots_and_gathers_updated_parameters(gpt) -> None:
    """As many bytes as data parallelism's sums, which are a scatter and a gather; no copy of a parameter is made."""
    plan = gpt[0]["zero1"]
    assert totals(plan, SMALL) == {("reduce-scatter", DEVICES): TOTAL, ("all-gather", DEVICES): TOTAL}
    assert state(plan) == (TOTAL, TOTAL // DEVICES)
    assert plan.memory_parts["resharded copies"] < SMALL
    assert plan.memory_bytes < gpt[0]["data"].memory_bytes


def test_zero1_keeps_parameters_without_slots_whole() -> None:
    """Momentum for one of two, plain descent for the other."""

    def step(w: jax.Array, v: jax.Array, slot: jax.Array, x: jax.Array) -> Any:
        loss, (dw, dv) = jax.value_and_grad(lambda w, v: jnp.mean((x @ w @ v) ** 2), argnums=(0, 1))(w, v)
        slot = 0.9 * slot + dw
        return w - 0.1 * slot, v - 0.1 * dv, slot, loss

    square, x = jax.ShapeDtypeStruct((1024, 1024), jnp.float32), jax.ShapeDtypeStruct((256, 1024), jnp.float32)
    arguments = square, square, square, x
    plan = jaxplan.plan(step, *arguments, topology=f"h100:{DEVICES}", donate_argnums=(0, 1, 2)).choose("zero1")
    assert [sharding.num_splits(plan.topology.axes) for sharding in plan.input_shardings[:2]] == [(1, 1), (1, 1)]
    assert sorted(plan.input_shardings[2].num_splits(plan.topology.axes)) == [1, DEVICES]


def test_zero1_needs_slots() -> None:
    """Plain gradient descent keeps none."""

    def step(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(w)
        return w - 0.1 * gradient, loss

    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((1024, 1024), (256, 1024))]
    frontier = jaxplan.plan(step, *shapes, topology=f"h100:{DEVICES}")
    assert frontier.absent["zero1"] == "no parameter has optimizer slots of its shape"


def test_zero2_scatters_gradients_and_gathers_parameters_once(gpt) -> None:
    plan = gpt[0]["zero2"]
    assert totals(plan, SMALL) == {("reduce-scatter", DEVICES): TOTAL, ("all-gather", DEVICES): TOTAL}
    assert state(plan) == (TOTAL // DEVICES, TOTAL // DEVICES)


def test_fsdp_gathers_parameters_for_each_pass(gpt) -> None:
    """All but the embedding: the gradient of a look-up does not read the table."""
    plan = gpt[0]["fsdp"]
    gathered = 2 * TOTAL - PARAMETERS["embed"]
    assert totals(plan, SMALL) == {("reduce-scatter", DEVICES): TOTAL, ("all-gather", DEVICES): gathered}
    assert state(plan) == (TOTAL // DEVICES, TOTAL // DEVICES)
    assert plan.memory_bytes < gpt[0]["zero2"].memory_bytes < gpt[0]["data"].memory_bytes


def test_hybrid_fsdp_scatters_inside_a_node_and_sums_across(nodes) -> None:
    """A sum across nodes is a scatter and a gather; of each gradient the cheaper spelling is taken."""
    inside, across = 4, 2
    plan = nodes[0]["hybrid_fsdp"]
    parameters = {name: F32 * math.prod(shape) for name, shape in gpt_params(WIDE).items()}
    total = sum(parameters.values())
    found = totals(plan, 2**20)
    summed, scattered_twice = found.pop(("all-reduce", across)), found.pop(("reduce-scatter", DEVICES))
    assert summed + found[("all-gather", across)] == total // inside
    assert found == {
        ("all-gather", inside): 2 * total - parameters["embed"],
        ("reduce-scatter", inside): total - scattered_twice,
        ("all-gather", across): scattered_twice // inside,
    }
    assert state(plan) == (total // inside, total // inside)


def test_megatron_sums_activations_four_times_a_layer(gpt) -> None:
    """And once each behind the embedding and before the head, which has a split vocabulary."""
    plan = gpt[0]["megatron"]
    assert communicated(plan, SMALL) == {("all-reduce", DEVICES): {A: 4 * GPT.layers + 2}}
    assert state(plan) == (TOTAL // DEVICES, TOTAL // DEVICES)


def test_sequence_parallelism_scatters_and_gathers_where_megatron_sums(gpt) -> None:
    times = 4 * GPT.layers + 2
    plan = gpt[0]["megatron_sequence"]
    found = communicated(plan, SMALL)
    assert found == {("all-gather", DEVICES): {A: times}, ("reduce-scatter", DEVICES): {A: times}}
    assert plan.memory_bytes < gpt[0]["megatron"].memory_bytes


@pytest.mark.parametrize(("data", "tensor"), [(4, 2), (2, 4)])
def test_data_times_tensor_sums_activations_one_way_and_gradients_the_other(
    gpt, data: int, tensor: int
) -> None:
    plan = gpt[0][f"data{data}_tensor{tensor}"]
    found = totals(plan, SMALL)
    assert found == {
        ("all-reduce", tensor): (4 * GPT.layers + 2) * A // data + (TOTAL // tensor if data == tensor else 0),
        ("all-reduce", data): TOTAL // tensor,
    }
    assert state(plan) == (TOTAL // tensor, TOTAL // tensor)


def test_every_grid_is_there(nodes) -> None:
    """Two nodes of four: either way across, and 1, 2 or 4 of the devices inside; one of them is megatron."""
    plans, references = nodes
    found = {name for name in (*plans, *references.absent) if "_tensor" in name}
    assert found == {
        "data2x1_tensor1x4", "data2x2_tensor1x2",
        "data1x4_tensor2x1", "data1x2_tensor2x2",
    }  # fmt: skip
    assert references.absent["data2x1_tensor1x4"] == "here it is the same as megatron"


def test_context_parallelism_gathers_keys_and_values(gpt) -> None:
    """In each layer; their gradients are scattered, and parameters are as in data parallelism."""
    plan = gpt[0]["context"]
    assert totals(plan, SMALL) == {
        ("all-gather", DEVICES): 2 * GPT.layers * A,
        ("reduce-scatter", DEVICES): 2 * GPT.layers * A,
        ("all-reduce", DEVICES): TOTAL,
    }
    assert state(plan) == (TOTAL, TOTAL)


def test_context_parallelism_splits_the_loss_of_next_tokens() -> None:
    """Labels that are slices of the tokens, looked up in the logits, change no communication."""

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        logits = gpt_logits(GPT, params, {"inputs": tokens[:, :-1]})
        picked = jnp.take_along_axis(logits, tokens[:, 1:, None], axis=-1)
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1)) - jnp.mean(picked)

    params = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in gpt_params(GPT).items()}
    tokens = jax.ShapeDtypeStruct((GPT.batch, GPT.tokens + 1), jnp.int32)
    plans, _ = references_of(momentum_step(loss), (params, params, tokens), f"h100:{DEVICES}")
    assert totals(plans["context"], SMALL) == {
        ("all-gather", DEVICES): 2 * GPT.layers * A,
        ("reduce-scatter", DEVICES): 2 * GPT.layers * A,
        ("all-reduce", DEVICES): TOTAL,
    }


def test_experts_send_tokens_and_keep_their_parameters(moe) -> None:
    """To the experts and back, forward and backward; only gradients outside of experts are summed."""
    plan = moe[0]["experts"]
    shapes = gpt_params(MOE)
    experts = sum(
        F32 * math.prod(shape) for shape in shapes.values() if shape[0] == MOE.experts and len(shape) == 3
    )
    heads = sum(F32 * math.prod(s) for name, s in shapes.items() if name.endswith("o"))
    experts -= heads  # (8, 16, 128) of attention's output: eight heads, not experts
    total = sum(F32 * math.prod(shape) for shape in shapes.values())
    slots = F32 * MOE.experts * MOE.batch * MOE.capacity * MOE.width
    assert communicated(plan, SMALL)["all-to-all", DEVICES] == {slots // DEVICES: 4 * MOE.layers}
    assert totals(plan, SMALL) == {
        ("all-to-all", DEVICES): 4 * MOE.layers * slots // DEVICES,
        ("all-reduce", DEVICES): total - experts,
    }
    assert state(plan) == (total - experts + experts // DEVICES,) * 2


def test_one_weird_trick_sends_activations_of_dense_layers_and_gradients_of_convolutions(cnn) -> None:
    """Inputs of both dense layers are gathered, and their gradients scattered."""
    plan = cnn[0]["one_weird_trick"]
    sizes = {name: F32 * math.prod(shape) for name, shape in CNN_PARAMS.items()}
    features = F32 * CNN_BATCH * 1024
    assert totals(plan, SMALL) == {
        ("all-gather", DEVICES): 2 * features,
        ("reduce-scatter", DEVICES): 2 * features,
        ("all-reduce", DEVICES): sizes["c1"] + sizes["c2"],
    }
    held = sizes["c1"] + sizes["c2"] + (sizes["d1"] + sizes["d2"]) // DEVICES
    assert state(plan) == (held, held)


def test_spatial_exchanges_rows_and_sums_gradients() -> None:
    """One row before and one after: of the image and of the hidden one forward, and of the cotangent of the result."""
    plan = references_of(*image_case(), f"h100:{DEVICES}")[0]["spatial"]
    batch, _, columns, channels = IMAGES
    row, total = F32 * batch * columns, sum(F32 * math.prod(shape) for shape in IMAGE_PARAMS.values())
    assert totals(plan, SMALL) == {
        ("collective-permute", DEVICES): 2 * row * (channels + 128 + channels),
        ("all-reduce", DEVICES): total,
    }
    assert state(plan) == (total, total)
    assert plan.memory_parts["batch and other arguments"] == 2 * F32 * math.prod(IMAGES) // DEVICES


def test_absent_strategies_give_their_reason(gpt, cnn) -> None:
    assert gpt[1].absent == {
        "hybrid_fsdp": "the topology has one level, where it is fsdp",
        "one_weird_trick": "the step is not a convolutional network",
        "experts": "the step has no experts: no dot with one parameter for each of several inputs",
        "spatial": "the step has no convolution over images",
    }
    assert "spatial" not in cnn[1].absent
    assert "attention" in cnn[1].absent["context"]
    assert "attention" in cnn[1].absent["megatron_sequence"]


def test_data_parallelism_keeps_the_batch_split_around_a_flattening(cnn) -> None:
    """Nothing but gradients is summed, although no operator ties the images to the gradient of their features."""
    total = sum(F32 * math.prod(shape) for shape in CNN_PARAMS.values())
    assert totals(cnn[0]["data"], SMALL) == {("all-reduce", DEVICES): total}


def test_heads_that_do_not_divide_leave_fewer_devices_to_a_tensor() -> None:
    plans, references = references_of(*gpt_case(Sizes(layers=1, heads=4)), f"h100:{DEVICES}")
    assert references.absent["data2_tensor4"] == "here it is the same as megatron"
    assert totals(plans["megatron"], SMALL)["all-reduce", 4] == 6 * A // 2
    _, references = references_of(*gpt_case(Sizes(layers=1, heads=1, hidden=511)), f"h100:{DEVICES}")
    assert "does not divide by the 2 devices of a tensor" in references.absent["megatron"]


def test_kernels_that_hold_several_projections_are_split_by_heads_and_hidden() -> None:
    """One kernel of queries, keys and values, one of gate and up: the 3 and the 2 are no dimensions of tensors."""

    def loss(p: Any, x: jax.Array) -> jax.Array:
        q, k, v = jnp.einsum("btd,cdhk->cbthk", x, p["qkv"])
        scores = jax.nn.softmax(jnp.einsum("bthk,bshk->bhts", q, k) / 8)
        x = x + jnp.einsum("bthk,hkd->btd", jnp.einsum("bhts,bshk->bthk", scores, v), p["out"])
        gate, up = jnp.einsum("btd,cdf->cbtf", x, p["up"])
        return jnp.mean((x + (jax.nn.silu(gate) * up) @ p["down"]) ** 2)

    shapes = {"qkv": (3, 512, 8, 64), "out": (8, 64, 512), "up": (2, 512, 2048), "down": (2048, 512)}
    params = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    args = (params, params, jax.ShapeDtypeStruct((16, 64, 512), jnp.float32))
    plans, _ = references_of(momentum_step(loss), args, f"h100:{DEVICES}")
    split = {name: [bool(axes) for axes in spec] for name, spec in plans["megatron"].in_specs[0].items()}
    assert split == {
        "qkv": [False, False, True, False],
        "out": [True, False, False],
        "up": [False, False, True],
        "down": [True, False],
    }


def test_grouped_queries_are_split_by_the_heads_of_their_keys_in_every_layer() -> None:
    """Eight heads of keys, two of queries for each: no device computes more than an eighth of any dot."""
    batch, tokens, width, keys, group, size, hidden, layers = 8, 64, 256, 8, 2, 32, 1024, 3

    def loss(p: Any, x: jax.Array) -> jax.Array:
        for i in range(layers):
            q = jnp.einsum("btd,dkgh->btkgh", x, p[f"{i}q"])
            k, v = (jnp.einsum("btd,dkh->btkh", x, p[f"{i}{name}"]) for name in "kv")
            scores = jax.nn.softmax(jnp.einsum("btkgh,bskh->bkgts", q, k) / 8)
            read = jnp.einsum("bkgts,bskh->btkgh", scores, v)
            x = x + jnp.einsum("btkgh,kghd->btd", read, p[f"{i}o"])
            x = x + (jax.nn.silu(x @ p[f"{i}gate"]) * (x @ p[f"{i}up"])) @ p[f"{i}down"]
        return jnp.mean(x**2)

    shapes = {"q": (width, keys, group, size), "k": (width, keys, size), "v": (width, keys, size)}
    shapes |= {"o": (keys, group, size, width), "gate": (width, hidden), "up": (width, hidden), "down": (hidden, width)}
    params = {f"{i}{n}": jax.ShapeDtypeStruct(s, jnp.float32) for i in range(layers) for n, s in shapes.items()}
    x = jax.ShapeDtypeStruct((batch, tokens, width), jnp.float32)
    plans, _ = references_of(momentum_step(loss), (params, params, x), f"h100:{DEVICES}")
    rows, heads = batch * tokens, keys * group * size
    projections = 2 * rows * width * (2 * heads + 2 * keys * size + 3 * hidden)
    attention = 2 * 2 * rows * tokens * heads
    first = 2 * rows * width * (heads + 2 * keys * size)  # the input has no gradient
    assert plans["megatron"].prediction.flops == (3 * layers * (projections + attention) - first) / DEVICES
    for i in range(layers):
        specs = {name: plans["megatron"].in_specs[0][f"{i}{name}"] for name in "qkvo"}
        assert specs["q"][1] and specs["k"][1] and specs["v"][1] and specs["o"][0]
        assert not any(axes for name in "qkv" for d, axes in enumerate(specs[name]) if d != 1)


def test_one_device_has_one_strategy() -> None:
    plans, references = references_of(*cnn_case(), "cpu:1")
    assert list(plans) == ["data"] and set(references.absent.values()) == {"there is one device"}


def test_a_square_layer_beside_a_residual_is_no_expert() -> None:
    """Its inputs and outputs are one dimension of the stream, and it sums over that dimension."""

    def step(params: dict[str, jax.Array], x: jax.Array) -> Any:
        def loss(params: dict[str, jax.Array]) -> jax.Array:
            return jnp.mean((x + jnp.tanh(x @ params["square"])) ** 2)

        return jax.tree.map(lambda p, g: p - g, params, jax.grad(loss)(params))

    shape = jax.ShapeDtypeStruct((512, 512), jnp.float32)
    _, references = references_of(step, ({"square": shape}, shape), f"h100:{DEVICES}")
    assert "no experts" in references.absent["experts"]


def test_a_batch_compared_with_itself_is_no_sequence() -> None:
    """A contrastive loss multiplies the features of every example with those of every other one."""

    def step(params: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> Any:
        def loss(params: dict[str, jax.Array]) -> jax.Array:
            features = [jnp.tanh(jnp.tanh(z @ params["up"]) @ params["down"]) for z in (x, y)]
            return jnp.mean(jax.nn.logsumexp(features[0] @ features[1].T, axis=1))

        return jax.tree.map(lambda p, g: p - g, params, jax.grad(loss)(params))

    params = {
        "up": jax.ShapeDtypeStruct((256, 1024), jnp.float32),
        "down": jax.ShapeDtypeStruct((1024, 256), jnp.float32),
    }
    batch = jax.ShapeDtypeStruct((512, 256), jnp.float32)
    plans, references = references_of(step, (params, batch, batch), f"h100:{DEVICES}")
    assert "no attention over a sequence" in references.absent["megatron_sequence"]
    assert "context" in references.absent and "data" in plans


def test_gradients_of_a_recurrence_are_summed_once_behind_its_loop() -> None:
    """The gates are multiplied together, and taken apart again in the loop's gradient before they are added up."""
    width, gates, trips = 256, 4, 12

    def step(params: dict[str, jax.Array], x: jax.Array) -> Any:
        def loss(params: dict[str, jax.Array]) -> jax.Array:
            def cell(carry: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
                together = jnp.concatenate([params[name] for name in sorted(params)], axis=1)
                a, b, c, d = jnp.split(jnp.tanh((carry + x) @ together), gates, axis=1)
                return jnp.tanh(a * b + c * d), None

            last, _ = jax.lax.scan(cell, jnp.zeros_like(x[:, 0]), x.swapaxes(0, 1))
            return jnp.sum(last**2)

        return jax.tree.map(lambda p, g: p - g, params, jax.grad(loss)(params))

    kernels = {name: jax.ShapeDtypeStruct((width, width), jnp.float32) for name in "abcd"[:gates]}
    x = jax.ShapeDtypeStruct((512, trips, width), jnp.float32)
    plans, _ = references_of(step, (kernels, x), f"h100:{DEVICES}")
    assert totals(plans["data"], SMALL) == {("all-reduce", DEVICES): gates * F32 * width**2}
