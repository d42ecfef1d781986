"""Verdicts on compiled plans: conditions for a pair, and files that keep records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.models import MODELS
from benchmarks.quality.__main__ import GATES, layer_overrides
from benchmarks.quality._record import LinkTraffic, Record, read_records, save_pair
from benchmarks.quality._report import judge, report
from jaxplan.mesh import Topology

GIB = 2**30


def _record(point: str, roles: tuple[str, ...], gib: float, compute: float, comm: float, **fields: Any) -> Record:
    return Record(
        **{
            "model": "gpt", "topology": "h100:8", "size": "whole", "point": point, "roles": roles,
            "predicted_memory": GIB, "predicted_seconds": 1.0, "compiled_memory": int(gib * GIB), "fits": True,
            "compute_seconds": compute, "communication_seconds": comm, "overlapped_seconds": max(compute, comm),
        } | fields
    )  # fmt: skip


FASTEST = _record("#1", ("fastest",), 2.0, 1.0, 0.2)
LEANEST = _record("#0", ("leanest", "knee"), 1.0, 1.0, 1.0)
DATA = _record("data", ("reference",), 3.0, 1.0, 0.8)


def test_a_pair_that_holds() -> None:
    verdict = judge([FASTEST, LEANEST, DATA])
    assert verdict.holds
    assert verdict.ratios == pytest.approx({"serial": 1.8 / 1.2, "overlapped": 1.0})
    assert verdict.predicted == 1
    assert not verdict.notable  # 1.5x serial, but nothing once overlapped
    slower = replace(DATA, compute_seconds=1.4, overlapped_seconds=1.4)
    assert judge([FASTEST, LEANEST, slower]).notable


@pytest.mark.parametrize(
    ("change", "undominated"),
    [
        ({"communication_seconds": 0.15}, ("data (serial)",)),  # faster serially
        ({"overlapped_seconds": 0.95}, ("data (overlapped)",)),
        ({"compiled_memory": int(1.5 * GIB)}, ("data (serial)",)),  # between: as fast as the leanest once overlapped
        ({"compute_seconds": 1.0, "communication_seconds": 0.19}, ()),  # faster by less than one percent
    ],
)
def test_a_reference_that_nothing_matches(change: dict[str, Any], undominated: tuple[str, ...]) -> None:
    verdict = judge([FASTEST, LEANEST, replace(DATA, **change)])
    assert verdict.undominated == undominated
    assert verdict.holds == (not undominated)


def test_a_reference_that_does_not_fit_is_no_rival_but_is_matched() -> None:
    quicker = replace(DATA, point="quick", fits=False, communication_seconds=0.0, overlapped_seconds=0.9)
    verdict = judge([FASTEST, LEANEST, DATA, quicker])
    assert verdict.best == {"serial": "data", "overlapped": "data"}
    assert verdict.undominated == ("quick (serial)", "quick (overlapped)")


def test_a_reference_that_is_a_point_of_ours_matches_itself() -> None:
    both = replace(DATA, roles=("fastest", "reference"))
    assert judge([both, LEANEST]).holds


def test_what_did_not_compile_fails() -> None:
    verdict = judge([FASTEST, LEANEST, replace(DATA, failure="out of memory")])
    assert (verdict.failures, verdict.holds) == (("data",), False)


def test_gates_that_are_missing_or_fail_are_the_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    records = [FASTEST, LEANEST, DATA]
    assert report(records, ["gpt@h100:8"]) == 0
    assert report(records, ["gpt@h100:8", "gpt@a100:8"]) == 1
    assert "MISS gpt@a100:8: not compiled" in capsys.readouterr().out
    assert report([replace(DATA, communication_seconds=0.0), FASTEST], ["gpt@h100:8"]) == 1
    assert report([replace(DATA, communication_seconds=0.0), FASTEST], []) == 0


def test_records_of_a_pair_replace_those_before(tmp_path: Path) -> None:
    traffic = LinkTraffic(kind="all-reduce", link="node", group_size=2, count=3, num_bytes=8, seconds=0.5)
    other = replace(FASTEST, model="lstm", traffic=(traffic,))
    path = tmp_path / "records.jsonl"
    save_pair(path, [DATA, LEANEST])
    save_pair(path, [other])
    save_pair(path, [FASTEST])
    assert read_records([path, tmp_path / "missing"]) == [other, FASTEST]


def test_the_gates_are_twelve_models_on_machines_that_compile() -> None:
    assert len(set(GATES)) == 12
    for pair in GATES:
        model, _, where = pair.partition("@")
        assert model in MODELS
        assert Topology.parse(where).chip.aot_platform == "cuda"


def test_layers_are_fewer_and_said() -> None:
    assert layer_overrides("gpt2-small", 2) == ({"num_layers": 2}, "2 of 12 layers")
    assert layer_overrides("lstm", 8) == ({"num_layers": 2}, "2 of 2 layers")
    assert layer_overrides("resnet50", 2) == ({"stage_sizes": (2, 2, 2, 2)}, "8 of 16 blocks")
    assert layer_overrides("inception-v3", 2) == ({"num_blocks": (2, 2, 2)}, "6 of 9 mixed blocks")
    assert layer_overrides("mlp-huge-last", 2) == layer_overrides("dlrm", 2) == ({}, "whole")
