"""The closed forms of `test_definitions` on a transformer that scans its layers, with and without recomputing them.

A loop keeps no copies from one pass to the other: a value that is split in between is gathered again in the trips of
the backward pass. Recomputed layers communicate once more for all but their last sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jaxplan
from tests.strategies.small_models import (
    F32,
    Sizes,
    attention,
    communicated,
    gpt_params,
    momentum_step,
    norm,
    references_of,
    totals,
)

DEVICES = 8
GPT = Sizes(layers=3)
WIDE = Sizes(width=2048, hidden=8192, vocabulary=16384, layers=2)  # so that bytes count more than latency
L, A = GPT.layers, GPT.activation_bytes
SMALL = 2 * F32 * GPT.batch * GPT.tokens


def _bytes(s: Sizes) -> tuple[int, int]:
    """Of all parameters, and of those of layers."""
    sizes = {name: F32 * math.prod(shape) for name, shape in gpt_params(s).items()}
    return sum(sizes.values()), sum(size for name, size in sizes.items() if "embed" not in name)


TOTAL, LAYERS = _bytes(GPT)
EMBED = (TOTAL - LAYERS) // 2


def _case(s: Sizes, *, recomputed: bool) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The transformer of `small_models`, its layers stacked."""
    shapes = gpt_params(s)
    params: dict[str, Any] = {name: jax.ShapeDtypeStruct(shapes[name], jnp.float32) for name in ("embed", "unembed")}
    params["layers"] = {
        name: jax.ShapeDtypeStruct((s.layers, *shape), jnp.float32) for name, shape in shapes.items() if name[0] == "0"
    }

    def layer(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
        x = x + attention(w, 0, norm(x))
        return x + jax.nn.relu(norm(x) @ w["0up"]) @ w["0down"], None

    def loss(p: Any, batch: Any) -> jax.Array:
        body = jax.checkpoint(layer) if recomputed else layer
        logits = norm(jax.lax.scan(body, p["embed"][batch["inputs"]], p["layers"])[0]) @ p["unembed"]
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - jnp.sum(logits * batch["targets"], axis=-1))

    batch = {
        "inputs": jax.ShapeDtypeStruct((s.batch, s.tokens), jnp.int32),
        "targets": jax.ShapeDtypeStruct((s.batch, s.tokens, s.vocabulary), jnp.float32),
    }
    return momentum_step(loss), (params, params, batch)


@pytest.fixture(scope="module", params=[False, True], ids=["kept", "recomputed"])
def scanned(request: pytest.FixtureRequest) -> tuple[dict[str, jaxplan.Plan], bool]:
    return references_of(*_case(GPT, recomputed=request.param), f"h100:{DEVICES}")[0], request.param


def state(plan: jaxplan.Plan) -> tuple[int, int]:
    return plan.memory_parts["parameters"], plan.memory_parts["optimizer state"]


def test_data_parallelism_sums_every_gradient_once(scanned: Any) -> None:
    plan = scanned[0]["data"]
    assert totals(plan, SMALL) == {("all-reduce", DEVICES): TOTAL}
    assert state(plan) == (TOTAL, TOTAL)


def test_zero1_scatters_gradients_and_gathers_updated_parameters(scanned: Any) -> None:
    plan = scanned[0]["zero1"]
    assert totals(plan, SMALL) == {("reduce-scatter", DEVICES): TOTAL, ("all-gather", DEVICES): TOTAL}
    assert state(plan) == (TOTAL, TOTAL // DEVICES)


def test_zero2_gathers_parameters_once_but_layers_that_are_recomputed_twice(scanned: Any) -> None:
    plans, is_recomputed = scanned
    gathered = TOTAL + (LAYERS if is_recomputed else 0)
    assert totals(plans["zero2"], SMALL) == {
        ("reduce-scatter", DEVICES): TOTAL,
        ("all-gather", DEVICES): gathered,
    }
    assert state(plans["zero2"]) == (TOTAL // DEVICES, TOTAL // DEVICES)


def test_fsdp_gathers_parameters_for_each_pass(scanned: Any) -> None:
    plan = scanned[0]["fsdp"]
    assert totals(plan, SMALL) == {
        ("reduce-scatter", DEVICES): TOTAL,
        ("all-gather", DEVICES): 2 * TOTAL - EMBED,
    }
    largest = max(size for sizes in communicated(plan, SMALL).values() for size in sizes)
    assert largest == max(EMBED, F32 * GPT.width * GPT.hidden)  # a matrix of one layer, never a stack
    assert state(plan) == (TOTAL // DEVICES, TOTAL // DEVICES)


def test_hybrid_fsdp_gathers_inside_a_node_for_each_pass() -> None:
    inside = 4
    plan = references_of(*_case(WIDE, recomputed=False), "h100:2x4")[0]["hybrid_fsdp"]
    total, layers = _bytes(WIDE)
    found = totals(plan, 2**20)
    assert found["all-gather", inside] == 2 * total - (total - layers) // 2
    assert found["reduce-scatter", inside] + found.get(("reduce-scatter", DEVICES), 0) == total
    assert state(plan) == (total // inside, total // inside)


def test_megatron_sums_activations_four_times_a_layer(scanned: Any) -> None:
    """Of a layer that is recomputed, attention's sum once more."""
    plans, is_recomputed = scanned
    times = (5 if is_recomputed else 4) * L + 2
    assert communicated(plans["megatron"], SMALL) == {("all-reduce", DEVICES): {A: times}}
    assert state(plans["megatron"]) == (TOTAL // DEVICES, TOTAL // DEVICES)


def test_sequence_parallelism_gathers_the_inputs_of_both_pairs_again(scanned: Any) -> None:
    plans, is_recomputed = scanned
    found = communicated(plans["megatron_sequence"], SMALL)
    assert found == {
        ("all-gather", DEVICES): {A: 6 * L + 2},
        ("reduce-scatter", DEVICES): {A: (5 if is_recomputed else 4) * L + 2},
    }


def test_context_parallelism_gathers_keys_and_values_for_each_pass(scanned: Any) -> None:
    plan = scanned[0]["context"]
    assert totals(plan, SMALL) == {
        ("all-gather", DEVICES): 2 * 2 * L * A,
        ("reduce-scatter", DEVICES): 2 * L * A,
        ("all-reduce", DEVICES): TOTAL,
    }
    assert state(plan) == (TOTAL, TOTAL)
