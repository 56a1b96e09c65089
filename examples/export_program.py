"""A sampling step exported once for every batch size, chunked, saved; whoever loads it needs no sortpass.

python examples/export_program.py
"""

import tempfile

import torch
from torch.export import Dim

import sortpass


class Sampler(torch.nn.Module):
    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        ordered, index = logits.sort(dim=-1)
        drop = ordered.softmax(-1).cumsum(-1) <= 0.1
        return logits.masked_fill(drop.scatter(-1, index, drop), -float("inf"))


def main() -> None:
    # The max is what fixes the number of pieces; a batch of any size up to it comes back whole.
    rows = Dim("rows", max=256)
    program = torch.export.export(Sampler(), (torch.randn(4, 2_000),), dynamic_shapes={"logits": {0: rows}})
    program = program.run_decompositions()
    print(sortpass.rewrite(program, row_chunk=32, min_bytes=1))
    with tempfile.NamedTemporaryFile(suffix=".pt2") as file:
        torch.export.save(program, file.name)
        step = torch.export.load(file.name).module()
    for batch in (1, 31, 32, 33, 256):
        logits = torch.randn(batch, 2_000)
        assert torch.equal(step(logits), Sampler()(logits))
        print(f"{batch:4} rows in, {step(logits).shape[0]:4} rows out")
    # torch._inductor.aoti_compile_and_package(program) makes a package of it that runs without Python.


if __name__ == "__main__":
    main()
