"""Teach the pass a custom op, so that it does not cut the region in two.

python examples/custom_rule.py
"""

import torch

import sortpass


@torch.library.custom_op("example::row_entropy", mutates_args=())
def row_entropy(probs: torch.Tensor) -> torch.Tensor:
    """Entropy of each row: [N, V] -> [N]."""
    return -(probs * probs.clamp_min(1e-9).log()).sum(-1)


@row_entropy.register_fake
def _(probs: torch.Tensor) -> torch.Tensor:
    return probs.new_empty(probs.shape[:-1])


@sortpass.register_rule(torch.ops.example.row_entropy.default)
def row_entropy_rule(call, row_dim):
    """Output dim d comes from input dim d; the last input dim is summed away, so no output dim is it."""
    return sortpass.Flow({"probs": row_dim})


def step(logits: torch.Tensor) -> torch.Tensor:
    ordered = logits.sort(-1)[0]
    return torch.ops.example.row_entropy(ordered.softmax(-1)) * 2


def main() -> None:
    logits = torch.randn(64, 2_000)
    options = {"row_chunk": 16, "min_bytes": 1, "inner": "aot_eager"}
    with sortpass.capture_reports() as reports:
        out = torch.compile(step, backend="chunked_sort", options=options)(logits)
    print(reports[0], reports[0].sites[0].region_ops, sep="\n")
    assert torch.equal(out, step(logits))


if __name__ == "__main__":
    main()
