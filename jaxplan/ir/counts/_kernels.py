"""Primitives that stand in kernels only: transfers between memories, synchronisation, and dots of the hardware."""

from __future__ import annotations

import math
from typing import Any

from jaxplan.ir._count import Count

_OF_ALL = (
    "addupdate axis_index bitcast check delay empty_ref freeze get get_global load masked_load "
    "masked_swap max_contiguous multiple_of new_ref num_programs pin program_id semaphore_read "
    "semaphore_signal semaphore_wait swap unpin"
)
_OF_TPUS = (
    "add_dependency dma_start dma_wait get_barrier_semaphore matmul_acc_lhs matmul_pop pack_elementwise "
    "prng_join prng_seed prng_split remove_memory_space roll trace_value unpack_elementwise"
)
_OF_GPUS = (
    "async_copy_scales_to_tmem async_copy_smem_to_tmem async_copy_sparse_metadata_to_tmem async_load "
    "async_prefetch async_store_smem async_store_tmem atomic_cas atomic_rmw barrier_arrive barrier_test "
    "barrier_wait commit_group commit_smem commit_tmem copy_gmem_to_smem copy_smem_to_gmem "
    "debug_barrier_p griddepcontrol_launch_dependents griddepcontrol_wait layout_cast mgpu_atomic_store "
    "multimem_load_reduce multimem_store print_layout query_cluster_cancel semaphore_signal_multicast "
    "semaphore_signal_parallel set_max_registers_p tcgen05_commit_arrive try_cluster_cancel "
    "wait_load_tmem wait_smem_to_gmem wgmma_accumulator_deref_p wgmma_accumulator_store_p wgmma_wait"
)
KERNEL_MOVES = frozenset(" ".join((_OF_ALL, _OF_TPUS, _OF_GPUS)).split())
"""They compute nothing; the block specifications of the kernel say how many bytes they move."""
_PRODUCTS = frozenset({"wgmma", "wgmma_ref", "tcgen05_mma"})
"""Operands: the accumulator, the left factor, the right one."""


def kernel_product(name: str, in_avals: list[Any]) -> Count | None:
    """A dot of the tensor cores, accumulated: rows and columns of the accumulator, times the width of the left
    factor; None for every other primitive."""
    if name not in _PRODUCTS:
        return None
    accumulator, left = in_avals[:2]
    return Count(matrix=((str(left.dtype), 2.0 * math.prod(accumulator.shape) * left.shape[-1]),))
