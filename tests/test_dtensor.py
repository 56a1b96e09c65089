"""DTensor logits, sharded by row or by vocabulary: results, placements and collectives as without the pass."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from helpers import compile_chunked, compile_whole
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import sortpass

ROWS, VOCAB = 11, 13  # neither divides by two: every shard is uneven

pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="needs gloo")


def sample(x: Any) -> Any:
    ordered, index = (x * 2).sort(-1)
    return ordered.softmax(-1).cumsum(-1), index


def facts(out: Any) -> list[Any]:
    return [(t.placements, t.shape, t.stride(), t.to_local(), t.full_tensor()) for t in out]


def collectives(graphs: list[Any]) -> list[list[str]]:
    return [
        [str(node.target) for node in gm.graph.nodes if "_c10d_functional" in str(node.target)]
        for graph in graphs
        for gm in graph.modules()
        if isinstance(gm, torch.fx.GraphModule)
    ]


def compare(rank: int, placement: Any, rows: int) -> None:
    """Whole against chunked in one process of two."""
    mesh = init_device_mesh("cpu", (2,))
    full = torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(0))
    x = distribute_tensor(full, mesh, [placement])
    seen: dict[str, list[Any]] = {"whole": [], "chunked": []}

    def keep(name: str) -> Any:
        def inner(gm: Any, example_inputs: Any) -> Any:
            seen[name].append(gm)
            return gm.forward

        return inner

    whole = facts(compile_whole(sample)(x))
    with sortpass.capture_reports() as reports:
        chunked = facts(compile_chunked(sample)(x))
    if rows > 8:
        assert any(report.modified for report in reports), reports
    for a, b in zip(whole, chunked, strict=True):
        assert a[:3] == b[:3], (placement, a[:3], b[:3])
        assert torch.equal(a[3], b[3]), placement
        assert torch.equal(a[4], b[4]), placement
    assert torch.equal(chunked[1][4], (full * 2).sort(-1)[1])
    # In the chunked graph each collective is where it was, once, and none is in a loop's body.
    compile_chunked(sample, keep("whole"), row_chunk=10**6)(x)
    compile_chunked(sample, keep("chunked"))(x)
    whole_calls, (chunked_calls, *inside) = collectives(seen["whole"]), collectives(seen["chunked"])
    assert [chunked_calls] == whole_calls
    assert not any(inside)
    if isinstance(placement, Shard) and placement.dim == 1:
        assert chunked_calls


def work(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    try:
        for placement in (Shard(0), Shard(1), Replicate()):
            compare(rank, placement, ROWS)
        compare(rank, Shard(0), 1)  # the second process has no row at all
    finally:
        dist.destroy_process_group()


def test_sharded_logits_give_the_results_placements_and_collectives_of_the_whole() -> None:
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, args=(str(Path(folder) / "store"),), nprocs=2)
