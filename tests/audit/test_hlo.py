"""Reading compiled programs: spellings written by hand, and programs compiled for eight virtual devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxplan.audit._hlo import collectives, flops, memory_bytes
from jaxplan.audit._hlo_flops import uncounted_calls
from jaxplan.audit._hlo_groups import connected_groups, parse_groups
from jaxplan.audit._hlo_text import parse_module, parse_types

ACROSS = ((0, 4), (1, 5), (2, 6), (3, 7))
PAIRS = ((0, 1), (2, 3), (4, 5), (6, 7))
HALVES = ((0, 1, 2, 3), (4, 5, 6, 7))

# One of everything: an asynchronous combined all-gather with index comments, a loop of five all-reduces, a
# reduce-scatter inside an async wrapper, a permute that moves data and one that does not, groups of one.
PROGRAM = """
HloModule jit_step, is_scheduled=true, num_partitions=8

FileNames
1 "train.py"

FunctionNames
1 "step"

FileLocations
1 {file_name_id=1 function_name_id=1 line=7 end_line=7 column=2 end_column=2}

StackFrames
1 {file_location_id=1 parent_frame_id=1}

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%body (carry: (s32[], f32[16])) -> (s32[], f32[16]) {
  %carry = (s32[], f32[16]{0}) parameter(0)
  %i = s32[] get-tuple-element(%carry), index=0
  %x = f32[16]{0} get-tuple-element(%carry), index=1
  %y = f32[16]{0} all-reduce(%x), channel_id=2, replica_groups=[2,4]<=[8], to_apply=%add
  ROOT %next = (s32[], f32[16]{0}) tuple(%i, %y)
}

%condition (carry.1: (s32[], f32[16])) -> pred[] {
  %carry.1 = (s32[], f32[16]{0}) parameter(0)
  ROOT %less = pred[] constant(true)
}

%wrapped (p: bf16[64]) -> bf16[16] {
  %p = bf16[64]{0} parameter(0)
  ROOT %scattered = bf16[16]{0} reduce-scatter(%p), channel_id=3, \
replica_groups=mesh['x'=2,'y'=4] {'y'}, dimensions={0}, to_apply=%add
}

