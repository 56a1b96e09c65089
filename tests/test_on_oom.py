"""``on_oom="shrink"``: a call that runs out of memory is run again with fewer rows, where that can do no harm."""

from __future__ import annotations

import contextlib
import copy
import gc
import threading
import weakref
from typing import Any

import pytest
import torch
from helpers import TINY, assert_same, capture_graph, compile_chunked
from test_backend import run_python
from torch._dynamo.exc import SkipFrame
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache
from torch.utils._python_dispatch import TorchDispatchMode

import sortpass

OUT_OF_MEMORY = {
    "cuda": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB."),
    "cpu": RuntimeError("[enforce fail] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes."),
}


class LimitedMemory:
    """An inner compiler that runs graphs as they are, and has no memory for a sort of more than so many rows.

    Attributes:
        compiles: graphs compiled.
        calls: calls of what it compiled.
        scratch: what each failed call had allocated.
        was_freed: whether that was gone each time something was compiled or run after it.
    """

    def __init__(self, rows: int, error: RuntimeError = OUT_OF_MEMORY["cuda"]) -> None:
        self.rows, self.error = rows, error
        self.compiles = self.calls = 0
        self.was_freed = True
        self.scratch: list[weakref.ref[torch.Tensor]] = []

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
        self.compiles += 1
        self.was_freed &= all(ref() is None for ref in self.scratch)
        for module in (m for m in gm.modules() if isinstance(m, torch.fx.GraphModule)):
            for node in module.graph.nodes:
                if "aten.sort" in str(node.target):
                    with module.graph.inserting_before(node):
                        module.graph.call_function(self.check, (node.args[0],))
            module.recompile()

        def call(*args: Any) -> Any:
            self.calls += 1
            return gm(*args)

        return call

    def check(self, keys: torch.Tensor) -> None:
        self.was_freed &= all(ref() is None for ref in self.scratch)
        if keys.numel() // keys.shape[-1] > self.rows:
            scratch = torch.empty(10)
            self.scratch.append(weakref.ref(scratch))
            raise copy.copy(self.error)


