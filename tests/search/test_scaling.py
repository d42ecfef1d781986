"""Parts of a machine: `min_devices` and `scaling` against planning on each of them alone."""

import jax
import jax.numpy as jnp
import pytest

import jaxplan
from jaxplan.cli import _main as _cli

WIDTH, BATCH = 4096, 1024
STATE_BYTES = 2 * WIDTH * 4 * WIDTH * 4
"""Two float32 weights of WIDTH x 4 WIDTH."""


def step(params, batch):
    def loss_fn(params):
        hidden = jnp.maximum(batch @ params["up"], 0)
        return jnp.mean((hidden @ params["down"] - batch) ** 2)

    loss, gradients = jax.value_and_grad(loss_fn)(params)
    return jax.tree.map(lambda p, g: p - 1e-3 * g, params, gradients), loss


def make_args():
    def shape(*dims):
        return jax.ShapeDtypeStruct(dims, jnp.float32)

    return {"up": shape(WIDTH, 4 * WIDTH), "down": shape(4 * WIDTH, WIDTH)}, shape(BATCH, WIDTH)


def plan(topology: str, memory=None):
    return jaxplan.plan(step, *make_args(), topology=topology, memory=memory, donate_argnums=0, progress=False)


def test_scaling_equals_planning_on_each_part_and_traces_once():
    traces = []

    def counted(params, batch):
        traces.append(1)
        return step(params, batch)

    found = jaxplan.scaling(
        counted, *make_args(), topology="h100:2x2", donate_argnums=0, progress=False, device_counts=[4, 1, 2]
    )
    assert len(traces) == 1
    assert [point.num_devices for point in found] == [1, 2, 4]
    for point, name in zip(found, ("h100:1", "h100:2", "h100:2x2"), strict=True):
        alone = plan(name)
        assert point.plan.time_seconds == alone.fastest().time_seconds
        assert point.plan.configurations == alone.fastest().configurations
        assert point.smallest_memory_bytes == alone.leanest().memory_bytes
        assert point.topology.name == name
    assert found[1].plan.communication_seconds == 0
    table = found.table(width=120)
    assert [line.split()[0] for line in table.splitlines() if line.strip()[:1].isdigit()] == ["1", "2", "4"]
    assert "speed-up over 1" in table


def test_min_devices_are_the_first_that_fit():
    limit = plan("h100:4").leanest().memory_bytes
    assert plan("h100:2").leanest().memory_bytes > limit
    found = jaxplan.min_devices(
        step, *make_args(), topology="h100:4x8", memory=limit, donate_argnums=0, progress=False
    )
    assert int(found) == found.num_devices == 4
    assert found.plan.memory_bytes <= limit
    assert found.plan.topology == found.topology == jaxplan.Topology.parse("h100:4")
    # On one device not even the arguments would fit, so it was not planned.
    assert limit < STATE_BYTES and [point.num_devices for point in found.points] == [2, 4]
    with pytest.raises(jaxplan.InfeasibleError, match="no plan fits on 2 devices"):
        found[2].plan  # noqa: B018
    assert "does not fit" in found.table(width=120)


def test_nothing_fits_and_the_smallest_memory_is_named():
    smallest = plan("h100:2").leanest().memory_bytes
    with pytest.raises(jaxplan.InfeasibleError, match=rf"on no part of h100:2(.|\n)*\({smallest} bytes\)") as caught:
        jaxplan.min_devices(step, *make_args(), topology="h100:2", memory="1MiB", donate_argnums=0, microbatches=False)
    assert caught.value.smallest_memory_bytes == smallest


def test_a_point_on_which_nothing_fits_is_shown():
    limit = plan("h100:2").leanest().memory_bytes
    found = jaxplan.scaling(step, *make_args(), topology="h100:2", memory=limit, donate_argnums=0, microbatches=False)
    assert [point.fits for point in found] == [False, True]
    assert found[1].smallest_memory_bytes == plan("h100:1").leanest().memory_bytes


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"device_counts": [3]}, jaxplan.TopologyError, "no part of 3 devices"),
        ({"device_counts": []}, jaxplan.ArgumentError, r"expected one or more .* \[1, 2, 4, 8\]"),
        ({"device_counts": 8}, jaxplan.ArgumentError, "device_counts is 8"),
        ({"device_counts": [2.5]}, jaxplan.ArgumentError, "device_counts is"),
        ({"memory": "40"}, jaxplan.ArgumentError, "not an amount of memory"),
        ({"device_count": [8]}, jaxplan.ArgumentError, "misspelling of 'device_counts'"),
    ],
)
def test_bad_input(options, error, message):
    with pytest.raises(error, match=message):
        jaxplan.scaling(step, *make_args(), topology="h100:8", **options)
    with pytest.raises(jaxplan.ArgumentError, match=r"step is 3(.|\n)*jaxplan.min_devices\(train_step"):
        jaxplan.min_devices(3, topology="h100:8")  # pyright: ignore[reportArgumentType]
    with pytest.raises(jaxplan.ArgumentError, match="batch missing"):
        jaxplan.min_devices(step, make_args()[0], topology="h100:8")


def test_the_command_line(tmp_path, capsys):
    named = ["tests/search/test_scaling.py:step", "--args", "tests/search/test_scaling.py:make_args", "--donate", "0"]
    file = tmp_path / "plan.json"
    code = _cli.main(
        ["min-devices", *named, "--topology", "h100:2", "--memory", "8GiB", "--plan", str(file)]
    )
    out = capsys.readouterr().out
    assert code == 0 and "fewest: 1 device (h100:1)" in out
    saved = jaxplan.load(file)
    assert isinstance(saved, jaxplan.Plan) and saved.topology.num_devices == 1
    assert _cli.main(["scaling", *named, "--topology", "h100:2x2", "--device-counts", "2"]) == 0
    assert "within 59.3 GiB per device; speed-up over 2" in capsys.readouterr().out
    assert _cli.main(["min-devices", *named, "--topology", "h100:2", "--memory", "1MiB"]) == 3
