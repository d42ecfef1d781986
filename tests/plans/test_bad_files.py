"""Files that were edited or are no such files: one clear error, and never a hang."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import jaxplan
from benchmarks.files.bad_files import ARGUMENTS, kinds, outcome, step, try_mutants
from jaxplan import JaxplanError, PlanFileError, PlanMismatchError, ProfileError, TopologyError
from jaxplan.mesh import Topology

DEEP = b"[" * 100_000
LINK = "bandwidth_bytes_per_second"


@pytest.fixture(scope="module")
def bodies() -> dict[str, Any]:
    return {name: kind.body for name, kind in kinds().items()}


def test_random_edits_are_refused_or_work(tmp_path: Path) -> None:
    counts, wrong = try_mutants(25, seed=7, folder=tmp_path)
    assert wrong == []
    assert {found for _, found in counts} == {"refused", "works"}


Edit = Callable[[Any], object]


def level(value: float, name: str = LINK) -> Edit:
    return lambda body: body["levels"][0]["link"].update({name: value})


@pytest.mark.parametrize(
    ("kind", "edit", "match"),
    [
        ("plan", lambda b: b["prediction"].update(memory_bytes=10**400), r"memory_bytes is 1000.*from 0 to 92233"),
        ("plan", lambda b: b["prediction"].update(memory_bytes=-1), "memory_bytes is -1; expected a whole number"),
        ("plan", lambda b: b["prediction"].update(compute_seconds=10**400), "compute_seconds is 1000.*a number from 0"),
        ("plan", lambda b: b["prediction"]["memory_parts"].update(parameters=-5), "parts.parameters is -5"),
        ("plan", lambda b: b["inputs"][0].update(layout=[[]]), r"layout of \[0\] has 1 dim.* and float32.* has 2"),
        ("plan", lambda b: b["inputs"][0].update(aval="float32"), "aval of .* expected dtype and shape"),
        ("plan", lambda b: b["inputs"][1].update(aval="float32[7,16]", layout=[[0], []]), "splits 7"),
        ("plan", lambda b: b["prediction"].update(collectives=[_collective("gossip")]), "'gossip' is not known"),
        ("plan", lambda b: b["configurations"].__setitem__(0, [[0, 0]]), "uses an axis twice"),
        ("plan", lambda b: b.update(remat={"num_all": 3, "num_contractions": 0, "of": 2}), "some of 2 blocks"),
        ("plan", lambda b: b.update(name="\ud800"), "name is .*expected text"),
        ("frontier", lambda b: b.update(memory_limit_bytes="40GiB"), "memory_limit_bytes is '40GiB'"),
        ("frontier", lambda b: b.update(points=[]), "at least one plan"),
        ("frontier", lambda b: b.update(notes=[3]), r"notes\[0\] is 3; expected text"),
        ("frontier", lambda b: b.update(absent=["data"]), "absent is .*an object"),
        ("topology", level(5e-324), "is 5e-324; expected at least 1 per second"),
        ("topology", level(-1.0), "is -1.0; expected a number from 0"),
        ("topology", level(math.inf), "is inf; expected a number from 0"),
        ("topology", level(1e9, "latency_seconds"), "is 1000000000.0; expected at most 1000 seconds"),
        ("topology", lambda b: b["chip"].update(memory_bytes=-(80 << 30)), "memory_bytes is -85899345920"),
        ("topology", lambda b: b["chip"].update(memory_bytes=0), "memory_bytes is 0; expected a positive"),
        ("topology", lambda b: b["chip"].update(usable_fraction=92), "usable_fraction is 92"),
        ("topology", lambda b: b["chip"].update(device_kinds=[5]), r"device_kinds\[0\] is 5; expected text"),
        ("topology", lambda b: b["chip"].update(colour="red"), "chip has colour; expected the fields name, flops"),
        ("topology", lambda b: b["levels"][1].update(size=10**9), "at most 1048576"),
        ("topology", lambda b: [level.update(size=2**15) for level in b["levels"]], "1073741824 devices; at most"),
        ("topology", lambda b: b["levels"][0].update(prefix="gpu"), "prefixes must differ"),
        ("profile", lambda b: b["entries"].append(["collective", "gossip", [2, 1], 8, 1.0]), "'gossip' is not known"),
        ("profile", lambda b: b["entries"].append(["collective", "all-gather", [2, 1], 0, 1.0]), "bytes is 0"),
        ("profile", lambda b: b["entries"].append(["memory", 8, 5e-324]), "is 5e-324; expected positive seconds"),
        ("profile", lambda b: b["entries"].extend(_products(32)), "a grid of .* shapes; at most"),
        ("profile", lambda b: b["machine"].update(num_devices="8"), "machine.num_devices is '8'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(
    kind: str, edit: Edit, match: str, bodies: dict[str, Any], tmp_path: Path
) -> None:
    body, path = json.loads(json.dumps(bodies[kind])), tmp_path / "file.json"
    edit(body)
    path.write_text(json.dumps(body))
    with_profile = Topology.parse("h100:2x2").with_profile
    readers = {"topology": (TopologyError, Topology.load), "profile": (ProfileError, with_profile)}
    error, load = readers.get(kind, (PlanFileError, jaxplan.load))
    with pytest.raises(error, match=match):
        load(path)


def test_a_plan_whose_layouts_do_not_fit_its_step(bodies: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    for sharding in ([[], [], []], [[]], [[0, 1], [], []]):
        body = json.loads(json.dumps(bodies["plan"]))
        body["outputs"][0]["layout"], body["lowering"] = sharding, None
        path.write_text(json.dumps(body))
        jaxplan.load(path)
        with pytest.raises(PlanMismatchError, match="otherwise than this jaxplan forms them"):
            jaxplan.load(path, step, *ARGUMENTS)


def _collective(kind: str) -> dict[str, Any]:
    return {"kind": kind, "axes": [0], "num_bytes": 1, "count": 1, "latency_share": 1.0}


def _products(count: int) -> list[Any]:
    return [["matmul", "float32", n, n, n, n, 1e-3] for n in range(100, 100 + count)]


@pytest.mark.parametrize(
    "load", [jaxplan.load, Topology.load, Topology.parse("h100:8").with_profile], ids=["plan", "topology", "profile"]
)
@pytest.mark.parametrize(
    ("content", "match"),
    [
        (DEEP, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b"", "cannot read"),
        (b"\xff\xfe", "cannot read"),
        (b"9" * 5000, "cannot read"),
    ],
    ids=["lists", "objects", "empty", "binary", "digits"],
)
def test_what_is_no_json_is_refused(
    load: Callable[[Any], Any], content: bytes, match: str, tmp_path: Path
) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(content)
    with pytest.raises(JaxplanError, match=f"(?s){match}.*expected.*likely cause.*fix"):
        load(path)


@pytest.mark.parametrize("load", [jaxplan.load, Topology.load, Topology.parse("h100:8").with_profile])
@pytest.mark.parametrize("path", [None, 3, True, b"plan.json", ["plan.json"], "", ".", "no\0file", "missing.json"])
def test_what_is_no_path_is_refused(load: Callable[[Any], Any], path: Any) -> None:
    with pytest.raises(JaxplanError, match=r"(?s)cannot read.*expected.*likely cause.*fix"):
        load(path)


def test_a_hang_and_a_raw_error_would_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.files import bad_files

    def hang(_: Path) -> None:
        while True:
            pass

    monkeypatch.setattr(bad_files, "LIMIT_SECONDS", 1)
    assert "more than" in outcome(bad_files.Kind(body=1, use=hang), 1, tmp_path / "f")
    assert outcome(bad_files.Kind(body=1, use=lambda _: {}["a"]), 1, tmp_path / "f").startswith("KeyError")
