import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

import jaxplan
from jaxplan import JaxplanError, TopologyError
from jaxplan.mesh import CHIPS, Topology
from jaxplan.mesh._aot import target_config


def test_all_promised_chips_are_there() -> None:
    promised = "h200 h100 a100 a100-40 a100-pcie v100 p100 k80 2080ti 1080ti v5e v5p v6e cpu"
    promised += " b200 gb200 l40s l4 a10g 4090 mi300x v4 v7x h100-a3 h100-a3mega a100-p4d"
    assert set(CHIPS) == set(promised.split())


@pytest.mark.parametrize(
    ("text", "num_devices", "num_nodes", "names"),
    [
        ("h100:2x8", 16, 2, "node gpu0 gpu1 gpu2"),
        ("a100-pcie:8", 8, 1, "gpu0 gpu1 gpu2"),
        ("cpu:1", 1, 1, ""),
        ("cpu:2", 2, 1, "cpu"),
        ("mi300x:4x6", 24, 4, "node0 node1 gpu0 gpu1"),
        ("h100:1x4", 4, 1, "gpu0 gpu1"),
        ("v5e:2x4", 8, 1, "x y0 y1"),
        ("v5p:2x2x2", 8, 1, "x y z"),
        ("v5e:2x2x4", 16, 1, "slice x y0 y1"),
    ],
)
def test_parse(text: str, num_devices: int, num_nodes: int, names: str) -> None:
    topology = Topology.parse(text)
    assert (topology.num_devices, topology.num_nodes) == (num_devices, num_nodes)
    assert [axis.name for axis in topology.axes] == names.split()
    assert topology == Topology.parse(text.upper()) and hash(topology) == hash(Topology.parse(text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("h10:8", "did you mean 'h100'"),
        ("a100pcie:8", "did you mean 'a100-pcie'"),
        ("h100", "number of devices is missing"),
        ("h100:2x2x2", "one to 2 sizes"),
        ("h100:0", "at least 1"),
        ("h100:-8", "cannot read topology"),
    ],
)
def test_bad_text_names_the_expected_form(text: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message) as caught:
        Topology.parse(text)
    assert text in str(caught.value)


def test_memory_limit_is_below_the_capacity() -> None:
    topology = Topology.parse("a100-pcie:8")
    assert 50e9 < topology.memory_limit_bytes < topology.chip.memory_bytes < 81e9


def test_float32_dots_run_as_jax_runs_them() -> None:
    """TF32 on Ampere and later, full float32 before."""
    assert CHIPS["a100"].matmul_flops_per_second("float32") == 156e12
    assert CHIPS["a100"].peak_flops_per_second("float32") == 19.5e12
    assert CHIPS["v100"].matmul_flops_per_second("float32") == 15.7e12
    assert CHIPS["v100"].matmul_flops_per_second("bfloat16") == 15.7e12
    assert CHIPS["h100"].matmul_flops_per_second("bfloat16") == 989.4e12


def test_gpus_have_the_multiprocessors_of_their_compile_targets() -> None:
    targets = {chip.aot_target: chip.multiprocessors for chip in CHIPS.values() if chip.aot_target is not None}
    assert len(targets) == 6
    for target, multiprocessors in targets.items():
        assert f"core_count: {multiprocessors}\n" in target_config(target), target


def test_save_and_load(tmp_path: Path) -> None:
    file = tmp_path / "machine.json"
    topology = Topology.parse("h100:2x8")
    topology.save(file)
    assert Topology.load(file) == topology
    body = json.loads(file.read_text())
    body["chip"] = "h100"
    file.write_text(json.dumps(body))
    assert Topology.load(file) == topology


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b.update(version=99), "version 2"),
        (lambda b: b.pop("levels"), "levels"),
        (lambda b: b["levels"][0].update(size=-2), "size is -2"),
        (lambda b: b["chip"].update(memory_bytes=float("nan")), "memory_bytes is nan"),
        (lambda b: b["chip"].pop("multiprocessors"), "multiprocessors is 0"),
        (
            lambda b: b["levels"][1]["link"].update(bandwidth_bytes_per_second=-1),
            "levels.device.link.bandwidth.* is -1",
        ),
        (
            lambda b: b["levels"][0]["link"].update(bandwidth_bytes_per_second=0),
            "levels.node.bandwidth.* is 0",
        ),
        (lambda b: b["levels"][0]["link"].update(shared_bytes_per_second="fast"), "node.link.shared.* is 'fast'"),
        (lambda b: b["levels"][0]["link"].pop("bandwidth_bytes_per_second"), "bandwidth_bytes_per_second"),
        (lambda b: b["chip"]["device_link"].update(bandwidth_bytes_per_second=0), "chip.device_link.* is 0"),
        (lambda b: b["levels"][0]["link"].update(latency_seconds=-1e-6), "latency_seconds is -1e-06"),
        (lambda b: b["levels"][1].update(size=[8, 4]), "the same for every node"),
        (lambda b: b["levels"][1].update(size=7.5), "size is 7.5"),
        (lambda b: b.update(profile={"schema": "other"}), "not a profile table"),
        (lambda b: b.update(chip="h10"), "did you mean"),
        (lambda b: b["chip"].update(vector_flops=5e-324), "chip.vector_flops is 5e-324"),
        (lambda b: b["chip"]["efficiency"].update(products=0), "efficiency.products is 0"),
        (lambda b: b["chip"]["efficiency"].update(row_norms=2**31), "efficiency.row_norms is 2147483648"),
        (lambda b: b["chip"]["efficiency"].update(row_statistics=1e-300), "efficiency.row_statistics is 1e-300"),
    ],
)
def test_bad_files_name_the_field(tmp_path: Path, change, message: str) -> None:
    file = tmp_path / "machine.json"
    Topology.parse("h100:2x8").save(file)
    body = json.loads(file.read_text())
    change(body)
    file.write_text(json.dumps(body))
    with pytest.raises(JaxplanError, match=message):
        Topology.load(file)


