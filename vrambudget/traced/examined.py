"""Operations that ask for no more than their results, as PyTorch's own samples of them showed.

tests/opinfo_exam.py ran every sample, forward and backward, on a virtual GPU (torch 2.11) and on
counted tensors: in all that have one of these the bytes are equal. Reductions, scans and whatever
takes more for larger inputs than those samples are left out.
"""

EXAMINED = {
    *("_adaptive_avg_pool3d", "_adaptive_avg_pool3d_backward", "_prelu_kernel"),
    *("_prelu_kernel_backward", "_upsample_bilinear2d_aa", "_upsample_bilinear2d_aa_backward"),
    *("_upsample_nearest_exact1d", "_upsample_nearest_exact1d_backward"),
    *("_upsample_nearest_exact2d", "_upsample_nearest_exact2d_backward"),
    *("_upsample_nearest_exact3d", "_upsample_nearest_exact3d_backward", "adaptive_max_pool2d"),
    *("adaptive_max_pool2d_backward", "adaptive_max_pool3d", "adaptive_max_pool3d_backward"),
    *("addr", "alias_copy", "avg_pool3d", "avg_pool3d_backward", "block_diag", "bucketize"),
    *("channel_shuffle", "diagonal_copy", "diagonal_scatter", "elu_backward"),
    *("grid_sampler_2d_backward", "grid_sampler_3d", "grid_sampler_3d_backward"),
    *("hardshrink_backward", "hardsigmoid_backward", "hardswish", "hardswish_backward"),
    *("hardtanh_backward", "leaky_relu", "leaky_relu_backward", "linalg_cross"),
    *("log_sigmoid_backward", "max_pool3d_with_indices", "max_pool3d_with_indices_backward"),
    *("max_unpool3d", "narrow_copy", "native_batch_norm", "nll_loss2d_backward"),
    *("nll_loss2d_forward", "permute_copy", "pixel_unshuffle", "reflection_pad1d_backward"),
    *("reflection_pad2d_backward", "reflection_pad3d", "reflection_pad3d_backward"),
    *("replication_pad1d_backward", "replication_pad2d", "replication_pad2d_backward"),
    *("replication_pad3d", "replication_pad3d_backward", "rot90", "rsub", "searchsorted"),
    *("smooth_l1_loss_backward", "softshrink_backward", "squeeze_copy", "t_copy"),
    *("transpose_copy", "unbind_copy", "unsqueeze_copy", "upsample_linear1d"),
    *("upsample_linear1d_backward", "upsample_nearest1d_backward", "upsample_nearest3d"),
    *("upsample_nearest3d_backward", "upsample_trilinear3d", "upsample_trilinear3d_backward"),
    *("view_copy", "native_dropout"),
}
