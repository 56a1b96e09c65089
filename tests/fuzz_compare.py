"""Run a program and look at everything its caller could notice.

The same exception type; or the same bits, dtypes, shapes and strides, the same storage shared by the same outputs and
inputs, the same writes into the inputs and the same state of the random generator.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Collection
from typing import Any

import torch


class Difference(AssertionError):
    """Something a caller could notice."""


class LayoutDifference(Difference):
    """Other strides, or an error that other strides may have led to."""


@dataclasses.dataclass(frozen=True)
class Observation:
    """All that a caller can see of one run."""

    error: Exception | None
    outputs: list[torch.Tensor]
    inputs: list[torch.Tensor]
    random_state: torch.Tensor


def observe(fn: Callable[..., Any], inputs: Callable[[int], list[Any]], rows: int) -> Observation:
    """Run on fresh inputs from a fixed seed."""
    args = inputs(rows)
    torch.default_generator.manual_seed(1)
    try:
        outputs, error = list(fn(*args)), None
    except Exception as raised:
        outputs, error = [], raised
    return Observation(error, outputs, args, torch.get_rng_state())


def compare(
    whole: Observation, chunked: Observation, *, bitwise: bool, draws: bool = False, drawn: Collection[int] | None = ()
) -> None:
    """Raise where two runs differ.

    Args:
        whole: the run without the pass.
        chunked: the run with it.
        bitwise: whether floats must agree to the bit, or may round differently.
        draws: whether windows drew numbers of their own, which leaves the generator in another state.
        drawn: positions of outputs whose values those numbers decide; None where they may be any, inputs included.
    """
    if draws and drawn is None and (whole.error is None) != (chunked.error is None):
        return  # other numbers may be no index
    if whole.error or chunked.error:
        same = type(whole.error) is type(chunked.error)
        require(same, f"whole: {_brief(whole.error)}\nchunked: {_brief(chunked.error)}", LayoutDifference)
        return
    require(len(whole.outputs) == len(chunked.outputs), "another number of outputs")
    for kind, left, right in (("output", whole.outputs, chunked.outputs), ("input", whole.inputs, chunked.inputs)):
        for position, (a, b) in enumerate(zip(left, right, strict=True)):
            facts = [(t.dtype, tuple(t.shape)) for t in (a, b)]
            require(facts[0] == facts[1], f"{kind} {position}: {facts[0]} became {facts[1]}")
            may_differ = drawn is None or (kind == "output" and position in drawn)
            same = may_differ or same_bits(a, b) or (not bitwise and are_close(a, b))
            require(same, f"{kind} {position}: values differ\nwhole {a}\nchunked {b}")
            what = f"{kind} {position}: strides {a.stride()} became {b.stride()}"
            require(strides_of(a) == strides_of(b), what, LayoutDifference)
    sharing = [_sharing([*seen.inputs, *seen.outputs]) for seen in (whole, chunked)]
    require(sharing[0] == sharing[1], f"storage is shared otherwise: {sharing[0]} became {sharing[1]}")
    require(draws or torch.equal(whole.random_state, chunked.random_state), "the generator's state differs")


def strides_of(tensor: torch.Tensor) -> list[int | None]:
    """The strides that lead anywhere; along a dim of size 1 even torch's real and fake kernels disagree."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return [stride if size > 1 and tensor.numel() else None for size, stride in pairs]


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal to the sign of zero; NaN equals NaN."""
    if torch.equal(a, b) and not a.dtype.is_floating_point:
        return True
    both_nan = a.isnan() & b.isnan()
    return bool((((a == b) & (a.signbit() == b.signbit())) | both_nan).all())


def are_close(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal up to the rounding of a sum."""
    if not a.dtype.is_floating_point:
        return False
    tolerance = 64 * torch.finfo(a.dtype).eps
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)


def _sharing(tensors: list[torch.Tensor]) -> list[tuple[int, int, int]]:
    """Pairs of tensors in one storage, with the distance between their starts."""
    return [
        (i, j, tensors[j].storage_offset() - tensors[i].storage_offset())
        for i, j in itertools.combinations(range(len(tensors)), 2)
        if tensors[i].numel() and tensors[i].untyped_storage()._cdata == tensors[j].untyped_storage()._cdata
    ]


def require(holds: bool, what: str, kind: type[Difference] = Difference) -> None:
    if not holds:
        raise kind(what)


def _brief(error: Exception | None) -> str:
    return "no error" if error is None else f"{type(error).__name__}: {str(error)[:800]}"
