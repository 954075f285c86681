"""Which kernels compute on tensor cores, by names as libraries write them, and of what class they are."""

import pytest

from rankscope.measure.kernel_classes import find_class
from rankscope.measure.tensor_cores import uses_tensor_cores


@pytest.mark.parametrize(
    "name",
    [
        "void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 64, 64, 4, false, cutlass::bfloat16_t>>(Flash_fwd_params)",
        "void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<64, 128, 128>>(Flash_bwd_params)",
        "void flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128>>(Flash_fwd_params)",
        "void cutlass::device_kernel<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2>>>(Params)",
        "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<MainloopSm90TmaGmmaWarpSpecialized<4>>>",
        "deep_gemm::fp8_gemm_kernel<4096u, 7168u, 128u, 128u>(float*)",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0",
        "void marlin::Marlin<__nv_bfloat16, 256, 1, 8, 8, 4, 8>(int4 const*)",
        "nvjet_tst_128x256_64x4_1x2_h_bz_TNT",
        "Cijk_Ailk_Bljk_BBS_BH_MT128x128x32_MI16x16x1",
        "void ck::kernel_gemm_xdl_cshuffle_v3<ck::GridwiseGemm>(Argument)",
        "fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel::Params)",
        "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_nn",
    ],
)  # fmt: skip
def test_kernel_of_a_known_library_is_on_tensor_cores(name: str) -> None:
    assert uses_tensor_cores(name) is True
    assert find_class(name) in {"gemm", "attention"}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ampere_sgemm_128x64_tn", "gemm"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>", "elementwise"),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>", "norm"),
        ("triton_poi_fused_add_relu_0", "elementwise"),
        ("triton_per_fused_native_layer_norm_3", "norm"),
        ("void flash_bwd_dot_do_o_kernel<true, Flash_bwd_kernel_traits<64, 128, 128>>(Flash_bwd_params)", "attention"),
        ("void flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<128>>(Flash_fwd_params)", "attention"),
        ("void gptq_marlin_repack_kernel<256, 4, false>(unsigned int const*)", "gemm"),
        ("Memcpy DtoD (Device -> Device)", "copy"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "elementwise"),
    ],
)
def test_kernel_without_products_or_on_ordinary_cores_is_not(name: str, kind: str) -> None:
    assert uses_tensor_cores(name) is False
    assert find_class(name) == kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [("triton_tem_fused_mm_0", "gemm"), ("_attn_fwd", "attention"), ("matmul_kernel", "gemm"), ("mine", "other")],
)
def test_name_that_does_not_tell_is_not_known(name: str, kind: str) -> None:
    assert uses_tensor_cores(name) is None
    assert find_class(name) == kind
