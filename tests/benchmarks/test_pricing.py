"""The independent price: rings in closed form on links of known speed, bytes of a program written by hand."""

from dataclasses import replace

import pytest

from benchmarks.quality._pricing import collective_seconds, price, traffic_bytes
from jaxplan.audit._aot import CompiledMemory, CompiledReport
from jaxplan.audit._hlo import Collective
from jaxplan.mesh import Topology

PROGRAM = """
HloModule jit_step, num_partitions=8

%fused (a: f32[1000]) -> f32[1000] {
  %a = f32[1000]{0} parameter(0)
  %twice = f32[1000]{0} add(%a, %a)
  ROOT %square = f32[1000]{0} multiply(%twice, %twice)
}

ENTRY %main (x: f32[1000], w: bf16[100,100]) -> f32[1000] {
  %x = f32[1000]{0} parameter(0)
  %w = bf16[100,100]{1,0} parameter(1)
  %sum = f32[1000]{0} all-reduce(%x), channel_id=1, replica_groups=[1,8]<=[8], to_apply=%add
  %product = (bf16[100,100]{1,0}, s8[4096]{0}) custom-call(%w, %w), custom_call_target="__cublas$gemm"
  ROOT %out = f32[1000]{0} fusion(%sum), kind=kLoop, calls=%fused
}
"""


def _machine(gigabytes_per_second: float, shared: float | None = None) -> Topology:
    """Two nodes of four: links of the given speed between nodes, ten times that inside, no latency."""
    topology = Topology.parse("h100:2x4")
    speeds = (gigabytes_per_second * 1e9, 10 * gigabytes_per_second * 1e9)
    levels = tuple(
        replace(level, link=replace(
            level.link, bandwidth_bytes_per_second=speed, latency_seconds=0.0, shared_bytes_per_second=share
        ))
        for level, speed, share in zip(topology.levels, speeds, (shared, None), strict=True)
    )  # fmt: skip
    return replace(topology, levels=levels, chip=replace(topology.chip, collective_launch_seconds=0.0))


INSIDE = ((0, 1, 2, 3), (4, 5, 6, 7))
ACROSS = ((0, 4), (1, 5), (2, 6), (3, 7))
EVERYONE = (tuple(range(8)),)


@pytest.mark.parametrize(
    ("kind", "groups", "seconds"),
    [
        ("all-gather", INSIDE, 3 / 4 / 10),  # 1 GB over links of 10 GB/s
        ("reduce-scatter", ACROSS, 1 / 2),
        ("all-reduce", ACROSS, 2 * 1 / 2),
        ("all-to-all", INSIDE, 3 / 4 / 10),
        ("collective-permute", ACROSS, 1.0),
        ("all-gather", EVERYONE, 7 / 8 / 4),  # four devices of a node carry the ring between nodes together
    ],
)
def test_rings(kind: str, groups: tuple, seconds: float) -> None:
    collective = Collective(kind=kind, groups=groups, num_bytes=10**9)
    assert collective_seconds(collective, _machine(1.0)) == pytest.approx(seconds)


def test_groups_that_share_a_link_share_its_speed() -> None:
    """Four groups, one per device of a node, over one link of 1 GB/s: each has a quarter of it."""
    collective = Collective(kind="all-gather", groups=ACROSS, num_bytes=10**9)
    assert collective_seconds(collective, _machine(1.0, shared=1e9)) == pytest.approx(4 * 1 / 2)


def test_traffic_is_what_kernels_read_and_write_beside_contractions_and_collectives() -> None:
    assert traffic_bytes(PROGRAM) == 2 * 1000 * 4  # the fusion alone; values inside it stay in registers


def test_the_price_adds_its_terms() -> None:
    topology = _machine(1.0)
    report = CompiledReport(
        platform="cuda",
        memory=CompiledMemory(argument_bytes=0, output_bytes=0, alias_bytes=0, temp_bytes=0),
        collectives=(Collective(kind="all-reduce", groups=ACROSS, num_bytes=10**9, count=3),),
        flops_by_dtype=(("bf16", int(0.6 * topology.chip.matmul_flops_per_second("bf16"))),),
        hlo_text=PROGRAM,
    )
    priced = price(report, topology)
    assert priced.contraction_seconds == pytest.approx(1.0)
    assert priced.memory_seconds == pytest.approx(8000 / 0.8 / topology.chip.memory_bytes_per_second)
    assert priced.communication_seconds == pytest.approx(3.0)
    assert priced.total_seconds == pytest.approx(4.0, rel=1e-6)
