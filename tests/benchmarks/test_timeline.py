"""The timeline of compiled programs: kernels by hand, and overlap of collectives and compute."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.quality._timeline import Timeline, fused_bytes, timeline
from jaxplan.audit._hlo_text import parse_module
from jaxplan.mesh import Topology


def _machine() -> Topology:
    """Four devices on links of 1 GB/s without latency, memory of 16 GB/s, and 1 TFLOP/s of everything."""
    topology = Topology.parse("h100:4")
    (level,) = topology.levels
    link = replace(level.link, bandwidth_bytes_per_second=1e9, latency_seconds=0.0)
    chip = replace(
        topology.chip, collective_launch_seconds=0.0, launch_seconds=0.0, memory_bytes_per_second=16e9,
        flops_per_second=(("f32", 1e12),), f32_matmul="f32",
    )  # fmt: skip
    return replace(topology, levels=(replace(level, link=link),), chip=chip)


# A kernel over 1,000,000 float32 reads and writes 8 MB: 0.625 ms at 80 % of 16 GB/s. A permute of 4 MB takes 4 ms.
KERNEL, PERMUTE = 0.000625, 0.004
HEAD = "HloModule jit_step, is_scheduled=true, num_partitions=4\n\nENTRY %main (x: f32[1000000]) -> f32[1000000] {\n"
PERMUTED = "collective-permute({}), source_target_pairs={{{{0,1}},{{1,2}},{{2,3}},{{3,0}}}}"


def _program(*lines: str) -> str:
    body = ["%x = f32[1000000]{0} parameter(0)"]
    for line in lines:
        name, opcode, operand = line.split()
        call = PERMUTED.format(f"%{operand}") if opcode == "permute" else f"negate(%{operand})"
        body.append(f"%{name} = f32[1000000]{{0}} {call}")
    return HEAD + "".join(f"  {line}\n" for line in body) + "}\n"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (("a kernel x", "b permute a", "c kernel b"), 2 * KERNEL + PERMUTE),  # a chain hides nothing
        (("a kernel x", "b permute a", *(f"k{i} kernel x" for i in range(8))), KERNEL + 8 * KERNEL),
        (("a kernel x", "b permute a", *(f"k{i} kernel x" for i in range(4))), KERNEL + PERMUTE),
        # It reads arguments alone: it may begin as early, the first of its kind.
        ((*tuple(f"k{i} kernel x" for i in range(8)), "b permute x"), 8 * KERNEL),
        # But the second not before the kernels in front of the first.
        ((*tuple(f"k{i} kernel x" for i in range(8)), "b permute x", "c permute x"), 8 * KERNEL + PERMUTE),
    ],
)
def test_what_hides(lines: tuple[str, ...], expected: float) -> None:
    found = timeline(_program(*lines), _machine())
    kinds = [line.split()[1] for line in lines]
    assert found.compute_seconds == pytest.approx(KERNEL * kinds.count("kernel"))
    assert found.communication_seconds == pytest.approx(PERMUTE * kinds.count("permute"))
    assert found.overlapped_seconds == pytest.approx(expected)
    assert found.overlapped_seconds >= max(found.compute_seconds, found.communication_seconds) - 1e-12
    assert found.overlapped_seconds <= found.serial_seconds + 1e-12


LOOP = """HloModule jit_step, is_scheduled=true, num_partitions=4

