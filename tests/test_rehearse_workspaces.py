"""cuFFT, cuSOLVER and cuSPARSE on a virtual card: shapes are a card's, workspaces are told."""

import json

import pytest
from virtual import VIRTUAL_GPU, run

pytestmark = VIRTUAL_GPU

FOURIER = """
rows, pictures = torch.randn(4, 64, device=device), torch.randn(2, 30, 32, device=device)
yield torch.fft.irfft(torch.fft.rfft(rows))
yield torch.fft.irfft2(torch.fft.rfft2(pictures))
window = torch.hann_window(16, device=device)
yield (spectrum := torch.stft(rows, 16, window=window, return_complex=True))
yield torch.istft(spectrum, 16, window=window)
leaf = rows.requires_grad_()
yield torch.autograd.grad(torch.fft.fft(leaf).abs().sum(), leaf)[0]
"""

ALGEBRA = """
a, many = torch.eye(16, device=device), torch.eye(8, device=device).repeat(4, 1, 1)
linalg = torch.linalg
for x in (a, many, a.cfloat()):
    yield from (*linalg.qr(x), *linalg.svd(x), *linalg.eigh(x), linalg.inv(x), *linalg.lu(x))
    yield from (linalg.cholesky(x), linalg.solve(x, x[..., :3]), linalg.lstsq(x, x).solution)
yield from (linalg.eigvals(a), linalg.pinv(a), linalg.ldl_factor(a)[0], linalg.matrix_exp(a))
yield from torch.svd_lowrank(a, q=4)
"""

SPARSE = """
indices = torch.tensor([[0, 1, 1, 2, 0], [1, 0, 2, 2, 1]])
y = torch.randn(4, 3, device=device, requires_grad=True)
for x in (
    torch.sparse_coo_tensor(indices, torch.ones(5), (4, 4)).to(device),
    torch.sparse_coo_tensor(indices.to(device), torch.ones(5, device=device), (4, 4)),
):
    both = x.coalesce()
    yield from (both.indices(), both.values(), x.t().coalesce().values(), torch.spmm(x, y))
    yield torch.autograd.grad(torch.sparse.mm(x, y).sum(), y)[0]
    say.append(both.indices().tolist())
yield torch.segment_reduce(y, "sum", lengths=torch.tensor([1, 3]).to(device))
csr = torch.eye(4).to_sparse_csr().to(device)
yield from (csr @ y, torch.sparse.sampled_addmm(csr, y, y.t()).values())
table = torch.randn(7, 3, device=device, requires_grad=True)
torch.nn.functional.embedding(indices.to(device), table, sparse=True).sum().backward()
yield table.grad.coalesce().values()
"""


@pytest.mark.parametrize(
    ("body", "library"),
    [
        pytest.param(FOURIER, "cuFFT", id="fourier"),
        pytest.param(ALGEBRA, "cuSOLVER", id="algebra"),
        pytest.param(SPARSE, "cuSPARSE", id="sparse"),
    ],
)
def test_shapes_are_those_of_the_host_and_the_report_says_what_is_not_counted(
    tmp_path, body, library
):
    script, told = tmp_path / "script.py", tmp_path / "told"
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    script.write_text(
        f"import json, torch\ndef shapes(device, say):\n{lines}\n"
        "def of(device):\n    say = []\n"
        "    return [list(x.shape) for x in shapes(device, say)], say\n"
        f"open({str(told)!r}, 'w').write(json.dumps([of('cpu'), of('cuda')]))\n"
    )
    result = run(script)
    assert result.ended == "finished", result.error
    on_host, on_card = json.loads(told.read_text())
    assert on_card == on_host
    assert [w for w in result.warnings if "workspaces" in w and library in w]
    assert not [w for w in result.warnings if "makes a shape" in w]


def test_a_size_that_only_a_card_can_count_ends_the_rehearsal_by_name(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import torch\nx = torch.eye(4).to_sparse().cuda()\ntorch.sparse.mm(x, x)\n")
    result = run(script)
    assert (result.ended, result.exit_code) == ("failed", 1)
    assert [w for w in result.warnings if "a function of cuSPARSE" in w]
