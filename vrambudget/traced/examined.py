"""Operations that ask for no more than their results, by aten's names (`examined.txt`).

Their kernels' source says so, or PyTorch's own samples of them: tests/opinfo_exam.py ran every
sample, forward and backward, on a virtual GPU (torch 2.11) and on traced tensors, and in all that
have one of these the bytes are equal. Reductions, scans and whatever takes more for larger inputs
than those samples are left out.
"""

from vrambudget.files import text_beside

NOTHING_MORE = frozenset(text_beside(__file__, "examined.txt").split())
