"""Which functions the autocast of CUDA and of the CPU cast, by the names under which Python reaches them."""

from __future__ import annotations

# Source: torch 2.13.0, ATen/autocast_mode.h, AT_FORALL_LOWER_PRECISION_FP (with the names Python reaches them by).
CUDA_LOWER = """
    _convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d convolution
    prelu addmm addmv addr matmul __matmul__ __rmatmul__ einsum mm mv linalg_vecdot linear addbmm baddbmm bmm
    chain_matmul linalg_multi_dot lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell scaled_dot_product_attention
"""

# Likewise, AT_FORALL_FP32; nll_loss_nd is the entry of nll_loss and nll_loss2d.
CUDA_FP32 = """
    acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow __pow__ __rpow__ softplus
    layer_norm native_layer_norm rms_norm group_norm frobenius_norm nuclear_norm cosine_similarity
    poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d nll_loss_nd hinge_embedding_loss kl_div l1_loss
    smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss
    triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp
    upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d _upsample_nearest_exact2d upsample_nearest3d
    _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d
    upsample_bicubic2d _upsample_bicubic2d_aa
"""

# Likewise, AT_FORALL_FP32_SET_OPT_DTYPE: computed in fp32 unless the call names a dtype.
CUDA_FP32_RESULT = """
    prod softmax log_softmax cumprod cumsum linalg_vector_norm linalg_matrix_norm sum
"""

# Likewise, AT_FORALL_PROMOTE: mixed inputs are cast to the widest format among them.
CUDA_WIDEST = "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add"

# Source: torch 2.x, ATen/autocast_mode.cpp, TORCH_LIBRARY_IMPL(aten, AutocastCPU); held to real CPU autocast by a test.
CPU_LOWER = """
    conv1d conv2d conv3d bmm mm linalg_vecdot baddbmm addmm addbmm linear _convolution matmul __matmul__
    __rmatmul__ conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d prelu scaled_dot_product_attention
    einsum chain_matmul linalg_multi_dot
"""
# Left out: padding by reflection and replication, which Python reaches through one C++ function for all modes only.
CPU_FP32 = """
    avg_pool3d binary_cross_entropy grid_sampler polar prod quantile nanquantile stft cdist trace
    view_as_complex cholesky inverse pinverse max_pool3d adaptive_avg_pool3d mse_loss cosine_embedding_loss
    nll_loss nll_loss2d nll_loss_nd hinge_embedding_loss poisson_nll_loss smooth_l1_loss cross_entropy_loss
    l1_loss huber_loss margin_ranking_loss soft_margin_loss triplet_margin_loss multi_margin_loss ctc_loss kl_div
    multilabel_margin_loss binary_cross_entropy_with_logits
"""
CPU_WIDEST = "stack cat index_copy"
