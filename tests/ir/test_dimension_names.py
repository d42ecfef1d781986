"""Names of dimensions: models of the registry as checked by hand, and steps where a name would be wrong."""

import json

import jax
import jax.numpy as jnp
import pytest

from benchmarks.names import RECORD, differences, names_of, scrambled_names_of
from jaxplan.ir import analyse, trace
from tests.sampling import sampled

MODELS = ["moe-tiny", "llama-tiny", "lstm-tiny", "dlrm-tiny", "swin-tiny", "resnet-tiny"]


@pytest.mark.parametrize("model", sampled(MODELS, 4))
def test_models_have_the_names_that_were_checked_by_hand(model):
    assert differences(json.loads(RECORD.read_text())[model], names_of(model)) == []


@pytest.mark.parametrize("model", sampled(["dlrm-tiny", "moe-tiny", "clip-tiny"]))
def test_paths_and_order_of_parameters_play_no_part(model):
    assert differences(json.loads(RECORD.read_text())[model], scrambled_names_of(model)) == []


def _names(step, *args):
    graph = analyse(trace(step, args))
    return {
        f"{graph.program.tensors[t].path}.{d}": graph.named.name_at(t, d)
        for t in graph.program.inputs
        for d in range(len(graph.program.tensors[t].shape))
        if (t, d) in graph.named.of
    }


def _floats(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def _integers(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def _attend(x, p):
    """One attention of 4 heads over (batch, sequence, 16)."""
    q, k, v = (jnp.einsum("bsh,hnd->bsnd", x, p[name]) for name in ("q", "k", "v"))
    weights = jax.nn.softmax(jnp.einsum("bsnd,btnd->bnst", q, k))
    return x + jnp.einsum("bsnd,ndh->bsh", jnp.einsum("bnst,btnd->bsnd", weights, v), p["o"])


ATTENTION = {name: _floats(16, 4, 8) for name in "qkv"} | {"o": _floats(4, 8, 16)}


def test_a_head_of_labels_is_classes_although_it_labels_a_sequence():
    def step(p, tokens, labels):
        def loss(p):
            x = _attend(p["words"][tokens] + p["positions"][jnp.arange(12)], p)
            scores = jax.nn.log_softmax(x @ p["head"])
            return -jnp.mean(jnp.take_along_axis(scores, labels[..., None], 2))

        value, gradients = jax.value_and_grad(loss)(p)
        return jax.tree.map(jnp.subtract, p, gradients), value

    p = ATTENTION | {"words": _floats(64, 16), "positions": _floats(12, 16), "head": _floats(16, 9)}
    names = _names(step, p, _integers(8, 12), _integers(8, 12))
    assert names["[0]['words'].0"] == "vocabulary" and names["[0]['head'].1"] == "classes"
    assert names["[0]['words'].1"] == names["[0]['q'].0"] == names["[0]['o'].2"] == "hidden"
    assert names["[0]['q'].1"] == names["[0]['o'].0"] == "heads" and names["[0]['k'].2"] == "head_dim"
    assert names["[1].1"] == "sequence"
    assert names["[0]['positions'].0"] == "positions.0"  # looked up by no data


def test_members_of_an_ensemble_are_no_experts():
    def step(p, x, y):
        def loss(p):
            hidden = jnp.tanh(jnp.einsum("bi,eij->ebj", x, p["a"]))
            return jnp.mean((jnp.einsum("ebj,ejk->ebk", hidden, p["b"]) - y) ** 2)

        return jax.tree.map(jnp.subtract, p, jax.grad(loss)(p))

    names = _names(step, {"a": _floats(4, 16, 32), "b": _floats(4, 32, 8)}, _floats(64, 16), _floats(64, 8))
    assert "experts" not in names.values()


def test_a_contrastive_loss_compares_no_sequence():
    def step(p, x, y):
        def loss(p):
            scores = (x @ p["a"]) @ (y @ p["b"]).T
            return jnp.mean(jax.nn.logsumexp(scores, axis=1) - jnp.diagonal(scores))

        return jax.tree.map(jnp.subtract, p, jax.grad(loss)(p))

    names = _names(step, {"a": _floats(16, 32), "b": _floats(24, 32)}, _floats(64, 16), _floats(64, 24))
    assert {"sequence", "heads", "head_dim", "hidden"}.isdisjoint(names.values())


def test_micro_batches_of_a_loop_are_no_sequence():
    def step(p, tokens):
        def loss(p, some):
            return jnp.mean(jnp.tanh(p["words"][some] @ p["w"]) ** 2)

        def add(total, some):
            return jax.tree.map(jnp.add, total, jax.grad(loss)(p, some)), None

        total, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, p), tokens)
        return jax.tree.map(jnp.subtract, p, total)

    names = _names(step, {"words": _floats(64, 16), "w": _floats(16, 16)}, _integers(4, 8, 12))
    assert "sequence" not in names.values() and "vocabulary" not in names.values()


