"""Rewrite a graph you traced yourself, and read what was decided.

python examples/rewrite_graph.py
"""

import torch
from torch.fx.experimental.proxy_tensor import make_fx

import sortpass


def prompt_ranks(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """How many tokens were more likely than the target, by a sort."""
    ordered = logits.float().log_softmax(-1).sort(-1, descending=True)[0]
    wanted = logits.float().log_softmax(-1).gather(-1, target)
    return (ordered > wanted).sum(-1)


def main() -> None:
    logits, target = torch.randn(200, 1_000).bfloat16(), torch.randint(0, 1_000, (200, 1))
    # functionalize: a region ends at an in-place op, and hand-written code may have some.
    gm = make_fx(torch.func.functionalize(prompt_ranks))(logits, target)
    report = sortpass.rewrite(gm, row_chunk=16, min_bytes=1)
    print(report)
    for site in report.sites:
        print(f"  {site.node}: {site.rows} rows in {site.num_windows} windows; {', '.join(site.region_ops)}")
    gm.print_readable()
    assert torch.equal(gm(logits, target), prompt_ranks(logits, target))


if __name__ == "__main__":
    main()
