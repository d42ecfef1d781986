"""Joint plans of steps that share state: which arrays are one, cost against brute force, memory, and bad input."""

from __future__ import annotations

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import jaxplan
from jaxplan.frontend._options import Options
from jaxplan.plans._rows import leaf_rows
from jaxplan.search._entry import StepToPlan, plan_on
from jaxplan.search._fixed import shardings_of
from tests import together_steps

shape = jax.ShapeDtypeStruct


def loss(params, batch):
    hidden = jnp.tanh(batch["x"] @ params["up"])
    return jnp.mean((hidden @ params["down"] - batch["y"]) ** 2)


def train(params, slots, batch):
    slots = jax.tree.map(lambda m, g: 0.9 * m + g, slots, jax.grad(loss)(params, batch))
    return jax.tree.map(lambda p, m: p - 0.1 * m, params, slots), slots


def parameters(width):
    return {"up": shape((width, 4 * width), "float32"), "down": shape((4 * width, width), "float32")}


def examples(size, width):
    return {"x": shape((size, width), "float32"), "y": shape((size, width), "float32")}


def train_and_eval(size, eval_size, width=512):
    params = parameters(width)
    return {
        "train": (train, (params, params, examples(size, width))),
        "eval": (loss, (params, examples(eval_size, width))),
    }


@pytest.mark.sample(3)
@pytest.mark.parametrize("case", together_steps.CASES)
def test_steps_share_the_arrays_that_a_reader_sees(case):
    together = case()
    plan = jaxplan.plan_together(together.steps, topology="cpu:2").fastest()

    def subtree(step, path):
        return next(
            (step, root)
            for roots in together.shared
            for name, root in roots
            if name == step and (path == root or path.startswith(f"{root}/"))
        )

    assert {frozenset(subtree(*end) for end in of.items()) for of in plan.shared} == together.shared
    text = plan.explain()
    assert all(step in text for step in together.steps)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("size", "eval_size", "weight", "width", "topology"),
    [
        (4096, 256, 1.0, 512, "h100:8"),
        (256, 8192, 8.0, 512, "h100:8"),
        (4096, 1024, 1.0, 128, "h100:2x2"),
        (512, 16, 1.0, 256, "v5e:4"),
    ],
)
def test_no_step_by_itself_lays_out_what_is_shared_better(size, eval_size, weight, width, topology):
    """Each step is planned alone, and the other one with that layout kept: the joint plan costs no more."""
    steps, weights = train_and_eval(size, eval_size, width), {"train": 1.0, "eval": weight}
    joint = jaxplan.plan_together(steps, weights=weights, topology=topology).fastest()
    options = Options(topology=topology, progress=False)
    traced = {name: StepToPlan(step, args, {}, options) for name, (step, args) in steps.items()}
    for decides in steps:
        alone = plan_on(traced[decides], options).fastest()
        kept = dataclasses.replace(options, kept=shardings_of(alone))
        times = {
            name: alone.time_seconds if name == decides else plan_on(of, kept).fastest().time_seconds
            for name, of in traced.items()
        }
        forced = sum(weights[name] * seconds for name, seconds in times.items())
        assert joint.time_seconds <= forced * (1 + 1e-9), decides


def test_the_fastest_joint_plan_is_that_of_brute_force():
    """One shared matrix on two axes: every spec is pinned in both steps, and the sum of times is the least of all."""

    def forward(w, x):
        return jnp.tanh(x @ w)

    def backward(w, y):
        return jnp.sum(jnp.tanh(y @ w.T), axis=0)

    w = shape((1024, 4096), "float32")
    args = {"forward": (w, shape((64, 1024), "float32")), "backward": (w, shape((2048, 4096), "float32"))}
    steps = {"forward": forward, "backward": backward}
    joint = jaxplan.plan_together({name: (steps[name], args[name]) for name in steps}, topology="h100:4")
    traced = {name: jaxplan.trace(steps[name], *args[name]) for name in steps}
    axes = joint.fastest()["forward"].mesh(jax.devices()[:4]).axis_names
    orders = [(), *((a,) for a in axes), *itertools.permutations(axes)]
    specs = [P(one or None, two or None) for one, two in itertools.product(orders, orders) if not set(one) & set(two)]
    least = math.inf
    for spec in specs:
        pinned = {"w": spec}
        times = [of.plan(topology="h100:4", pins=pinned).fastest().time_seconds for of in traced.values()]
        least = min(least, sum(times))
    assert joint.fastest().time_seconds == pytest.approx(least, rel=1e-9)