def test_a_loss_on_the_next_token_scores_the_vocabulary_of_the_table():
    def step(p, tokens):
        def loss(p):
            x = _attend(p["words"][tokens], p)
            scores = jax.nn.log_softmax(x @ p["head"])[:, :-1]  # the last token predicts none
            return -jnp.mean(jnp.take_along_axis(scores, tokens[:, 1:, None], 2))

        value, gradients = jax.value_and_grad(loss)(p)
        return jax.tree.map(jnp.subtract, p, gradients), value

    names = _names(step, {**ATTENTION, "words": _floats(32, 16), "head": _floats(16, 32)}, _integers(8, 12))
    assert (names["[0]['words'].0"], names["[0]['head'].1"]) == ("vocabulary", "vocabulary")


def test_attention_with_a_mask_of_heads_is_attention():
    def step(p, x, kept):
        def loss(p):
            q, k, v = (jnp.einsum("bsh,hnd->bsnd", x, p[name]) for name in ("q", "k", "v"))
            weights = jax.nn.softmax(jnp.einsum("bsnd,btnd->bnst", q, k))
            weights = jnp.einsum("n,bnst->bnst", kept, weights)  # a dot that sums over nothing
            y = x + jnp.einsum("bsnd,ndh->bsh", jnp.einsum("bnst,btnd->bsnd", weights, v), p["o"])
            return jnp.mean(y**2)

        value, gradients = jax.value_and_grad(loss)(p)
        return jax.tree.map(jnp.subtract, p, gradients), value

    names = _names(step, ATTENTION, _floats(8, 12, 16), _floats(4))
    assert (names["[0]['q'].1"], names["[1].1"], names["[0]['q'].0"]) == ("heads", "sequence", "hidden")


def test_rows_of_an_image_and_the_sequence_of_its_patches_have_names_of_their_own():
    def step(p, images):
        def loss(p):
            x = jax.lax.conv_general_dilated(
                images, p["patches"], (4, 4), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            x = x.reshape(x.shape[0], -1, x.shape[-1]) + p["positions"]
            return jnp.mean(_attend(x, p) ** 2)

        value, gradients = jax.value_and_grad(loss)(p)
        return jax.tree.map(jnp.subtract, p, gradients), value

    params = {**ATTENTION, "patches": _floats(4, 4, 3, 16), "positions": _floats(16, 16)}
    names = _names(step, params, _floats(8, 16, 16, 3))
    assert [names[f"[1].{d}"] for d in range(4)] == ["batch", "rows", "columns", "channels"]
    assert names["[0]['positions'].0"] == "sequence"
    named = analyse(trace(step, (params, _floats(8, 16, 16, 3)))).named
    assert named.called("rows") == named.called("sequence") == named.called("r?ws") != ()


def test_rows_of_a_table_that_are_scored_too_are_the_vocabulary():
    """A linear recurrence with tied embeddings: neither attention nor a loop says that tokens are a sequence."""

    def step(p, tokens):
        def loss(p):
            x = p["words"][tokens]
            decay = jax.nn.sigmoid(p["decay"]) * jnp.ones_like(x)
            _, x = jax.lax.associative_scan(lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1]), (decay, x), axis=1)
            scores = jax.nn.log_softmax(x @ p["words"].T)[:, :-1]
            return -jnp.mean(jnp.take_along_axis(scores, tokens[:, 1:, None], 2))

        value, gradients = jax.value_and_grad(loss)(p)
        return jax.tree.map(jnp.subtract, p, gradients), value

    names = _names(step, {"words": _floats(32, 16), "decay": _floats(16)}, _integers(8, 12))
    assert names["[0]['words'].0"] == "vocabulary" and "classes" not in names.values()
