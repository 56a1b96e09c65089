"""The backend: every inner compiler, every kind of graph, side by side with everything else that compiles."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import TINY, assert_same, capture_graph, compile_chunked, compile_whole
from samplers import SAMPLERS, inputs_for
from torch._dynamo.exc import BackendCompilerFailed
from torch._inductor.custom_graph_pass import CustomGraphPass

import sortpass


def sort_cumsum(x: Any) -> Any:
    return x.sort(-1)[0].softmax(-1).cumsum(-1)


def run_python(code: str, **env: str) -> str:
    """Run code in a fresh process; returns what it printed."""
    import os

    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env={**os.environ, **env}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("name", ["chain", "per_row_in_place"])
def test_inductor_gives_the_bits_it_gives_without_the_pass(name: str) -> None:
    args = inputs_for(name, 24, 300)
    again = tuple(arg.clone() for arg in args)
    whole = compile_whole(SAMPLERS[name], "inductor")(*args)
    with sortpass.capture_reports() as reports:
        chunked = compile_chunked(SAMPLERS[name], "inductor", row_chunk=8)(*again)
    assert reports[0].num_rewritten == len(reports[0].sites)
    assert_same([whole, *args], [chunked, *again])


@pytest.mark.parametrize("inner", ["eager", "aot_eager", "aot_eager_decomp_partition"])
def test_named_inner_compilers_get_the_rewritten_graph(inner: str) -> None:
    x = torch.randn(10, 20)
    whole = compile_whole(sort_cumsum, inner)(x)
    with sortpass.capture_reports() as reports:
        chunked = compile_chunked(sort_cumsum, inner, form="unroll")(x)
    assert reports[0].num_rewritten == 1
    assert torch.equal(whole, chunked)


def test_a_callable_inner_gets_the_rewritten_aten_graph() -> None:
    seen: list[str] = []

    def inner(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        seen.extend(str(node.target) for node in gm.graph.nodes)
        return gm.forward

    x = torch.randn(10, 20)
    assert torch.equal(compile_chunked(sort_cumsum, inner)(x), sort_cumsum(x))
    assert "while_loop" in seen


@pytest.mark.parametrize("inner", ["aot_eager", "inductor"])
def test_gradients_are_as_whole_and_every_graph_is_reported(inner: str) -> None:
    x = torch.randn(10, 20, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    whole = compile_whole(sort_cumsum, inner)(x)
    whole.square().sum().backward()
    with sortpass.capture_reports() as reports:
        chunked = compile_chunked(sort_cumsum, inner, on_miss="raise")(y)  # the backward has no sort, and may
        chunked.square().sum().backward()
    assert [report.num_rewritten for report in reports] == [1, 0]
    assert_same([whole.detach(), x.grad], [chunked.detach(), y.grad])


def test_a_sort_in_the_backward_is_rewritten_there() -> None:
    class SortedGrad(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad.sort(-1)[0].cumsum(-1)

    x = torch.randn(10, 20, requires_grad=True)
    with sortpass.capture_reports() as reports:
        compile_chunked(lambda x: SortedGrad.apply(x))(x).sin().sum().backward()
    assert [report.num_rewritten for report in reports] == [0, 1]
    assert torch.equal(x.grad, (x.detach() * 2).cos().sort(-1)[0].cumsum(-1))


def test_functorch_and_export_graphs_can_be_rewritten() -> None:
    from functorch.compile import aot_function, make_boxed_func

    x = torch.randn(10, 20, requires_grad=True)

    def compiler(gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
        sortpass.rewrite(gm, **TINY)
        return make_boxed_func(gm.forward)

    aot_function(sort_cumsum, fw_compiler=compiler)(x).square().sum().backward()
    y = x.detach().clone().requires_grad_()
    sort_cumsum(y).square().sum().backward()
    assert torch.equal(x.grad, y.grad)

    class Step(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return sort_cumsum(x)

    program = torch.export.export(Step(), (x.detach(),)).run_decompositions()
    assert sortpass.rewrite(program.graph_module, **TINY, form="unroll").num_rewritten == 1
    assert torch.equal(program.module()(x.detach()), sort_cumsum(x.detach()))


@pytest.mark.parametrize("tracing_mode", ["real", "fake", "symbolic"])
def test_make_fx_graphs_can_be_rewritten(tracing_mode: str) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    x = torch.randn(10, 20)
    gm = make_fx(sort_cumsum, tracing_mode=tracing_mode)(x)
    assert sortpass.rewrite(gm, **TINY).num_rewritten == 1
    assert torch.equal(gm(x), sort_cumsum(x))


def test_a_users_own_inductor_pass_still_runs_before_ours() -> None:
    seen: list[list[str]] = []

    class Spy(CustomGraphPass):
        def __call__(self, graph: torch.fx.Graph) -> None:
            seen.append([str(node.target) for node in graph.nodes])

        def uuid(self) -> Any:
            return None

    x = torch.randn(10, 20)
    with torch._inductor.config.patch(post_grad_custom_pre_pass=Spy()):
        compile_chunked(sort_cumsum, "inductor")(x)
    assert "aten.sort.default" in seen[0]
    assert torch._inductor.config.post_grad_custom_pre_pass is None


def test_the_pass_does_not_leak_into_other_compiles() -> None:
    x = torch.randn(10, 20)
    with sortpass.capture_reports() as reports:
        compile_chunked(sort_cumsum, "inductor")(x)
        compile_whole(sort_cumsum, "inductor")(x)
    assert len(reports) == 1


def test_chunked_sort_pass_works_in_somebody_elses_inductor_config() -> None:
    x = torch.randn(10, 20)
    whole = compile_whole(sort_cumsum, "inductor")(x)
    torch._dynamo.reset()
    with (
        torch._inductor.config.patch(post_grad_custom_pre_pass=sortpass.ChunkedSortPass(**TINY)),
        sortpass.capture_reports() as reports,
    ):
        chunked = torch.compile(sort_cumsum)(x)
    assert reports[0].num_rewritten == 1
    assert torch.equal(whole, chunked)


def test_inductor_options_and_modes_reach_inductor() -> None:
    x = torch.randn(10, 20)
    seen: dict[str, Any] = {}

    class Spy(CustomGraphPass):
        def __call__(self, graph: torch.fx.Graph) -> None:
            seen.update(torch._inductor.config.get_config_copy())

        def uuid(self) -> Any:
            return None

    with torch._inductor.config.patch(post_grad_custom_pre_pass=Spy()):
        compile_chunked(sort_cumsum, "inductor", epilogue_fusion=False)(x)
        assert seen["epilogue_fusion"] is False
        torch.compile(lambda x: sort_cumsum(x), backend="chunked_sort", mode="max-autotune-no-cudagraphs")(x)
        assert seen["max_autotune"] is True


def test_an_unknown_mode_and_a_mode_for_another_inner_are_errors() -> None:
    gm = capture_graph(sort_cumsum, torch.randn(4, 4))
    with pytest.raises(sortpass.ConfigError, match="unknown mode 'fast'; choices are: .*'max-autotune'"):
        sortpass.chunked_sort(gm, [], mode="fast")
    with pytest.raises(sortpass.ConfigError, match="mode='max-autotune' is for inner='inductor'"):
        sortpass.chunked_sort(gm, [], mode="max-autotune", options={"inner": "eager"})


def test_two_configs_of_one_function_each_keep_their_own() -> None:
    x = torch.randn(12, 20)
    with sortpass.capture_reports() as reports:
        steps = [
            torch.compile(
                sort_cumsum, backend="chunked_sort", options={**TINY, "inner": "aot_eager", "row_chunk": chunk}
            )
            for chunk in (2, 4, 2)
        ]
        for step in (*steps, *steps):
            assert torch.equal(step(x), sort_cumsum(x))
    # The third config equals the first and does not compile again.
    assert [report.sites[0].row_chunk for report in reports] == [2, 4]


def test_threads_may_compile_at_once() -> None:
    results: dict[int, Any] = {}
    x = torch.randn(12, 20)

    def work(chunk: int) -> None:
        results[chunk] = compile_chunked(sort_cumsum, row_chunk=chunk)(x)

    threads = [threading.Thread(target=work, args=(chunk,)) for chunk in (2, 3, 4, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(results[chunk], sort_cumsum(x)) for chunk in (2, 3, 4, 5))


def test_outputs_of_an_earlier_call_are_not_overwritten() -> None:
    step = compile_chunked(sort_cumsum)
    first = step(torch.randn(10, 20))
    kept = first.clone()
    step(torch.randn(10, 20))
    assert torch.equal(first, kept)


@pytest.mark.parametrize("fn", [lambda x: x * 2, lambda x: x[:2].sort(-1)[0]], ids=["no sort", "few rows"])
def test_on_miss_warns_or_raises_when_nothing_was_rewritten(fn: Any) -> None:
    x = torch.randn(10, 20)
    with pytest.raises(BackendCompilerFailed, match="NothingRewritten: on_miss='raise'"):
        compile_chunked(fn, on_miss="raise")(x)
    torch._dynamo.reset()
    with pytest.warns(UserWarning, match="no sort of this graph was rewritten"):
        compile_chunked(fn, on_miss="warn")(x)
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compile_chunked(fn)(x)


def test_a_graph_break_gives_one_report_a_graph() -> None:
    def fn(x: Any) -> Any:
        y = x * 2
        torch._dynamo.graph_break()
        return y.sort(-1)[0]

    with sortpass.capture_reports() as reports:
        compile_chunked(fn)(torch.randn(10, 20))
    assert [report.num_rewritten for report in reports] == [0, 1]
    assert str(reports[0]) == "chunked 0 of 0 sorts: the graph has no sort"


def test_the_loop_compiles_flat_in_the_number_of_windows() -> None:
    counts = set()
    for rows in (8, 64, 512):
        gm = capture_graph(sort_cumsum, torch.randn(rows, 20))
        sortpass.rewrite(gm, row_chunk=2, min_bytes=1, force=True)
        counts.add((len(gm.graph.nodes), len(gm.chunk_body_0.graph.nodes)))
    assert len(counts) == 1


def test_a_fresh_process_finds_the_backend_without_an_import() -> None:
    out = run_python(
        """
        import torch
        assert "chunked_sort" in torch._dynamo.list_backends()
        x = torch.randn(10, 20)
        step = torch.compile(lambda x: x.sort(-1)[0], backend="chunked_sort",
                             options={"row_chunk": 3, "min_bytes": 1, "force": True, "inner": "aot_eager"})
        assert torch.equal(step(x), x.sort(-1)[0])
        """,
        TORCH_LOGS="+sortpass",
    )
    assert "chunked 1 of 1 sorts: sort: loop of 4 windows, at most 3 rows each" in out


def test_caches_hit_for_the_same_config_miss_for_another_and_stay_chunked(tmp_path: Path) -> None:
    code = """
        import sys, torch
        from torch._dynamo.utils import counters
        from sortpass.measure import peak_bytes
        def step(x):
            return x.sort(-1)[0].softmax(-1).cumsum(-1)
        chunk = {chunk}
        options = dict(row_chunk=chunk, min_bytes=1, force=True)
        x = torch.randn(128, 4000)
        f = torch.compile(step, backend="chunked_sort", options=options) if chunk else torch.compile(step)
        f(x)
        hit = counters["aot_autograd"]["autograd_cache_hit"]
        print("hit" if hit else "miss", "chunked" if peak_bytes(lambda: f(x)) / x.numel() < 8 else "whole")
    """
    outcomes = [
        run_python(code.format(chunk=chunk), TORCHINDUCTOR_CACHE_DIR=str(tmp_path)).splitlines()[0]
        for chunk in (4, 8, None, 4)
    ]
    assert outcomes == ["miss chunked", "miss chunked", "miss whole", "hit chunked"]