class LimitedSort(TorchDispatchMode):
    """The same for what Inductor compiled, whose code calls the operator."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "aten.sort" in str(func) and args[0].shape[0] > self.rows:
            raise copy.copy(OUT_OF_MEMORY["cpu"])
        return func(*args, **(kwargs or {}))


def sort_cumsum(x: Any) -> Any:
    return x.sort(-1)[0].cumsum(-1)


def shrinking(fn: Any, inner: Any, **options: Any) -> Any:
    return compile_chunked(fn, inner, on_oom="shrink", **{"row_chunk": 16, **options})


def assert_is_original(cause: BaseException | None, error: RuntimeError) -> None:
    assert type(cause) is type(error) and str(cause) == str(error)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage().split(" (")[0] for record in caplog.records if record.name.startswith("sortpass")]


LADDER = [
    "out of memory with 16 rows a chunk; compiling the graph again with row_chunk=8",
    "out of memory with 8 rows a chunk; compiling the graph again with row_chunk=4",
]


@pytest.mark.parametrize("kind", OUT_OF_MEMORY)
def test_the_row_chunk_is_halved_until_the_call_fits_and_later_calls_start_there(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    memory = LimitedMemory(4, OUT_OF_MEMORY[kind])
    step = shrinking(sort_cumsum, memory)
    x = torch.randn(40, 20)
    with sortpass.capture_reports() as reports:
        assert torch.equal(step(x), sort_cumsum(x))
    assert [report.sites[0].row_chunk for report in reports] == [16, 8, 4]
    assert warnings_of(caplog) == LADDER
    assert (memory.compiles, memory.calls) == (3, 3)
    assert len(memory.scratch) == 2 and memory.was_freed
    assert torch.equal(step(x + 1), sort_cumsum(x + 1))
    assert (memory.compiles, memory.calls, len(warnings_of(caplog))) == (3, 4, 2)


def test_where_the_budget_decided_half_of_its_rows_are_next(caplog: pytest.LogCaptureFixture) -> None:
    x = torch.randn(400, 2_000)
    options = {"row_chunk": None, "memory_budget": "1MiB"}
    with sortpass.capture_reports() as reports:
        compile_chunked(sort_cumsum, **options)(x)
    (rows,) = (report.sites[0].row_chunk for report in reports)
    assert torch.equal(shrinking(sort_cumsum, LimitedMemory(rows // 2), **options)(x), sort_cumsum(x))
    assert warnings_of(caplog) == [
        f"out of memory with {rows} rows a chunk; compiling the graph again with row_chunk={rows // 2}"
    ]


def test_a_dynamic_graph_is_shrunk_once_for_every_batch_size(caplog: pytest.LogCaptureFixture) -> None:
    memory = LimitedMemory(4)
    step = shrinking(sort_cumsum, memory, dynamic=True)
    for rows in (40, 33, 100, 17, 40, 64):
        x = torch.randn(rows, 20)
        assert torch.equal(step(x), sort_cumsum(x))
    assert warnings_of(caplog) == LADDER
    assert memory.compiles == 3


def test_two_dynamic_batch_dims_stay_right() -> None:
    memory = LimitedMemory(2)
    step = shrinking(sort_cumsum, memory, dynamic=True, row_chunk=6)
    for shape in [(9, 4, 7), (30, 2, 7), (2, 30, 7), (20, 20, 7), (5, 3, 7), (3, 5, 7)]:
        x = torch.randn(shape)
        assert torch.equal(step(x), sort_cumsum(x))


def test_a_shrunk_graph_is_not_used_for_sizes_it_was_not_compiled_for(caplog: pytest.LogCaptureFixture) -> None:
    class OnlyEven(LimitedMemory):
        def __call__(self, gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
            if self.compiles:
                assert self.calls and any(size % 2 == 0 for size in example_inputs[-1].shape)  # a guard
            return super().__call__(gm, example_inputs)

    memory = OnlyEven(8)
    step = shrinking(sort_cumsum, memory, dynamic=True)
    for rows in (40, 100):
        x = torch.randn(rows, 20)
        assert torch.equal(step(x), sort_cumsum(x))
    with pytest.raises(torch.OutOfMemoryError, match="did not run it again: .* serves only other sizes"):
        step(torch.randn(41, 20))
    assert torch.equal(step(x), sort_cumsum(x))


@pytest.mark.parametrize("kind", OUT_OF_MEMORY)
def test_at_one_row_the_original_error_is_raised_with_the_advice(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    memory = LimitedMemory(0, OUT_OF_MEMORY[kind])
    step = shrinking(sort_cumsum, memory, row_chunk=5)
    with pytest.raises(type(memory.error), match="lower row_chunk or memory_budget to lower the peak") as raised:
        step(torch.randn(40, 20))
    assert_is_original(raised.value.__cause__, memory.error)
    assert str(memory.error) in str(raised.value)
    assert str(raised.value).endswith("on_oom='shrink' did not run it again: it already runs one row at a time")
    assert memory.calls == 3  # 5, 2 and 1 rows
    assert len(warnings_of(caplog)) == 2


def test_a_graph_in_which_nothing_was_rewritten_is_not_run_again() -> None:
    memory = LimitedMemory(4)
    with pytest.raises(torch.OutOfMemoryError, match="nothing to shrink; chunked 0 of 1 sorts"):
        shrinking(sort_cumsum, memory)(torch.randn(10, 20))
    assert memory.calls == 1


def test_a_chunk_that_cannot_be_unrolled_is_not_tried() -> None:
    memory = LimitedMemory(8)
    step = shrinking(sort_cumsum, memory, form="unroll", max_unroll=4)
    with pytest.raises(torch.OutOfMemoryError, match="row_chunk=8 would not make it smaller; .* max_unroll=4"):
        step(torch.randn(64, 20))
    assert memory.compiles == 1


@pytest.mark.parametrize("rows", [4, 0], ids=["fits", "gives up"])
def test_no_frame_of_a_failed_call_keeps_the_input(rows: int) -> None:
    step = shrinking(sort_cumsum, LimitedMemory(rows))
    x = torch.randn(40, 20)
    ref = weakref.ref(x)
    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(torch.OutOfMemoryError):
            step(x)
        del x
        assert ref() is None
    finally:
        gc.enable()


def test_other_errors_are_not_run_again(caplog: pytest.LogCaptureFixture) -> None:
    memory = LimitedMemory(4, RuntimeError("something else"))
    with pytest.raises(RuntimeError, match="^something else$"):
        shrinking(sort_cumsum, memory)(torch.randn(40, 20))
    assert memory.calls == 1 and not warnings_of(caplog)


def draw(x: Any) -> Any:
    return x.sort(-1)[0].softmax(-1).multinomial(1)


def draw_after(x: Any) -> Any:
    return sort_cumsum(x), torch.rand_like(x)


def write(x: Any) -> Any:
    return x.masked_fill_(sort_cumsum(x) > 0, 3.0)


def write_first(x: Any) -> Any:
    return sort_cumsum(x.add_(1))


@pytest.mark.parametrize(
    ("fn", "wants_gradients", "reason"),
    [
        (draw, False, "multinomial .aten.multinomial.default. draws random numbers"),
        (draw_after, False, "rand_like .aten.rand_like.default. draws random numbers"),
        (draw_after, True, "rand_like .aten.rand_like.default. draws random numbers"),
        (write, False, "copy_ .aten.copy_.default. writes into its input"),
        (write_first, False, "copy_ .aten.copy_.default. writes into its input"),
        (write_first, True, "it writes into its inputs"),
    ],
)
def test_a_graph_that_would_do_something_twice_is_not_run_again(
    fn: Any, wants_gradients: bool, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    memory = LimitedMemory(4)
    x = torch.randn(40, 20, requires_grad=wants_gradients) * 1
    before = x.detach().clone()
    state = torch.get_rng_state()
    with pytest.raises(torch.OutOfMemoryError, match=f"on_oom='shrink' did not run it again: {reason}") as raised:
        shrinking(fn, memory)(x)
    assert_is_original(raised.value.__cause__, memory.error)
    assert (memory.compiles, memory.calls) == (1, 1)
    assert torch.equal(x.detach(), before) and torch.equal(torch.get_rng_state(), state)
    assert not warnings_of(caplog)


def test_a_collective_is_not_run_again() -> None:
    from sortpass.shrink import why_not_again

    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.call_function(torch.ops.aten.sym_constrain_range.default, (3,), {"min": 0})
    graph.call_function(torch.ops.aten.sort.default, (x,))
    assert why_not_again(graph) is None
    graph.call_function(torch.ops._c10d_functional.all_reduce.default, (x, "sum", "0"))
    assert why_not_again(graph) == "all_reduce_default (_c10d_functional.all_reduce.default) may have effects"


def test_a_compile_that_fails_raises_the_original_error(caplog: pytest.LogCaptureFixture) -> None:
    class CompilesOnce(LimitedMemory):
        def __call__(self, gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
            if self.compiles:
                raise SkipFrame("this frame is skipped")
            return super().__call__(gm, example_inputs)

    memory = CompilesOnce(4)
    with pytest.raises(torch.OutOfMemoryError, match="compiling it again failed .SkipFrame: this frame") as raised:
        shrinking(sort_cumsum, memory)(torch.randn(40, 20))
    assert_is_original(raised.value.__cause__, memory.error)
    assert caplog.records[-1].exc_info is not None


def test_a_graph_that_is_not_from_dynamo_raises_the_original_error() -> None:
    x = torch.randn(40, 20)
    memory = LimitedMemory(1_000)
    options = {**TINY, "on_oom": "shrink", "inner": memory}
    step = sortpass.chunked_sort(capture_graph(sort_cumsum, x), [x], options=options)
    assert torch.equal(step(x)[0], sort_cumsum(x))
    memory.rows = 1
    with pytest.raises(torch.OutOfMemoryError, match="did not run it again: compiling it again failed"):
        step(x)


def test_gradients_are_as_whole() -> None:
    memory = LimitedMemory(4)
    step = shrinking(sort_cumsum, memory)
    x = torch.randn(40, 20, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    for _ in range(2):
        step(x).square().sum().backward()
        sort_cumsum(y).square().sum().backward()
    assert_same([x.grad], [y.grad])


def test_threads_that_run_out_of_memory_at_once_shrink_once(caplog: pytest.LogCaptureFixture) -> None:
    both_failed = threading.Barrier(2, timeout=60)

    class Meeting(LimitedMemory):
        def check(self, keys: torch.Tensor) -> None:
            if keys.shape[0] > self.rows:
                both_failed.wait()
                raise copy.copy(self.error)

    memory = Meeting(1_000)
    step = shrinking(sort_cumsum, memory)
    x = torch.randn(40, 20)
    step(x)
    memory.rows = 8
    results: list[Any] = []
    threads = [threading.Thread(target=lambda i=i: results.append((i, step(x + i)))) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 2
    assert all(torch.equal(out, sort_cumsum(x + i)) for i, out in results)
    assert memory.compiles == 2
    assert warnings_of(caplog) == LADDER[:1]


def test_what_a_cache_had_is_shrunk_too(caplog: pytest.LogCaptureFixture) -> None:
    x = torch.randn(40, 20)
    with fresh_cache():
        for _ in range(2):
            counters.clear()
            step = shrinking(sort_cumsum, "inductor", dynamic=True)
            step(x)
        assert counters["aot_autograd"]["autograd_cache_hit"] == 1
        for rows in (40, 33):
            with LimitedSort(8):
                out = step(x[:rows])
            assert torch.equal(out, sort_cumsum(x[:rows]))
    assert warnings_of(caplog) == LADDER[:1]


def test_under_a_memory_limit_inductor_shrinks_until_it_fits() -> None:
    printed = run_python(
        """
        import resource
        from pathlib import Path
        import torch

        def step(x):
            return x.sort(-1)[0].softmax(-1).cumsum(-1)

        x = torch.randn(512, 32_000)
        options = {"row_chunk": 256, "min_bytes": 1, "on_oom": "shrink"}
        chunked = torch.compile(step, backend="chunked_sort", options=options)
        raising = torch.compile(lambda x: step(x), backend="chunked_sort", options={**options, "on_oom": "raise"})
        expected = chunked(x)
        raising(x)

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + int(2.4 * x.nbytes)
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        try:
            raising(x)
        except RuntimeError as error:
            print("can't allocate memory" in str(error), "does not fit")
        chunked(x)
        out = chunked(x)
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        print(torch.allclose(out, expected), "fits")
        """,
        MALLOC_MMAP_THRESHOLD_=str(2**20),  # so that what is freed is given back
    )
    assert [line for line in printed.splitlines() if line.startswith(("True", "False"))] == [
        "True does not fit",
        "True fits",
    ]
    assert "out of memory with 256 rows a chunk; compiling the graph again with row_chunk=128" in printed