def test_weights_decide_for_whom_the_layout_is():
    steps = train_and_eval(256, 8192)
    layouts = {}
    for name in steps:
        plan = jaxplan.plan_together(steps, weights={name: 1e6}, topology="h100:8").fastest()
        alone = jaxplan.plan(steps[name][0], *steps[name][1], topology="h100:8").fastest()
        assert plan[name].time_seconds == pytest.approx(alone.time_seconds, rel=1e-6)
        weighted = sum(plan.weights[step] * plan[step].time_seconds for step in steps)
        assert plan.time_seconds == pytest.approx(weighted)
        layouts[name] = plan["eval"].in_specs[0]
    assert layouts["train"] != layouts["eval"]


def test_the_memory_is_that_of_the_worst_step_beside_the_state_of_the_others():
    """While the evaluation runs, the optimizer's slots stay on the devices; the shared parameters are counted once."""
    for plan in jaxplan.plan_together(train_and_eval(64, 4096), topology="h100:8"):
        slots = sum(row.local_bytes for row in leaf_rows(plan["train"]) if row.path.startswith("slots"))
        assert plan.resident_bytes == {"train": 0, "eval": slots}
        expected = max(plan["train"].memory_bytes, plan["eval"].memory_bytes + slots)
        assert plan.memory_bytes == expected == sum(plan.memory_parts.values())


def test_a_limit_filters_the_frontier_and_names_the_least():
    steps = train_and_eval(1024, 1024)
    frontier = jaxplan.plan_together(steps, topology="h100:8")
    assert [p.memory_bytes for p in frontier] == sorted(p.memory_bytes for p in frontier)
    limit = frontier.leanest().memory_bytes
    assert jaxplan.plan_together(steps, topology="h100:8", memory=limit).fastest().memory_bytes <= limit
    assert frontier.within(limit) is frontier.leanest()
    with pytest.raises(jaxplan.InfeasibleError, match=r"no plan fits 1\.00 MiB"):
        jaxplan.plan_together(steps, topology="h100:8", memory="1MiB")


def test_steps_are_recomputed_under_the_layout_that_they_share():
    """A deep step with little memory: the plans with recomputed blocks keep the layout, and need less."""

    def deep(params, x):
        def total(p):
            hidden = x
            for w in p:
                hidden = jax.nn.gelu(hidden @ w)
            return jnp.mean(hidden**2)

        return jax.tree.map(lambda w, g: w - 0.1 * g, params, jax.grad(total)(params))

    def forward(params, x):
        hidden = x
        for w in params:
            hidden = jax.nn.gelu(hidden @ w)
        return hidden.mean()

    params = [shape((256, 256), "float32") for _ in range(4)]
    steps = {
        "train": (deep, (params, shape((2**15, 256), "float32"))),
        "eval": (forward, (params, shape((2**10, 256), "float32"))),
    }
    plain = jaxplan.plan_together(steps, topology="h100:2", remat=False).leanest()
    joint = jaxplan.plan_together(steps, topology="h100:2", remat=True).leanest()
    assert joint["train"].remat is not None
    assert joint.memory_bytes < 0.9 * plain.memory_bytes
    assert joint["train"].in_specs[0] == joint["eval"].in_specs[0]


def test_pins_are_about_the_steps_that_have_them():
    steps = train_and_eval(1024, 256)
    plan = jaxplan.plan_together(steps, topology="h100:8", pins={"slots/up": "whole", "params/down": "split"}).fastest()
    assert plan["train"].in_specs[1]["up"] == P(None, None)
    assert plan["eval"].in_specs[0]["down"] == plan["train"].in_specs[0]["down"] != P(None, None)
    with pytest.raises(jaxplan.ArgumentError, match="matches nothing in any of the steps train, eval"):
        jaxplan.plan_together(steps, topology="h100:8", pins={"prams/up": "whole"})


