"""Primitives that compute nothing on a device by themselves: why none of them needs a rule that splits.

Together with the registry this accounts for every primitive of JAX (``python -m jaxplan coverage``).
"""

from __future__ import annotations

_CALL = "inlined: its inner program is planned"
_REGION = "its inner program is planned, or it is one operator that runs replicated"
COLLECTIVE = "names mesh axes: it stands inside of the user's shard_map only"
_KERNEL = "stands inside of a Pallas kernel only"
_TRACING = "does not outlive tracing or differentiation"
_REFERENCE = "reads or writes a mutable array: it runs replicated, in order"
_HOST = "calls the host, once, with whole values"
_SPARSE = "a library's dot: it stands inside of the lowering of a sparse one only"
_EXPORT = "belongs to exported programs of symbolic shape"

_NAMES = {
    _CALL: (
        "call closed_call composite core_call custom_jvp_call custom_jvp_call_jaxpr custom_linear_solve "
        "custom_vjp_call custom_vjp_call_jaxpr custom_vmap_call eval_jaxpr jit linear_call pjit remat2 "
        "xla_metadata_call"
    ),
    _REGION: "call_exported compute_on cond cudnn_fusion fused_call remat_opt run_state scan while",
    COLLECTIVE: (
        "all_gather all_gather_done all_gather_invariant all_gather_reduced all_gather_reduced_start all_gather_start "
        "all_to_all all_to_all_done all_to_all_start axis_index pbroadcast pbroadcast_done pbroadcast_dynamic "
        "pbroadcast_start pmax pmin ppermute ppermute_done ppermute_start precv preduced psend psum psum_done "
        "psum_invariant psum_invariant_start psum_start pvary ragged_all_to_all reduce_scatter reduce_scatter_done "
        "reduce_scatter_start reduced_vary_cast reduced_vary_cast_p unreduced_pmax unreduced_pmin unreduced_psum "
        "unreduced_psum_start unreduced_reduce_scatter unreduced_reduce_scatter_start vary_unreduced_cast "
        "vary_unreduced_cast_p"
    ),
    _KERNEL: (
        "core_map delay einshape_lo get_global jaxpr_call masked_load masked_swap mpmd_map multiple_of num_programs "
        "program_id reciprocal run_scoped semaphore_read semaphore_signal semaphore_wait tpu_custom_call"
    ),
    _TRACING: (
        "box_get box_set call_hi_primitive call_hi_primitive_linearized check custom_lin dce_sink log_extend log_read "
        "new_box new_log stage unreachable zeros_like"
    ),
    _REFERENCE: (
        "accum_grad_in_ref addupdate after_all create_linear create_token empty_ref free_ref freeze get new_ref pin "
        "swap unpin"
    ),
    _HOST: "buffer_callback debug_callback debug_print inspect_sharding io_callback pure_callback",
    _SPARSE: "coo_spmm coo_spmv csr_spmm csr_spmv",
    _EXPORT: "dim_as_value dimension_size shape_assertion",
}
ELSEWHERE: dict[str, str] = {name: reason for reason, names in _NAMES.items() for name in names.split()}
"""Primitive -> why it needs no rule."""

WHOLE_REASONS: dict[str, str] = {
    **dict.fromkeys(
        (
            "dot_product_attention_fp8_bwd",
            "dot_product_attention_fp8_bwd_wrapper",
            "dot_product_attention_fp8_fwd",
            "dot_product_attention_fp8_fwd_wrapper",
        ),
        "returns, beside each tensor, one maximum over all of it",
    ),
    **dict.fromkeys(("rnn_bwd", "rnn_fwd"), "the size of its reserved memory depends on the batch"),
    **dict.fromkeys(
        ("coo_fromdense", "csr_fromdense", "csr_matvec", "csr_todense", "todense"),
        "a row begins where the one before ends",
    ),
    "spsolve": "every row of the solution depends on all of the matrix",
    "cholesky_update": "one matrix, and every row of the result depends on all before it",
    "platform_index": "a scalar",
    "rng_bit_generator": "each number depends on the whole shape",
    "rng_uniform": "each number depends on the whole shape",
}
"""Primitive with a rule that splits nothing -> the reason."""
