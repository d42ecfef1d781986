"""The buffers of compiled programs: peaks counted by hand, and the compiler's own figures."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxplan.audit._hlo_liveness import peak_temporaries
from jaxplan.audit._hlo_text import parse_module, parse_types

KIB = 2**10

# Arrays of 1 KiB. While %loop runs: %kept, the loop's carry and the values of its body: %wide (4 KiB) and %narrow.
PROGRAM = """
HloModule jit_step, is_scheduled=true

%body (carry: (s32[], f32[256])) -> (s32[], f32[256]) {
  %carry = (s32[], f32[256]{0}) parameter(0)
  %i = s32[] get-tuple-element(%carry), index=0
  %x = f32[256]{0} get-tuple-element(%carry), index=1
  %wide = f32[4,256]{1,0} broadcast(%x), dimensions={1}, metadata={op_name="jit(step)/while/body/layer_3/wide"}
  %narrow = f32[256]{0} fusion(%wide), kind=kInput, calls=%sum
  ROOT %next = (s32[], f32[256]{0}) tuple(%i, %narrow)
}

%condition (carry.1: (s32[], f32[256])) -> pred[] {
  %carry.1 = (s32[], f32[256]{0}) parameter(0)
  ROOT %less = pred[] constant(true)
}

%sum (p: f32[4,256]) -> f32[256] {
  %p = f32[4,256]{1,0} parameter(0)
  ROOT %first = f32[256]{0} slice(%p), slice={[0:1], [0:256]}
}

ENTRY %main (w: f32[256]) -> f32[256] {
  %w = f32[256]{0} parameter(0)
  %kept = f32[256]{0} negate(%w), metadata={op_name="jit(step)/kept" source_file="train.py" source_line=12}
  %start = f32[256]{0} abs(%w)
  %zero = s32[] constant(0)
  %init = (s32[], f32[256]{0}) tuple(%zero, %start)
  %loop = (s32[], f32[256]{0}) while(%init), condition=%condition, body=%body
  %looped = f32[256]{0} get-tuple-element(%loop), index=1
  %view = f32[16,16]{1,0} bitcast(%kept)
  %sent = (f32[16,16]{1,0}, f32[32,16]{1,0}) all-gather-start(%view), replica_groups={{0,1}}, dimensions={0}
  %other = f32[256]{0} add(%looped, %looped)
  %gathered = f32[32,16]{1,0} all-gather-done(%sent)
  ROOT %result = f32[256]{0} fusion(%gathered, %other), kind=kLoop, calls=%sum
}
"""


def test_a_loop_adds_what_its_body_holds() -> None:
    peak = peak_temporaries(parse_module(PROGRAM))
    # %kept, %start as the carry, and %wide: the result of the body lies in the carry.
    assert peak.num_bytes == (1 + 1 + 4) * KIB
    assert [(h.array, h.num_bytes, h.count) for h in peak.holdings] == [
        ("f32[4,256]", 4 * KIB, 1),
        ("f32[256]", KIB, 1),
        ("f32[256]", KIB, 1),
    ]
    assert peak.holdings[0].op_name == "jit(step)/while/body/layer_*/wide"
    assert ("jit(step)/kept", "train.py:12") in {(h.op_name, h.source) for h in peak.holdings}


def test_an_asynchronous_collective_holds_its_operand_until_it_is_done() -> None:
    without_loop = PROGRAM.replace("%wide = f32[4,256]{1,0}", "%wide = f32[1]{0}")
    peak = peak_temporaries(parse_module(without_loop))
    # %kept (read by the gather), the gathered 2 KiB, the loop's carry and %other; the result is an output.
    assert peak.num_bytes == (1 + 2 + 1 + 1) * KIB


def test_a_combined_reduce_scatter_makes_only_its_shards() -> None:
    sent = "%sent = (f32[16,16]{1,0}, f32[32,16]{1,0}) all-gather-start(%view)"
    scattered = "%sent = ((f32[16,16]{1,0}), f32[8,16]{1,0}) reduce-scatter-start(%view)"
    done = "%gathered = f32[32,16]{1,0} all-gather-done(%sent)"
    program = PROGRAM.replace("%wide = f32[4,256]{1,0}", "%wide = f32[1]{0}").replace(sent, scattered)
    program = program.replace(done, "%gathered = f32[8,16]{1,0} reduce-scatter-done(%sent)")
    # %kept (scattered from), the shard of 512 bytes, the loop's carry and %other.
    assert peak_temporaries(parse_module(program)).num_bytes == 3.5 * KIB


def test_the_arrays_of_tiles_are_padded_and_lie_in_their_memory() -> None:
    matrix, vector, on_chip, plain = parse_types(
        "(bf16[1,768]{1,0:T(2,128)(2,1)}, f32[100]{0:T(128)}, bf16[24,200]{0,1:T(8,128)(2,1)S(1)}, f32[3,5]{1,0})"
    )
    assert (matrix.allocated_bytes, matrix.num_bytes) == (2 * 2 * 768, 2 * 768)
    assert vector.allocated_bytes == 4 * 128
    assert on_chip.allocated_bytes == 2 * 128 * 200  # the first dimension is the minor one
    assert [t.memory_space for t in (matrix, vector, on_chip, plain)] == [0, 0, 1, 0]
    assert plain.allocated_bytes == plain.num_bytes == 60


def _saved(x: jax.Array, w: jax.Array) -> jax.Array:
    """Three layers with activations that wait for the backward pass."""
    return jax.grad(lambda x: jnp.sum(jnp.tanh(jnp.tanh(jnp.tanh(x @ w) @ w) @ w)))(x)


def _stacked(x: jax.Array, w: jax.Array) -> jax.Array:
    """A loop that stacks the values that the loop of the backward pass reads."""
    return jax.grad(lambda x: jnp.sum(lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, None, length=6)[0]))(
        x
    )


@pytest.mark.parametrize("step", [_saved, _stacked])
def test_peaks_are_those_that_the_compiler_reserves(step) -> None:
    shapes = [jax.ShapeDtypeStruct((size, 256), jnp.float32) for size in (1024, 256)]
    compiled = jax.jit(step).lower(*shapes).compile()
    peak = peak_temporaries(parse_module(compiled.as_text() or ""))
    memory = compiled.memory_analysis()
    # A temporary may lie where an output will be.
    assert 0.9 * memory.temp_size_in_bytes <= peak.num_bytes
    assert peak.num_bytes <= memory.temp_size_in_bytes + memory.output_size_in_bytes
    assert memory.temp_size_in_bytes > 2 * memory.output_size_in_bytes
    assert sum(h.num_bytes for h in peak.holdings) == peak.num_bytes
    assert any("test_hlo_liveness.py:" in h.source for h in peak.holdings)
