"""The demo: one sampling step of a random Llama, compiled whole and in row chunks, side by side."""

from __future__ import annotations

import dataclasses
import statistics
import textwrap
from collections.abc import Callable
from typing import Any

import torch

from sortpass.console import Progress, Table, require
from sortpass.measure import interleaved_times, own_code, peak_bytes
from sortpass.report import PassReport, SiteReport, capture_reports

TOP_P = 0.9
PROMPT_TOKENS = 8
SEED = 0
LINE_WIDTH = 110  # columns of the text below the table

Step = Callable[[torch.Tensor], torch.Tensor]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DemoSettings:
    """What the demo runs.

    Attributes:
        rows: sequences in the batch.
        vocab: tokens in the vocabulary.
        row_chunk: rows, the option of the backend.
        hidden: hidden size of the model; it has one layer.
        inner: the compiler of both variants.
        rounds: timed runs of each variant.
        device: where everything runs.
    """

    rows: int = 256
    vocab: int = 128_256
    row_chunk: int = 64
    hidden: int = 64
    inner: str = "inductor"
    rounds: int = 3
    device: str = "cpu"

    @property
    def num_units(self) -> int:
        """Ticks of progress: the model, then each variant's compile, peak, warm-up and timed runs."""
        return 1 + 2 * (3 + self.rounds)


@dataclasses.dataclass(frozen=True)
class DemoRow:
    """One variant.

    Attributes:
        variant: its name.
        peak_bytes: bytes above the logits, the most at once during the step.
        bytes_per_logit: the same per element of the logits.
        seconds: median time of the step.
        same_tokens: rows whose token is the one of the whole variant.
    """

    variant: str
    peak_bytes: int
    bytes_per_logit: float
    seconds: float
    same_tokens: int


@dataclasses.dataclass(frozen=True)
class DemoResult:
    """Both variants, whole first, and what the pass did in the second."""

    settings: DemoSettings
    rows: tuple[DemoRow, ...]
    reports: tuple[PassReport, ...]


def run_demo(settings: DemoSettings, progress: Progress) -> DemoResult:
    """Make logits, compile the step twice, measure both."""
    progress.stage("model forward")
    logits = last_logits(settings)
    progress.tick()
    chunked = f"chunked, row_chunk={settings.row_chunk}"
    # min_bytes=1, so that small trial sizes are rewritten too.
    options: dict[str, Any] = {"row_chunk": settings.row_chunk, "inner": settings.inner, "min_bytes": 1}
    steps: dict[str, Step] = {
        f"whole ({settings.inner})": torch.compile(own_code(sample_step()), backend=settings.inner),
        chunked: torch.compile(own_code(sample_step()), backend="chunked_sort", options=options),
    }
    runs = {name: _seeded(step, logits) for name, step in steps.items()}
    tokens: dict[str, torch.Tensor] = {}
    # Every report is of the chunked variant: the other one does not run the pass.
    with capture_reports() as reports:
        for name, run in runs.items():
            progress.stage(f"compile {name}")
            tokens[name] = run()
            progress.tick()
    peaks = {}
    for name, run in runs.items():
        progress.stage(f"peak memory of {name}")
        peaks[name] = peak_bytes(run, settings.device)
        progress.tick()
    progress.stage("time of both, in turn")
    seconds = interleaved_times(runs, rounds=settings.rounds, device=settings.device, tick=progress.tick)
    expected = next(iter(tokens.values()))
    rows = (
        DemoRow(
            name,
            peaks[name],
            peaks[name] / logits.numel(),
            statistics.median(seconds[name]),
            int((tokens[name] == expected).sum()),
        )
        for name in runs
    )
    return DemoResult(settings, tuple(rows), tuple(reports))


def last_logits(settings: DemoSettings) -> torch.Tensor:
    """Float32 logits ``[rows, vocab]`` after a random prompt, from a Llama with random weights; runs eagerly."""
    transformers = require("transformers", "hf")
    torch.manual_seed(SEED)
    config = transformers.LlamaConfig(
        vocab_size=settings.vocab,
        hidden_size=settings.hidden,
        intermediate_size=2 * settings.hidden,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        # Spreads the logits like a trained model's; the default of 0.02 gives every token the same probability.
        initializer_range=0.5,
    )
    model = transformers.LlamaForCausalLM(config).eval().to(settings.device)
    prompt = torch.randint(settings.vocab, (settings.rows, PROMPT_TOKENS), device=settings.device)
    with torch.no_grad():
        return model(prompt, logits_to_keep=1, use_cache=False).logits[:, -1].float()


def sample_step() -> Step:
    """The step users compile: HF's top-p warper, softmax and a draw; ``[rows, vocab]`` logits to ``[rows]`` tokens."""
    logits_process = require("transformers.generation.logits_process", "hf")
    warper = logits_process.TopPLogitsWarper(TOP_P)

    def step(logits: torch.Tensor) -> torch.Tensor:
        scores = warper(None, logits)
        return torch.multinomial(scores.softmax(dim=-1), num_samples=1).squeeze(1)

    return step


def _seeded(step: Step, logits: torch.Tensor) -> Callable[[], Any]:
    def run() -> torch.Tensor:
        torch.manual_seed(SEED)
        return step(logits)

    return run


def demo_table(result: DemoResult) -> Table:
    """Both variants as a table."""
    settings = result.settings
    return Table(
        f"One top-p sampling step, logits [{settings.rows}, {settings.vocab}] float32 on {settings.device}, "
        f"median of {settings.rounds}",
        ("variant", "peak MiB", "B/logit", "time s", "tokens identical"),
        [
            (
                row.variant,
                f"{row.peak_bytes / 2**20:.1f}",
                f"{row.bytes_per_logit:.2f}",
                f"{row.seconds:.3f}",
                _identical(row, settings) if i else "-",
            )
            for i, row in enumerate(result.rows)
        ],
    )


def _identical(row: DemoRow, settings: DemoSettings) -> str:
    return "yes" if row.same_tokens == settings.rows else f"no, {row.same_tokens} of {settings.rows}"


def describe_rewrite(result: DemoResult) -> list[str]:
    """What the pass did, as lines of text."""
    sites = [site for report in result.reports for site in report.sites]
    rewritten = sum(report.num_rewritten for report in result.reports)
    lines = [f"rewritten {rewritten} of {len(sites)} sorts (Inductor's caches are bypassed while reports are captured)"]
    for site in sites:
        lines.extend(_describe_site(site))
    return lines


def _describe_site(site: SiteReport) -> list[str]:
    lines = [f"  {site.node} ({site.op}): {site.reason}"]
    if site.region_ops:
        lines.append(f"    per window: {', '.join(site.region_ops)}")
    lines.extend(f"    kept out: {stop.node}: {stop.detail}" for stop in site.boundary)
    return [part for line in lines for part in textwrap.wrap(line, LINE_WIDTH, subsequent_indent=" " * 6)]
