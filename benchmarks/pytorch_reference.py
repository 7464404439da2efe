"""Makes the numbers of docs/reference.md with PyTorch.

    python benchmarks/pytorch_reference.py docs/pytorch_block.npz

They are those of PyTorch 2.13.0 on a CPU: params, inputs and output of a small block.
"""

import sys
from typing import Any

import numpy as np


def main(file: str):
    import torch  # pyright: ignore[reportMissingImports]: only this script needs it

    nn: Any = torch.nn
    torch.manual_seed(0)
    block = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
    x = torch.randn(64, 16)
    with torch.no_grad():
        arrays = {name: each.numpy() for name, each in block.state_dict().items()}
        np.savez_compressed(file, x=x.numpy(), out=block(x).numpy(), **arrays)


if __name__ == "__main__":
    main(sys.argv[1])