@pytest.mark.parametrize("name", ["row_statistics", "row_norms", "row_gradients"])
def test_a_share_of_rows_that_is_left_out_is_that_of_streaming_kernels(tmp_path: Path, name: str) -> None:
    """Such kernels are slower, so that the same step takes less time with the share of one of them left out."""
    file = tmp_path / "machine.json"
    Topology.parse("h100:8").save(file)
    body = json.loads(file.read_text())
    del body["chip"]["efficiency"][name]
    file.write_text(json.dumps(body))
    shape = jax.ShapeDtypeStruct((512, 4096), jnp.bfloat16)

    def seconds(topology: Topology) -> float:
        def loss(p: jax.Array, x: jax.Array) -> jax.Array:
            return jnp.sum((jax.nn.softmax(x @ p) @ p.T).astype(jnp.float32) ** 2)

        x = shape.update(shape=(65536, 512))
        return jaxplan.plan(jax.grad(loss), shape, x, topology=topology, progress=False).fastest().compute_seconds

    assert 0 < seconds(Topology.load(file)) < seconds(Topology.parse("h100:8"))


def test_a_file_that_is_no_json_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("chip: h100")
    with pytest.raises(TopologyError, match="cannot read topology file"):
        Topology.load(tmp_path / "x.json")


def _device(kind: str, process: int = 0, coords: tuple[int, ...] = ()) -> SimpleNamespace:
    return SimpleNamespace(device_kind=kind, process_index=process, coords=coords)


def test_detect() -> None:
    assert Topology.detect() == Topology.parse("cpu:8")
    hopper = [_device("NVIDIA H100 80GB HBM3", process) for process in (0, 0, 1, 1)]
    assert Topology.detect(hopper) == Topology.parse("h100:2x2")
    shared = [  # two hosts, on each two processes of one GPU
        SimpleNamespace(device_kind="NVIDIA H100", process_index=process, platform="gpu", slice_index=process // 2)
        for process in range(4)
    ]
    assert Topology.detect(shared) == Topology.parse("h100:2x2")
    assert Topology.detect([_device("NVIDIA A100 80GB PCIe")] * 4) == Topology.parse("a100-pcie:4")
    lite = [_device("TPU v5 lite", 0, (x, y, 0)) for x in range(2) for y in range(4)]
    assert Topology.detect(lite) == Topology.parse("v5e:2x4")


def test_detect_errors() -> None:
    with pytest.raises(TopologyError, match="unknown device kind 'Abacus'"):
        Topology.detect([_device("Abacus")])
    with pytest.raises(TopologyError, match="all of the same kind"):
        Topology.detect([])
    with pytest.raises(TopologyError, match="same number in each node"):
        Topology.detect([_device("NVIDIA H100", process) for process in (0, 0, 1)])


_COMPILE = """
import numpy as np, jax, jax.numpy as jnp, sys
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from jaxplan.mesh import Topology
t = Topology.parse(sys.argv[1])
devices = t.aot_devices()
mesh = Mesh(np.array(devices).reshape([a.size for a in t.axes]), [a.name for a in t.axes])
x = jax.ShapeDtypeStruct((64, 64), jnp.float32, sharding=NamedSharding(mesh, P(mesh.axis_names)))
text = jax.jit(lambda x: x.sum()).lower(x).compile().as_text()
print(len(devices), devices[0].device_kind, "all-reduce" in text, [d.process_index for d in devices])
"""


@pytest.mark.sample(1)
@pytest.mark.gpu_aot
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a100-pcie:8", "8 NVIDIA A100 80GB PCIe True [0, 0, 0, 0, 0, 0, 0, 0]"),
        ("h100:2x4", "8 NVIDIA H100 80GB HBM3 True [0, 0, 0, 0, 1, 1, 1, 1]"),
    ],
)
def test_compiles_without_the_device(text: str, expected: str) -> None:
    environment = os.environ | Topology.parse(text).aot_environment()
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    )
    done = subprocess.run(
        [sys.executable, "-c", _COMPILE, text], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == expected


def test_a_chip_that_no_compiler_knows_is_one_clear_error() -> None:
    with pytest.raises(TopologyError, match="can be planned, not audited"):
        Topology.parse("k80:4").aot_devices()


def test_cpu_devices_are_the_virtual_ones() -> None:
    assert len(Topology.parse("cpu:4").aot_devices()) == 4
    with pytest.raises(TopologyError, match="device_count=64"):
        Topology.parse("cpu:64").aot_devices()