%body (p: (s32[], f32[1000000])) -> (s32[], f32[1000000]) {
  %p = (s32[], f32[1000000]{0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %v = f32[1000000]{0} get-tuple-element(%p), index=1
  %n = f32[1000000]{0} negate(%v)
  %c = f32[1000000]{0} collective-permute(%n), source_target_pairs={{0,1},{1,2},{2,3},{3,0}}
  ROOT %r = (s32[], f32[1000000]{0}) tuple(%i, %c)
}

%condition (p: (s32[], f32[1000000])) -> pred[] {
  %p = (s32[], f32[1000000]{0}) parameter(0)
  ROOT %yes = pred[] constant(true)
}

ENTRY %main (x: f32[1000000]) -> f32[1000000] {
  %x = f32[1000000]{0} parameter(0)
  %zero = s32[] constant(0)
  %start = (s32[], f32[1000000]{0}) tuple(%zero, %x)
  %loop = (s32[], f32[1000000]{0}) while(%start), condition=%condition, body=%body, \
backend_config={"known_trip_count":{"n":"5"}}
  ROOT %out = f32[1000000]{0} get-tuple-element(%loop), index=1
}
"""


def test_a_loop_takes_its_body_as_often_as_it_runs() -> None:
    expected = Timeline(
        compute_seconds=5 * KERNEL, communication_seconds=5 * PERMUTE, overlapped_seconds=5 * (KERNEL + PERMUTE)
    )
    found = timeline(LOOP, _machine())
    assert found.compute_seconds == pytest.approx(expected.compute_seconds)
    assert found.communication_seconds == pytest.approx(expected.communication_seconds)
    assert found.overlapped_seconds == pytest.approx(expected.overlapped_seconds)


PRODUCT = """HloModule jit_step, is_scheduled=true, num_partitions=4

ENTRY %main (a: f32[1000,2000], b: f32[2000,3000]) -> f32[1000,3000] {
  %a = f32[1000,2000]{1,0} parameter(0)
  %b = f32[2000,3000]{1,0} parameter(1)
  ROOT %c = f32[1000,3000]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""


def test_a_dot_takes_the_longer_of_its_arithmetic_and_its_bytes() -> None:
    """12 GFLOP at 60 % of 1 TFLOP/s are 20 ms; 44 MB at 80 % of 16 GB/s 3.4 ms."""
    machine = _machine()
    assert timeline(PRODUCT, machine).compute_seconds == pytest.approx(0.020)
    faster = replace(machine, chip=replace(machine.chip, flops_per_second=(("f32", 1e15),)))
    assert timeline(PRODUCT, faster).compute_seconds == pytest.approx(44e6 / (0.8 * 16e9))


FUSIONS = """HloModule jit_step, is_scheduled=true

%slices (t: f32[100,1000], at: s32[]) -> f32[1,1000] {
  %t = f32[100,1000]{1,0} parameter(0)
  %at = s32[] parameter(1)
  %zero = s32[] constant(0)
  ROOT %slice = f32[1,1000]{1,0} dynamic-slice(%t, %at, %zero), dynamic_slice_sizes={1,1000}
}

%updates (t: f32[100,1000], row: f32[1,1000], at: s32[]) -> f32[100,1000] {
  %t = f32[100,1000]{1,0} parameter(0)
  %row = f32[1,1000]{1,0} parameter(1)
  %at = s32[] parameter(2)
  %zero = s32[] constant(0)
  %twice = f32[1,1000]{1,0} add(%row, %row)
  ROOT %update = f32[100,1000]{1,0} dynamic-update-slice(%t, %twice, %at, %zero)
}

%adds (t: f32[100,1000], u: f32[100,1000]) -> f32[100,1000] {
  %t = f32[100,1000]{1,0} parameter(0)
  %u = f32[100,1000]{1,0} parameter(1)
  ROOT %sum = f32[100,1000]{1,0} add(%t, %u)
}

ENTRY %main () -> s32[] {
  ROOT %zero = s32[] constant(0)
}
"""


@pytest.mark.parametrize(
    ("name", "num_bytes"),
    [
        ("slices", 4000 + 4 + 4000),  # one row, where it is, one row
        ("updates", 4000 + 4 + 2 * 4000),  # a row and its place; written where it was read
        ("adds", 3 * 400_000),
    ],
)
def test_a_fusion_moves_what_it_reads_of_its_arguments(name: str, num_bytes: int) -> None:
    assert fused_bytes(parse_module(FUSIONS).computations[name]) == num_bytes
