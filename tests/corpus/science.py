"""Data of graphs, flows and detectors: random, made here, as data.py makes the rest."""

import random


def cora(folder):
    """Cora's two files: 1,600 papers of 200 words in 7 classes, and 4,000 citations."""
    rng = random.Random(0)
    papers, words = 1_600, 200
    rows = [" ".join(str(int(rng.random() < 0.02)) for _ in range(words)) for _ in range(papers)]
    lines = [f"{n} {row} kind{n % 7}" for n, row in enumerate(rows)]
    (folder / "cora.content").write_text("\n".join(lines) + "\n")
    cited = [f"{rng.randrange(papers)} {rng.randrange(papers)}" for _ in range(4_000)]
    (folder / "cora.cites").write_text("\n".join(cited) + "\n")


def flow(folder):
    """1,000 flows at rest, [64, 64] in 20 moments, in MATLAB's two files."""
    import numpy as np
    import scipy.io

    flows = np.zeros((1_000, 64, 64, 20), np.float32)
    for part in (1, 2):
        file = folder / f"ns_data_V100_N1000_T50_{part}.mat"
        scipy.io.savemat(file, {"u": flows}, do_compression=True)


def resnet50(folder):
    """ResNet-50 with random weights, where torchvision looks for those that it has downloaded."""
    import torch
    import torchvision

    name = torchvision.models.ResNet50_Weights.IMAGENET1K_V1.url.rpartition("/")[2]
    torch.save(torchvision.models.resnet50().state_dict(), folder / name)
