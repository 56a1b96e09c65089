"""The pass inside somebody else's Inductor pipeline: set it as a hook, keep plain torch.compile.

python examples/inductor_pass.py
"""

import torch

import sortpass


def step(logits: torch.Tensor) -> torch.Tensor:
    return logits.sort(-1)[0].softmax(-1).cumsum(-1)


def main() -> None:
    logits = torch.randn(64, 2_000)
    hook = sortpass.ChunkedSortPass(row_chunk=16, min_bytes=1)
    with torch._inductor.config.patch(post_grad_custom_pre_pass=hook), sortpass.capture_reports() as reports:
        out = torch.compile(step)(logits)
    print(reports[0])
    assert torch.allclose(out, step(logits))


if __name__ == "__main__":
    main()