%fused (l: bf16[8,32], r: bf16[32,4]) -> bf16[8,4] {
  %l = bf16[8,32]{1,0} parameter(0)
  %r = bf16[32,4]{1,0} parameter(1)
  ROOT %product = bf16[8,4]{1,0} dot(%l, %r), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

ENTRY %main (w: f32[8,4], v: bf16[8], g: bf16[64], l.1: bf16[8,32], r.1: bf16[32,4]) -> f32[16] {
  %w = f32[8,4]{1,0:T(8,128)} parameter(0)
  %v = bf16[8]{0} parameter(1)
  %g = bf16[64]{0} parameter(2)
  %l.1 = bf16[8,32]{1,0} parameter(3)
  %r.1 = bf16[32,4]{1,0} parameter(4)
  %gather-start = ((f32[8,4]{1,0}, bf16[8]{0}), (f32[16,4]{1,0}, /*index=3*/bf16[16]{0})) \
all-gather-start(%w, /*index=1*/%v), channel_id=1, replica_groups=[4,2]<=[2,4]T(1,0), dimensions={0}, \
metadata={op_name="jit(step)/layer/(gather)" stack_frame_id=1}, backend_config={"is_sync":true}
  %gather-done = (f32[16,4]{1,0}, bf16[16]{0}) all-gather-done(%gather-start)
  %async = ((bf16[64]{0}), bf16[16]{0}, u32[]) async-start(%g), calls=%wrapped
  %done = bf16[16]{0} async-done(%async)
  %moved = f32[8,4]{1,0} collective-permute(%w), channel_id=4, source_target_pairs={{0,4},{4,0},{1,1}}, \
metadata={op_name="jit(step)/shift" source_file="model.py" source_line=12}
  %kept = f32[8,4]{1,0} collective-permute(%w), channel_id=5, source_target_pairs={{0,0},{1,1}}
  %alone = f32[8,4]{1,0} all-reduce(%w), channel_id=6, replica_groups=[8,1]<=[8], to_apply=%add
  %contraction = bf16[8,4]{1,0} fusion(%l.1, %r.1), kind=kCustom, calls=%fused
  %library = (bf16[8,4]{1,0}, s8[4194304]{0}) custom-call(%l.1, %r.1), \
custom_call_target="__cublas$gemm", backend_config={"gemm_backend_config":{"dot_dimension_numbers":\
{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}}
  %zero = s32[] constant(0)
  %start = f32[16]{0} broadcast(%zero), dimensions={}
  %init = (s32[], f32[16]{0}) tuple(%zero, %start)
  %loop = (s32[], f32[16]{0}) while(%init), condition=%condition, body=%body, \
backend_config={"known_trip_count":{"n":"5"}}
  ROOT %result = f32[16]{0} get-tuple-element(%loop), index=1
}
"""

# What the TPU compiler prints: a gather that starts in one fusion, goes on beside a product and ends in a third, a
# reduce-scatter that is an all-reduce of which a fusion keeps a slice, and a product that is a convolution.
TPU_PROGRAM = """
HloModule jit_step, is_scheduled=true, num_partitions=8

%add (a: bf16[], b: bf16[]) -> bf16[] {
  %a = bf16[]{:T(256)} parameter(0)
  %b = bf16[]{:T(256)} parameter(1)
  ROOT %sum = bf16[]{:T(256)} add(%a, %b)
}

%started (p.1: bf16[512,1024]) -> (bf16[512,1024], bf16[1024,1024], s32[2]) {
  %p.1 = bf16[512,1024]{1,0:T(8,128)(2,1)S(1)} parameter(0)
  %gather.1 = bf16[1024,1024]{1,0:T(8,128)(2,1)} all-gather(%p.1), channel_id=1, replica_groups={{0,4},{1,5},{2,6},\
{3,7}}, dimensions={0}, use_global_device_ids=true, frontend_attributes={chain_id="1"}
  ROOT %call.1 = (bf16[512,1024]{1,0:T(8,128)(2,1)S(1)}, bf16[1024,1024]{1,0:T(8,128)(2,1)S(1)}, s32[2]{0:S(4)}) \
custom-call(%gather.1), custom_call_target="AsyncCollectiveStart"
}

%async_collective_fusion (p.2: bf16[512,1024], l: bf16[8,32], r: bf16[32,4]) -> (bf16[8,4], bf16[1024,1024]) {
  %p.2 = bf16[512,1024]{1,0:T(8,128)(2,1)S(1)} parameter(0)
  %l = bf16[8,32]{1,0:T(8,128)(2,1)S(1)} parameter(1)
  %r = bf16[32,4]{1,0:T(8,128)(2,1)S(1)} parameter(2)
  %product = bf16[8,4]{1,0:T(8,128)} convolution(%l, %r), dim_labels=bf_io->bf
  %gather.2 = bf16[1024,1024]{1,0:T(8,128)(2,1)S(1)} all-gather(%p.2), channel_id=1, replica_groups={{0,4},{1,5},\
{2,6},{3,7}}, dimensions={0}, use_global_device_ids=true, frontend_attributes={chain_id="1"}
  ROOT %both = (bf16[8,4]{1,0:T(8,128)}, bf16[1024,1024]{1,0:T(8,128)(2,1)S(1)}) tuple(%product, %gather.2)
}

%done (p.3: bf16[512,1024]) -> bf16[1024,1024] {
  %p.3 = bf16[512,1024]{1,0:T(8,128)(2,1)S(1)} parameter(0)
  %gather.3 = bf16[1024,1024]{1,0:T(8,128)(2,1)} all-gather(%p.3), channel_id=1, replica_groups={{0,4},{1,5},{2,6},\
{3,7}}, dimensions={0}, use_global_device_ids=true, frontend_attributes={chain_id="1"}
  ROOT %call.3 = bf16[1024,1024]{1,0:T(8,128)(2,1)S(1)} custom-call(%gather.3), \
custom_call_target="AsyncCollectiveDone"
}

%all-reduce-scatter (input: bf16[64,128]) -> bf16[16,128] {
  %input = bf16[64,128]{1,0:T(8,128)(2,1)} parameter(0)
  %zero = bf16[] constant(0)
  %padded = bf16[72,128]{1,0:T(8,128)(2,1)} pad(%input, %zero), padding=0_8x0_0
  %summed = bf16[72,128]{1,0:T(8,128)(2,1)} all-reduce(%padded), channel_id=4, replica_groups={{0,1,2,3},{4,5,6,7}}, \
use_global_device_ids=true, to_apply=%add, frontend_attributes={from-cross-replica-sharding="true"}
  %index = s32[] constant(0)
  ROOT %kept = bf16[18,128]{1,0:T(8,128)(2,1)} dynamic-slice(%summed, %index, %index), dynamic_slice_sizes={18,128}
}

ENTRY %main (w: bf16[512,1024], g: bf16[64,128], x: bf16[8,32], y: bf16[32,4]) -> bf16[16,128] {
  %w = bf16[512,1024]{1,0:T(8,128)(2,1)S(1)} parameter(0)
  %g = bf16[64,128]{1,0:T(8,128)(2,1)} parameter(1)
  %x = bf16[8,32]{1,0:T(8,128)(2,1)S(1)} parameter(2)
  %y = bf16[32,4]{1,0:T(8,128)(2,1)S(1)} parameter(3)
  %start = (bf16[512,1024]{1,0:T(8,128)(2,1)S(1)}, bf16[1024,1024]{1,0:T(8,128)(2,1)S(1)}, s32[2]{0:S(4)}) \
fusion(%w), kind=kCustom, calls=%started
  %w.1 = bf16[512,1024]{1,0:T(8,128)(2,1)S(1)} get-tuple-element(%start), index=0
  %on = (bf16[8,4]{1,0:T(8,128)}, bf16[1024,1024]{1,0:T(8,128)(2,1)S(1)}) fusion(%w.1, %x, %y), kind=kOutput, \
calls=%async_collective_fusion
  %w.2 = bf16[1024,1024]{1,0:T(8,128)(2,1)S(1)} fusion(%w.1), kind=kCustom, calls=%done
  ROOT %result = bf16[18,128]{1,0:T(8,128)(2,1)} fusion(%g), kind=kCustom, calls=%all-reduce-scatter
}
"""


@pytest.mark.parametrize(
    ("spelling", "groups"),
    [
        ("replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={0}", HALVES),
        ("replica_groups=[2,4]<=[8]", HALVES),
        ("replica_groups=[4,2]<=[2,4]T(1,0), use_global_device_ids=true", ACROSS),
        ("replica_groups=mesh['a'=2,'b'=4] {'a'}", ACROSS),
        ("replica_groups=mesh['a'=2,'b'=4] {'b'}", HALVES),
        ("replica_groups=mesh['a'=2,'b'=4,'c'=1] {'a','c'}", ACROSS),
        ("replica_groups=mesh['a'=8] {'a':(1)2}", ACROSS),
        ("replica_groups=mesh['a'=8] {'a':(2)4}", HALVES),
        ("replica_groups=mesh['a'=1,'b'=2,'c'=4], device_ids=([4,2]T(1,0)) {'b'}, dimensions={0}", PAIRS),
        ("replica_groups=mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'b'}", ACROSS),
        ("replica_groups={}, to_apply=%add", (tuple(range(8)),)),
        ("to_apply=%add", (tuple(range(8)),)),
    ],
)
def test_every_spelling_of_groups(spelling: str, groups: tuple[tuple[int, ...], ...]) -> None:
    assert parse_groups(f", channel_id=1, {spelling}", num_devices=8) == groups


def test_an_unknown_spelling_of_groups_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"unknown spelling.*<<0,1>>"):
        parse_groups("replica_groups=<<0,1>>", num_devices=8)


def test_permutes_are_sets_of_devices_that_exchange() -> None:
    assert connected_groups("source_target_pairs={{0,1},{1,2},{2,0},{3,3},{4,5}}") == ((0, 1, 2), (4, 5))
    assert connected_groups("source_target_pairs={{0,0},{1,1}}") == ()


def test_types_of_nested_tuples() -> None:
    types = parse_types("((f32[8,4]{1,0:T(8,128)}, pred[]), /*index=2*/s4[3], token[])")
    assert [(t.dtype, t.shape, t.num_bytes) for t in types] == [
        ("f32", (8, 4), 128),
        ("pred", (), 1),
        ("s4", (3,), 2),
        ("token", (), 0),
    ]


def test_a_program_with_one_of_everything() -> None:
    found = {c.kind: c for c in collectives(PROGRAM)}
    assert sorted(c.kind for c in collectives(PROGRAM)) == sorted(found)  # each kind once, copies left out
    gather = found["all-gather"]
    assert (gather.num_bytes, gather.groups, gather.count) == (2 * (8 * 4 * 4 + 8 * 2), ACROSS, 1)
    assert (gather.op_name, gather.source) == ("jit(step)/layer/(gather)", "train.py:7")
    reduce = found["all-reduce"]
    assert (reduce.num_bytes, reduce.groups, reduce.count, reduce.total_bytes) == (64, HALVES, 5, 320)
    scatter = found["reduce-scatter"]
    assert (scatter.num_bytes, scatter.groups, scatter.group_size) == (128, HALVES, 4)
    permute = found["collective-permute"]
    assert (permute.num_bytes, permute.groups, permute.source) == (128, ((0, 4),), "model.py:12")


# Four permutes that the compiler combined, and one that writes into a buffer, at offsets.
PERMUTES = """
HloModule jit_step, is_scheduled=true, num_partitions=2

ENTRY %main (a: bf16[4,8], b: f32[6]) -> bf16[4,8] {
  %a = bf16[4,8]{1,0} parameter(0)
  %b = f32[6]{0} parameter(1)
  %together = ((bf16[4,8]{1,0}, f32[6]{0}, bf16[4,8]{1,0}, f32[6]{0}), (bf16[4,8]{1,0}, f32[6]{0}, bf16[4,8]{1,0}, \
f32[6]{0})) collective-permute-start(%a, %b, %a, %b), channel_id=1, source_target_pairs={{0,1},{1,0}}
  %zero = s32[] constant(0)
  %offsets = (s32[], s32[]) tuple(%zero, %zero)
  %into = bf16[4,8]{1,0} collective-permute(%a, %a, %offsets, %offsets), channel_id=2, \
source_target_pairs={{0,1},{1,0}}, slice_sizes={{4,8}}
  ROOT %result = bf16[4,8]{1,0} add(%into, %a)
}
"""


def test_combined_permutes_and_those_in_place() -> None:
    assert [c.num_bytes for c in collectives(PERMUTES)] == [2 * (4 * 8 * 2 + 6 * 4), 4 * 8 * 2]


def test_the_spellings_of_the_tpu_compiler() -> None:
    gather, scatter = collectives(TPU_PROGRAM)
    assert (gather.kind, gather.num_bytes, gather.groups, gather.count) == (
        "all-gather", 2 * 1024 * 1024, ACROSS, 1,
    )  # fmt: skip
    assert (scatter.kind, scatter.num_bytes, scatter.groups) == ("reduce-scatter", 2 * 72 * 128, HALVES)
    assert flops(TPU_PROGRAM) == 2 * 8 * 32 * 4
    assert uncounted_calls(parse_module(TPU_PROGRAM)) == ()


TILED = """
HloModule jit_step, is_scheduled=true, num_partitions=8

%add (a: bf16[], b: bf16[]) -> bf16[] {
  %a = bf16[] parameter(0)
  %b = bf16[] parameter(1)
  ROOT %sum = bf16[] add(%a, %b)
}

%all-reduce-scatter.39 (input_0: bf16[4,1,80,120]) -> bf16[10,8,120] {
  %input_0 = bf16[4,1,80,120]{3,2,0,1:T(8,128)(2,1)S(1)} parameter(0)
  %input_1 = bf16[4,1,60,80]{3,2,0,1:T(8,128)(2,1)S(1)} parameter(1)
  %tiles.1 = bf16[40,8,120]{2,1,0:T(8,128)(2,1)} bitcast(%input_0)
  %tiles.2 = bf16[32,8,80]{2,1,0:T(8,128)(2,1)} bitcast(%input_1)
  %all-reduce.292 = (bf16[40,8,120]{2,1,0:T(8,128)(2,1)}, bf16[32,8,80]{2,1,0:T(8,128)(2,1)}) \
all-reduce(%tiles.1, %tiles.2), channel_id=1, replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add
  %summed = bf16[40,8,120]{2,1,0:T(8,128)(2,1)} get-tuple-element(%all-reduce.292), index=0
  %index = s32[] constant(0)
  ROOT %kept = bf16[10,8,120]{2,1,0:T(8,128)(2,1)} dynamic-slice(%summed, %index, %index, %index), \
dynamic_slice_sizes={10,8,120}
}

ENTRY %main (g: bf16[4,1,80,120], h: bf16[4,1,60,80]) -> bf16[10,8,120] {
  %g = bf16[4,1,80,120]{3,2,0,1:T(8,128)(2,1)} parameter(0)
  %h = bf16[4,1,60,80]{3,2,0,1:T(8,128)(2,1)} parameter(1)
  ROOT %result = bf16[10,8,120]{2,1,0:T(8,128)(2,1)} fusion(%g, %h), kind=kCustom, calls=%all-reduce-scatter.39
}
"""


def test_bytes_are_those_of_elements_where_a_buffer_is_read_as_tiles() -> None:
    """The second array's 60 rows fill 64 in memory: a bitcast, to which nothing was added."""
    (scatter,) = collectives(TILED)
    assert (scatter.kind, scatter.num_bytes) == ("reduce-scatter", 2 * 4 * (80 * 120 + 60 * 80))


def test_contractions_in_fusions_and_library_calls_are_counted() -> None:
    assert flops(PROGRAM) == 2 * (2 * 8 * 32 * 4)


def test_an_element_of_a_tuple_is_named_without_an_instruction() -> None:
    """As the compilers of JAX 0.12 print it: of a fusion with two results the second is multiplied, and reduced."""
    program = """
HloModule jit_step, is_scheduled=true, num_partitions=8

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

ENTRY %main (x: f32[16,256]) -> f32[16,256] {
  %x = f32[16,256]{1,0} parameter(0)
  %fusion = (f32[], f32[16,256]{1,0}) custom-call(%x), custom_call_target="two"
  %dot = f32[16,16]{1,0} dot(%fusion#1, %x), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  ROOT %all = f32[16,256]{1,0} all-reduce(%fusion#1), replica_groups={{0,1,2,3,4,5,6,7}}, to_apply=%add
}
"""
    assert flops(program) == 2 * 16 * 16 * 256
    (found,) = collectives(program)
    assert (found.kind, found.num_bytes) == ("all-reduce", 4 * 16 * 256)


def test_a_loop_of_unknown_length_is_named() -> None:
    module = parse_module(PROGRAM.replace('"known_trip_count":{"n":"5"}', ""))
    assert module.unknown_loops == ("loop",)
    assert parse_module(PROGRAM).unknown_loops == ()


def test_text_that_is_no_module_is_an_error() -> None:
    with pytest.raises(ValueError, match="no ENTRY computation"):
        parse_module("HloModule empty\n")


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    return Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("a", "b"))


def _manual(function, mesh: Mesh, in_specs: P, out_specs: P, shape: tuple[int, ...]) -> str:
    step = jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
    return jax.jit(step).lower(jax.ShapeDtypeStruct(shape, jnp.float32)).compile().as_text() or ""


def _permute(x: jax.Array) -> jax.Array:
    return lax.ppermute(x, "b", [(i, (i + 1) % 4) for i in range(4)])


@pytest.mark.parametrize(
    ("function", "in_specs", "out_specs", "kind", "groups", "num_bytes"),
    [
        (lambda x: lax.all_gather(x, "b", tiled=True), P("b"), P(), "all-gather", HALVES, 256 * 4),
        (lambda x: lax.psum(x, "a"), P("a"), P(), "all-reduce", ACROSS, 128 * 4),
        (lambda x: lax.psum_scatter(x, "b", tiled=True), P(), P("b"), "reduce-scatter", HALVES, 256 * 4),
        (lambda x: lax.all_to_all(x, "a", 0, 0, tiled=True), P("a"), P("a"), "all-to-all", ACROSS, 128 * 4),
        (_permute, P("b"), P("b"), "collective-permute", HALVES, 64 * 4),
    ],
)
def test_compiled_collectives(mesh, function, in_specs, out_specs, kind, groups, num_bytes) -> None:
    (found,) = collectives(_manual(function, mesh, in_specs, out_specs, (256,)))
    assert (found.kind, found.num_bytes, found.count) == (kind, num_bytes, 1)
    assert {frozenset(group) for group in found.groups} == {frozenset(group) for group in groups}


def test_a_compiled_scan_multiplies_its_collectives_and_contractions(mesh) -> None:
    def step(x: jax.Array) -> jax.Array:
        return lax.scan(lambda c, _: (jnp.tanh(lax.psum(c @ c, "b")), None), x, None, length=7)[0]

    text = _manual(step, mesh, P(), P(), (64, 64))
    assert [(c.kind, c.count, c.num_bytes) for c in collectives(text)] == [("all-reduce", 7, 64 * 64 * 4)]
    assert flops(text) == 7 * 2 * 64**3


def _strided(x: jax.Array, k: jax.Array) -> jax.Array:
    return lax.conv_general_dilated(x, k, (2, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _grouped(x: jax.Array, k: jax.Array) -> jax.Array:
    return lax.conv_general_dilated(
        x, k[:, :, :2], (1, 1), "VALID", rhs_dilation=(2, 1), dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=4,
    )  # fmt: skip


@pytest.mark.parametrize("function", [_strided, _grouped, jax.grad(lambda x, k: _strided(x, k).sum(), 1)])
def test_convolutions_count_as_the_compiler_counts_them(function) -> None:
    shapes = (
        jax.ShapeDtypeStruct((4, 15, 16, 8), jnp.float32),
        jax.ShapeDtypeStruct((3, 3, 8, 8), jnp.float32),
    )
    lowered = jax.jit(function).lower(*shapes)
    analysis = lowered.cost_analysis()
    counted = flops(lowered.compile().as_text() or "")
    # the compiler's number includes element-wise work, at most a few operations per input and output element
    assert counted <= analysis["flops"] <= counted + 3 * 4 * 15 * 16 * 8


def test_memory_is_arguments_outputs_and_temporaries_less_what_is_shared() -> None:
    shape = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    update = jax.jit(lambda x, y: (x + y, y @ y), donate_argnums=0).lower(shape, shape).compile()
    assert memory_bytes(update.memory_analysis()) >= 3 * 256 * 256 * 4
    assert memory_bytes(update.memory_analysis()) < 4 * 256 * 256 * 4  # the donated argument counts once
