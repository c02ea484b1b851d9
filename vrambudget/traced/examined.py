"""Operations that ask for no more than their results, by aten's names.

Their kernels' source says so, or PyTorch's own samples of them: tests/opinfo_exam.py ran every
sample, forward and backward, on a virtual GPU (torch 2.11) and on counted tensors, and in all that
have one of these the bytes are equal. Reductions, scans and whatever takes more for larger inputs
than those samples are left out.
"""

_NAMES = """
    _adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d
    _adaptive_avg_pool3d_backward _cdist_forward _index_put_impl _is_all_true _pdist_forward
    _prelu_kernel _prelu_kernel_backward _thnn_fused_gru_cell _thnn_fused_lstm_cell _to_copy
    _unsafe_view _upsample_bilinear2d_aa _upsample_bilinear2d_aa_backward _upsample_nearest_exact1d
    _upsample_nearest_exact1d_backward _upsample_nearest_exact2d _upsample_nearest_exact2d_backward
    _upsample_nearest_exact3d _upsample_nearest_exact3d_backward _weight_norm_interface
    _weight_norm_interface_backward adaptive_max_pool2d adaptive_max_pool2d_backward
    adaptive_max_pool3d adaptive_max_pool3d_backward addr alias_copy arange as_strided_copy
    as_strided_scatter avg_pool3d avg_pool3d_backward bernoulli
    bernoulli_ binary_cross_entropy_backward block_diag bucketize cat channel_shuffle clone col2im
    complex constant_pad_nd copy diagonal_backward diagonal_copy diagonal_scatter elu_backward
    embedding empty empty_like empty_strided expand_copy eye fill flip floor_divide full full_like
    gather gelu_backward glu glu_backward grid_sampler_2d grid_sampler_2d_backward grid_sampler_3d
    grid_sampler_3d_backward hardshrink_backward hardsigmoid_backward hardswish hardswish_backward
    hardtanh_backward huber_loss_backward index_add index_copy index_fill index_put index_select
    leaky_relu leaky_relu_backward lift_fresh_copy linalg_cross linspace log_sigmoid_backward
    masked_fill max_pool2d_with_indices max_pool2d_with_indices_backward max_pool3d_with_indices
    max_pool3d_with_indices_backward max_unpool3d mse_loss_backward narrow_copy native_batch_norm
    native_dropout new_empty new_empty_strided new_full new_ones new_zeros nll_loss2d_backward
    nll_loss2d_forward nll_loss_backward nll_loss_forward normal_ one_hot ones ones_like
    permute_copy pixel_shuffle pixel_unshuffle polar rand rand_like randint randn randn_like
    reflection_pad1d reflection_pad1d_backward reflection_pad2d reflection_pad2d_backward
    reflection_pad3d reflection_pad3d_backward repeat replication_pad1d replication_pad1d_backward
    replication_pad2d replication_pad2d_backward replication_pad3d replication_pad3d_backward roll
    resize rot90 rsub scalar_tensor scatter scatter_add searchsorted select_backward select_scatter
    silu_backward slice_backward slice_scatter smooth_l1_loss_backward softplus_backward
    softshrink_backward split_with_sizes_copy squeeze_copy stack t_copy transpose_copy tril triu
    unbind_copy unfold uniform_ unsqueeze_copy upsample_bicubic2d upsample_bicubic2d_backward
    upsample_bilinear2d upsample_linear1d upsample_linear1d_backward upsample_nearest1d
    upsample_nearest1d_backward upsample_nearest3d upsample_nearest3d_backward upsample_trilinear3d
    upsample_trilinear3d_backward view_as_complex view_as_real view_copy where zeros zeros_like
"""
NOTHING_MORE = frozenset(_NAMES.split())
