"""Check which kernels communicate, which operation it is, and how many bytes it moves."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.measure.communication import (
    COMMUNICATION_KERNELS,
    KernelFamily,
    bus_factor,
    find_operation,
    find_operation_of_kernel,
    input_bytes,
    is_backend_range,
    is_communication_kernel,
    item_bytes,
    needs_input_shapes,
)

COMPUTING = (
    "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_tn",
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x128_tn_align8>",
    "volta_sgemm_128x64_nn",
    "nvjet_tst_128x64_64x7_1x2_h_bz_coopA_TNN",
    "Cijk_Ailk_Bljk_HHS_BH_MT128x128x32_MI32x32x8x1",
    "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1, true>",
    "cudnn_infer_ampere_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1",
    "miopenSp3AsmConv_v30_3_1_gfx9_fp32_f2x3_stride1",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float>>>",
    "void at::native::(anonymous namespace)::indexSelectLargeIndex<float, long, unsigned int, 2, 2, -2, true>",
    "void at::native::_scatter_gather_elementwise_kernel<128, 8>",
    "void at::native::batch_norm_backward_reduce_kernel<float>",
    "void at::native::_cat_broadcast_kernel<float>",
    "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0",
    "triton_poi_fused_all_gather_copy_out_3",
    "void flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<64>>",
    "void multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdamMathFunctor<float>>",
    "Memcpy DtoD (Device -> Device)",
    "void some_library::barrier_kernel(unsigned int*)",
)


@pytest.mark.parametrize("family", COMMUNICATION_KERNELS, ids=lambda family: family.library)
def test_each_row_of_the_table_matches_its_example(family: KernelFamily) -> None:
    assert re.search(family.pattern, family.example, re.IGNORECASE)
    assert is_communication_kernel(family.example)


@pytest.mark.parametrize(
    "name",
    [
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
        "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)",
        "ncclSymkDevKernel_AllReduce_RSxLD_AGxST_sum_bf16",
        "void deep_ep::internode_ll::combine<7168, 9>(void*)",
        "void deep_ep::intranode::notify_dispatch<8>(int const*)",
        "void c10d::symmetric_memory::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 8>",
        "one_shot_all_reduce_kernel<float, 16>",
        "multimem_all_gather_kernel<16>",
        "msccl::mscclRunInterpreter<float>",
    ],
)
def test_kernels_that_communicate_are_known_by_name(name: str) -> None:
    assert is_communication_kernel(name)


@pytest.mark.parametrize("name", COMPUTING)
def test_kernels_that_compute_are_not_taken_for_communication(name: str) -> None:
    assert not is_communication_kernel(name)


def test_each_library_stands_in_the_table_once() -> None:
    assert len({family.library for family in COMMUNICATION_KERNELS}) == len(COMMUNICATION_KERNELS)


# -- operations -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("nccl:all_reduce", "all_reduce"), ("nccl:_all_gather_base", "all_gather"), ("allreduce", "all_reduce"),
        ("nccl:_reduce_scatter_base", "reduce_scatter"), ("nccl:all_to_allv", "all_to_all"),
        ("gloo:barrier", "barrier"),
        ("nccl:send 0->1", "send"), ("nccl:recv 0<-1", "recv"), ("gloo:broadcast", "broadcast"), ("reduce", "reduce"),
        ("ALLREDUCE_coalesced", "all_reduce"), ("nccl:gather", "gather"), ("nccl:scatter", "scatter"),
        ("nccl:all_reduce_barrier", "barrier"), ("nccl:coalesced", "coalesced"), ("of_tomorrow", "of_tomorrow"),
    ],
)  # fmt: skip
def test_an_operation_has_one_spelling(name: str, operation: str) -> None:
    assert find_operation(name) == operation


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)", "all_reduce"),
        ("ncclDevKernel_AllGather_RING_LL", "all_gather"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "reduce_scatter"),
        ("ncclKernel_Broadcast_RING_LL_Sum_int8_t", "broadcast"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL", "reduce"),
        ("ncclDevKernel_SendRecv", "send_recv"),
        ("multimem_all_reduce_kernel", "all_reduce"),
        ("c10d::symmetric_memory::barrier_kernel(unsigned int**, int)", "barrier"),
        ("ncclDevKernel_Generic_1", None),
        ("rcclDirectKernel(void*)", None),
        ("void deep_ep::intranode::dispatch<8>", "dispatch"),
        ("void deep_ep::internode_ll::combine<7168, 9>(void*)", "combine"),
        ("void deep_ep::intranode::notify_dispatch<8>(int const*)", "notify_dispatch"),
        ("void deep_ep::legacy::internode_ll::dispatch<true, false, 7168>(void*)", "dispatch"),
        ("void deep_ep::legacy::internode::cached_notify<true>(int)", "cached_notify"),
        ("deep_ep::intranode::barrier(int**, int)", "barrier"),
        ("void deep_ep::elastic::dispatch_impl<true, 3, false>(void*, deep_ep::elastic::sf_pack_t*)", "dispatch"),
        ("void deep_ep::elastic::hybrid_dispatch_impl<true>(void*)", "dispatch"),
        ("void deep_ep::elastic::combine_reduce_epilogue_impl<8>(void*)", "combine_reduce_epilogue"),
        ("void deep_ep::elastic::pp_send_impl<2>(ncclDevComm)", "send"),
        ("void ep::internode::dispatch<false, 8>(int4*)", "dispatch"),
        ("void hybrid_ep::dispatch_kernel<unsigned short, 8>(hybrid_ep::dispatch_kernel_param_t)", "dispatch"),
        ("void hybrid_ep::device_sync_kernel(unsigned int*)", None),
        ("EpDispatchIntraNodeKernel_bf16", "dispatch"),
    ],
)
def test_the_name_of_a_kernel_may_tell_its_operation(name: str, operation: str | None) -> None:
    assert find_operation_of_kernel(name) == operation


@pytest.mark.parametrize(
    ("name", "expected"), [("nccl:all_reduce", True), ("gloo:send", True), ("aten::nccl:x", False)]
)
def test_ranges_of_backends_begin_with_their_name(name: str, expected: bool) -> None:
    assert is_backend_range(name) is expected


def test_shapes_are_used_of_collectives_and_matrix_products() -> None:
    assert [needs_input_shapes(name) for name in ("gloo:all_reduce", "aten::addmm", "aten::add")] == [True, True, False]


# -- bytes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        ("Float", 4),
        ("BFloat16", 2),
        ("c10::BFloat16", 2),
        ("long int", 8),
        ("Byte", 1),
        ("Float8_e4m3fn", 1),
        ("?", None),
    ],
)
def test_an_element_has_the_size_of_its_type(dtype: str, size: int | None) -> None:
    assert item_bytes(dtype) == size


@pytest.mark.parametrize(
    ("types", "dims", "size"),
    [
        (["float"], [[2, 3]], 24),  # 2 x 3 x 4
        (["c10::Half", "long int"], [[4], [2]], 24),  # 4 x 2 and 2 x 8
        (["float"], [[]], 4),  # one number
        ([], [], 0),
        (["float"], [], None),
        (["Scalar"], [[]], None),
        (["float"], [[[2, 3], [4]]], None),  # a list of tensors
        (["float"], [[2.5]], None),
        (["float"], [["2"]], None),
        (["float"], [3], None),
        ([3], [[2]], None),
        (None, [[2]], None),
        (["float"], None, None),
    ],
)
def test_inputs_have_the_bytes_of_their_shapes(types: Any, dims: Any, size: int | None) -> None:
    assert input_bytes(types, dims) == size


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["float", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=6,
)


@given(anything, anything)
def test_shapes_of_any_form_do_no_harm(types: Any, dims: Any) -> None:
    size = input_bytes(types, dims)
    assert size is None or type(size) is int


@pytest.mark.parametrize(
    ("op", "ranks", "factor"),
    [
        ("all_reduce", 4, 1.5),  # 2 x 3 / 4
        ("all_reduce", 1, 0.0),
        ("reduce_scatter", 4, 0.75),
        ("all_to_all", 2, 0.5),
        ("broadcast", 8, 1.0),
        ("reduce", 8, 1.0),
        ("send", 2, None),
        ("barrier", 2, None),
        ("all_reduce", 0, None),
    ],
)
def test_bus_bandwidth_counts_as_nccl_tests_do(op: str, ranks: int, factor: float | None) -> None:
    assert bus_factor(op, ranks) == factor