def test_arrays_under_other_names_are_shared_where_a_person_says_so():
    def half(left, x):
        return x @ left

    def other(right, x):
        return (x @ right).sum()

    w, x = shape((64, 64), "float32"), shape((128, 64), "float32")
    steps = {"half": (half, (w, x)), "other": (other, (w, x))}
    with pytest.raises(jaxplan.ArgumentError, match="no array in common"):
        jaxplan.plan_together(steps, topology="cpu:2")
    said = jaxplan.plan_together(steps, topology="cpu:2", shared={"half/left": "other/right"}).fastest()
    assert said.shared == ({"half": "left", "other": "right"},)
    with pytest.raises(jaxplan.ArgumentError, match=r"nearest: .*half/left"):
        jaxplan.plan_together(steps, topology="cpu:2", shared={"half/lft": "other/right"})
    with pytest.raises(jaxplan.ArgumentError, match="differ"):
        jaxplan.plan_together(steps, topology="cpu:2", shared={"half/left": "other/x"})


def test_a_cache_that_is_one_array_without_a_name_is_the_argument_of_its_shape():
    def prefill(weights, tokens):
        hidden = weights["embed"][tokens]
        return hidden @ weights["key"], hidden[:, -1]

    def decode(weights, kv, x):
        kv = jnp.concatenate([kv[:, 1:], (x @ weights["key"])[:, None]], axis=1)
        return kv, jnp.einsum("bd,bsd->bs", x, kv)

    weights = {"embed": shape((512, 64), "float32"), "key": shape((64, 64), "float32")}
    joint = jaxplan.plan_together(
        {
            "prefill": (prefill, (weights, shape((8, 32), "int32"))),
            "decode": (decode, (weights, shape((8, 32, 64), "float32"), shape((8, 64), "float32"))),
        },
        topology="h100:4",
    )
    for plan in joint:
        assert {"prefill": "result/0", "decode": "kv"} in plan.shared
        assert plan["prefill"].out_specs[0] == plan["decode"].in_specs[1] == plan["decode"].out_specs[0]


def test_gradients_that_another_step_applies_are_named():
    """Structure alone could mean the momentum as well, so nothing but the parameters is shared unless it is said."""

    def gradient(params, batch):
        return jax.grad(loss)(params, batch)

    def apply(params, momentum, grads):
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
        return jax.tree.map(lambda p, m: p - 0.1 * m, params, momentum), momentum

    params = parameters(256)
    steps = {"grad": (gradient, (params, examples(64, 256))), "apply": (apply, (params,) * 3)}
    plan = jaxplan.plan_together(steps, topology="h100:4").fastest()
    assert {path.split("/")[0] for of in plan.shared for path in of.values()} == {"params"}
    said = jaxplan.plan_together(steps, topology="h100:4", shared={"grad/result": "apply/grads"})
    for plan in said:
        assert {"grad": "result/up", "apply": "grads/up"} in plan.shared
        assert plan["grad"].out_specs == plan["apply"].in_specs[2]
        assert "grad result = apply grads" in plan.explain()


@pytest.mark.parametrize(
    ("steps", "options", "message"),
    [
        ({}, {}, "at least two steps by name, and was given 0 of them"),
        ([loss], {}, "was given a list"),
        ({"a": loss, "b": loss}, {}, "step 'a' is of type function"),
        ({"a": (loss, 1), "b": loss}, {}, "step 'a' is a tuple of function, int"),
        ({"a": (loss, (1,)), "b": loss}, {}, "batch missing"),
        ({"a/b": (loss, ()), "b": loss}, {}, "without slashes"),
        (train_and_eval(8, 8, 8), {"weights": {"evl": 2}}, "weights names 'evl'; expected .*'train', 'eval'"),
        (train_and_eval(8, 8, 8), {"weights": {"eval": 0}}, "expected a positive number"),
        (train_and_eval(8, 8, 8), {"solver": "mcmc"}, "expected one of auto"),
        (train_and_eval(8, 8, 8), {"choose": "knee"}, "plan_together was given choose"),
    ],
)
def test_bad_input_is_one_clear_error(steps, options, message):
    with pytest.raises(jaxplan.JaxplanError, match=message):
        jaxplan.plan_together(steps, topology="cpu:2", **options)


def test_a_joint_plan_names_its_steps():
    joint = jaxplan.plan_together(train_and_eval(8, 8, 8), topology="cpu:2").knee()
    assert list(joint) == ["train", "eval"]
    with pytest.raises(jaxplan.ArgumentError, match="expected one of 'train', 'eval'"):
        joint["test"]
