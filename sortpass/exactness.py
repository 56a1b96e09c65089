"""Say whether the results of a rewritten region are, bit for bit, those of the region as written.

Decided from the level of each op (``rules/exactness.py``) and the setting it runs in: the device, the inner compiler,
the fewest rows a window holds. The claim is about the region: the same inputs give the same results. What surrounds a
region is compiled anew by a compiler that fuses, with or without this pass.

    bitwise         every op is promised to be exact in this setting
    indices-exact   the sorts are, with all they depend on in the region: same order, same indices; what follows is not
    close           what is sorted may differ in its last bits, so nearly equal elements may change places
    distribution    it draws from a generator (``allow_rng=True``): other values of the same distribution
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.fx as fx

from sortpass.config import EAGER_INNERS, ChunkConfig
from sortpass.plan import ChunkPlan
from sortpass.region import Region
from sortpass.report import op_name
from sortpass.rules import Exactness, exactness_of
from sortpass.sites import SECONDARY_OPS, SORT_OPS
from sortpass.torch_compat import fake_values

BITWISE, INDICES_EXACT, CLOSE, DISTRIBUTION = "bitwise", "indices-exact", "close", "distribution"
WEAKEST_FIRST = (DISTRIBUTION, CLOSE, INDICES_EXACT, BITWISE)


@dataclasses.dataclass(frozen=True)
class Setting:
    """Where the windows of a region run.

    Attributes:
        device: type of the device, e.g. ``"cpu"``.
        inner: the inner compiler, as in :class:`~sortpass.config.ChunkConfig`.
        fewest_steps: the fewest steps along the row dim that a window holds.
    """

    device: str
    inner: str | Callable[..., Any]
    fewest_steps: int

    @property
    def is_eager(self) -> bool:
        return self.inner in EAGER_INNERS


@dataclasses.dataclass(frozen=True)
class RegionExactness:
    """The level of a region.

    Attributes:
        level: ``"bitwise"``, ``"indices-exact"``, ``"close"`` or ``"distribution"``.
        blamed: the first op that draws, else the first that cannot promise to be exact; None where the level is
            ``"bitwise"``.
        why: one sentence about it, and what would help.
    """

    level: str
    blamed: fx.Node | None = None
    why: str = ""


def judge_plan(plan: ChunkPlan, config: ChunkConfig) -> RegionExactness:
    """The level of a region when it is run as planned, by the inner compiler of the options."""
    device = next(fake_values(plan.region.site.node)).device
    return judge_region(plan.region, Setting(device.type, config.inner, fewest_steps(plan)))


def fewest_steps(plan: ChunkPlan) -> int:
    """The fewest steps any window may hold at run time; 0 where nothing is known.

    A loop of ``N > C`` steps has ``n <= (N + C - 1) / C`` windows of ``N / n >= (C + 1) / 2`` steps: at least 2 for
    ``C = 2``. An unbacked ``N`` gets a window more.
    """
    if isinstance(plan.steps, int) and isinstance(plan.num_windows, int) and isinstance(plan.window_steps, int):
        return plan.window_steps if plan.form == "loop" else plan.steps // max(plan.num_windows, 1)
    if plan.form == "unroll" or not isinstance(plan.step_limit, int):
        return 0
    return (plan.step_limit + 1) // 2 if plan.may_be_empty else (plan.step_limit + 2) // 2


def judge_region(region: Region, setting: Setting) -> RegionExactness:
    """The level of a region in a setting."""
    levels = {node: exactness_of(node, dim) for node, dim in region.row_dims.items()}
    inexact = [node for node in region.nodes if not is_promised(levels[node], _dtypes(node), setting)]
    if not inexact:
        return RegionExactness(BITWISE)
    if draw := next((node for node in inexact if levels[node] is Exactness.DRAWS), None):
        return RegionExactness(DISTRIBUTION, draw, _why(draw, Exactness.DRAWS, setting))
    sorts = [node for node in region.nodes if node.target in (*SORT_OPS, *SECONDARY_OPS)]
    # Without a sort there are no indices to promise: an argmax of what is inexact may be another.
    level = CLOSE if not sorts or _ancestors_in(region, sorts) & set(inexact) else INDICES_EXACT
    return RegionExactness(level, inexact[0], _why(inexact[0], levels[inexact[0]], setting))


def is_promised(level: Exactness, dtypes: Iterable[torch.dtype], setting: Setting) -> bool:
    """Whether an op of this level with outputs of these dtypes is exact in a setting."""
    cpu = setting.device == "cpu"
    if level is Exactness.PICKS:
        # Inductor calls ATen's kernels for these; what another compiler does is not known.
        return cpu and (setting.is_eager or setting.inner == "inductor")
    if level is Exactness.ROUNDS:
        # Inductor's C++ neither contracts nor re-associates, but keeps half-precision intermediates in float32.
        in_full = all(dtype in (torch.float32, torch.float64) for dtype in dtypes if dtype.is_floating_point)
        return setting.is_eager or (cpu and setting.inner == "inductor" and in_full)
    if level is Exactness.ROWWISE:
        return cpu and setting.is_eager and setting.fewest_steps >= 2
    return level is Exactness.COPIES


def weakest(*levels: str) -> str:
    return min(levels, key=WEAKEST_FIRST.index)


def _dtypes(node: fx.Node) -> set[torch.dtype]:
    return {value.dtype for value in fake_values(node)}


def _ancestors_in(region: Region, nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """The nodes, and all members they depend on."""
    members, found, frontier = set(region.nodes), set(nodes), list(nodes)
    while frontier:
        for node in frontier.pop().all_input_nodes:
            if node in members and node not in found:
                found.add(node)
                frontier.append(node)
    return found


def _why(node: fx.Node, level: Exactness, setting: Setting) -> str:
    inner = setting.inner if isinstance(setting.inner, str) else getattr(setting.inner, "__name__", "a callable")
    where = f"on {setting.device} under {inner}"
    advice = "exactness='any' rewrites it all the same"
    if level is Exactness.DRAWS:
        return f"{op_name(node)} {level.value}, which gives other values of the same distribution; {advice}"
    if level is Exactness.ROWWISE and setting.device == "cpu":
        if setting.is_eager:
            where = "in a window of one row"
            advice = "windows of two rows or more keep it exact (row_chunk=3 where the form is 'unroll')"
        else:
            advice = "inner='aot_eager' keeps it exact"
    return f"{op_name(node)} {level.value}, which {where} may depend on the number of rows; {advice}"
