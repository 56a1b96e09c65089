"""The commands ``sortpass demo``, ``explain``, ``compare``, ``bench``, ``doctor``; also as ``python -m sortpass``."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import platform
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from sortpass import console
from sortpass.inspect_commands import add_target, run_compare, run_doctor, run_explain
from sortpass.measure import check_meter
from sortpass.samplers import SAMPLERS

if TYPE_CHECKING:
    from sortpass.bench_data import BenchResult


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit status: 1 where a check of ``bench`` failed."""
    # Hides the profiler's "USDT: ... profiler_start" lines; read at the first profile, so torch may be imported.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    argv = sys.argv[1:] if argv is None else argv
    args = _parser().parse_args(argv)
    return args.command(args, argv)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m sortpass", description="Bound the peak memory of sorting logits.")
    commands = parser.add_subparsers(required=True, metavar="{demo,explain,compare,bench,doctor}")
    _add_demo(
        commands.add_parser("demo", formatter_class=_Formatter, help="compare one sampling step, whole and chunked")
    )
    _add_bench(
        commands.add_parser("bench", formatter_class=_Formatter, help="measure peak memory and time of a sampler")
    )
    _add_inspection(commands)
    return parser


def _add_inspection(commands: Any) -> None:
    """``explain``, ``compare`` and ``doctor``."""
    explain = commands.add_parser("explain", formatter_class=_Formatter, help="what the pass would do to your function")
    add_target(explain)
    explain.add_argument("--json", type=Path, metavar="FILE", help="also write reports and diff there")
    explain.set_defaults(command=run_explain)
    compare = commands.add_parser("compare", formatter_class=_Formatter, help="run your function whole and chunked")
    add_target(compare)
    compare.add_argument("--rounds", type=positive_int, default=5, help="timed runs of each")
    compare.set_defaults(command=run_compare)
    doctor = commands.add_parser("doctor", help="check that everything sortpass needs is here")
    doctor.set_defaults(command=run_doctor)


def _add_demo(demo: argparse.ArgumentParser) -> None:
    demo.description = (
        "Sample from a random Llama with a top-p step compiled whole and in row chunks; minutes on a CPU."
    )
    demo.add_argument("--rows", type=positive_int, default=256, help="sequences in the batch")
    demo.add_argument("--vocab", type=positive_int, default=128_256, help="tokens in the vocabulary")
    demo.add_argument("--row-chunk", type=positive_int, default=64, help="most rows a chunk works on")
    demo.add_argument("--hidden", type=positive_int, default=64, help="hidden size of the model")
    demo.add_argument("--inner", type=backend_name, default="inductor", help="compiler of both variants")
    demo.add_argument("--rounds", type=positive_int, default=3, help="timed runs of each variant")
    demo.add_argument("--plot", type=Path, metavar="FILE", help="also draw peak and time as a PNG")
    demo.set_defaults(command=_demo)


def _add_bench(bench: argparse.ArgumentParser) -> None:
    bench.description = "Exit status 1 means that a stated bound was broken or a chunked result differed."
    bench.add_argument("--num-tokens", type=positive_int, default=512, help="rows of the logits")
    bench.add_argument("--vocab-size", type=positive_int, default=128_256, help="columns of the logits")
    bench.add_argument("--row-chunk", type=positive_int, nargs="+", default=[64, 8], help="most rows a chunk works on")
    bench.add_argument("--rounds", type=positive_int, default=5, help="timed runs of each variant")
    bench.add_argument(
        "--inner", type=backend_name, nargs="+", default=["aot_eager", "inductor"], help="compilers to try"
    )
    bench.add_argument("--sampler", choices=tuple(SAMPLERS), default="top_p", help="what to run on the logits")
    bench.add_argument("--device", type=device_name, default="cpu", help="cpu or cuda")
    bench.add_argument("--check-accuracy", action="store_true", help="compare chunked results with whole, bit by bit")
    bench.add_argument("--scaling", action="store_true", help="also peaks at a quarter, half and all of the rows")
    bench.add_argument("--output-dir", type=Path, metavar="DIR", help="write bench.json and bench.png there")
    bench.set_defaults(command=_bench)


class _Formatter(argparse.ArgumentDefaultsHelpFormatter):
    """Shows defaults, but not of options that have none."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return super()._get_help_string(action) if action.default not in (None, False) else action.help


def positive_int(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is less than 1")
    return value


def backend_name(text: str) -> str:
    names = torch._dynamo.list_backends(None)
    if text not in names:
        raise argparse.ArgumentTypeError(f"{text!r} is no registered backend; choices are: {', '.join(names)}")
    return text


def device_name(text: str) -> str:
    if text.partition(":")[0] not in ("cpu", "cuda"):
        raise argparse.ArgumentTypeError(f"{text!r} is no device the meter can read; choices are: cpu, cuda, cuda:N")
    if text.startswith("cuda") and not torch.cuda.is_available():
        raise argparse.ArgumentTypeError(f"{text!r}: this torch finds no CUDA device")
    return text


def _demo(args: argparse.Namespace, argv: list[str]) -> int:
    # Imported here, so that --help does not wait for it.
    from sortpass.demo import DemoSettings, demo_table, describe_rewrite, run_demo

    if args.plot is not None:
        console.require("matplotlib", "plot")
    settings = DemoSettings(
        rows=args.rows,
        vocab=args.vocab,
        row_chunk=args.row_chunk,
        hidden=args.hidden,
        inner=args.inner,
        rounds=args.rounds,
        device="cuda" if torch.cuda.is_available() else "cpu",
    )
    with console.progress(settings.num_units) as progress:
        result = run_demo(settings, progress)
    console.show(demo_table(result))
    for line in describe_rewrite(result):
        console.say(line)
    if args.plot is not None:
        from sortpass.plots import plot_demo

        plot_demo(result, args.plot)
        console.say(f"wrote {args.plot}")
    return 0


def _bench(args: argparse.Namespace, argv: list[str]) -> int:
    from sortpass.bench import run_bench
    from sortpass.bench_data import BenchSettings

    meter = check_meter()
    console.say(f"peak meter: torch.sort on CPU reads {meter:.2f} bytes per fp32 logit, 12 expected: pass")
    settings = BenchSettings(
        num_tokens=args.num_tokens,
        vocab_size=args.vocab_size,
        row_chunks=tuple(dict.fromkeys(args.row_chunk)),
        inners=tuple(dict.fromkeys(args.inner)),
        sampler=args.sampler,
        rounds=args.rounds,
        device=args.device,
        check_accuracy=args.check_accuracy,
        scaling=args.scaling,
    )
    with console.progress(settings.num_units) as progress:
        result = run_bench(settings, progress)
    for inner in settings.inners:
        console.show(_bench_table(result, inner))
    if settings.scaling:
        console.show(_scaling_table(result))
    if args.output_dir is not None:
        _write(
            args.output_dir,
            {"environment": _environment(argv, settings.device), "meter_bytes_per_logit": meter},
            result,
        )
    return 0 if result.passed else 1


def _bench_table(result: BenchResult, inner: str) -> console.Table:
    """The rows of one inner."""
    settings = result.settings
    return console.Table(
        f"{settings.sampler}, inner={inner}, logits [{settings.num_tokens}, {settings.vocab_size}] float32 on "
        f"{settings.device}, median of {settings.rounds}",
        ("variant", "MiB", "B/logit", "peak ratio", "time s", "time ratio", "compile s", "bound", "equal", "rewritten"),
        [
            (
                row.variant,
                f"{row.peak_bytes / 2**20:.1f}",
                f"{row.bytes_per_logit:.2f}",
                f"{row.peak_ratio:.2f}",
                f"{row.seconds:.3f}",
                f"{row.time_ratio:.2f}",
                "-" if row.compile_seconds is None else f"{row.compile_seconds:.1f}",
                "-" if row.bound is None else f"{row.bound:.2f} {_mark(row.within_bound)}",
                _mark(row.equal_to_whole),
                row.rewritten or "-",
            )
            for row in result.rows
            if row.inner == inner
        ],
    )


def _scaling_table(result: BenchResult) -> console.Table:
    """How the peak grows with the rows, for every inner."""
    sizes = sorted({row.rows for row in result.scaling})
    extra = {(row.inner, row.variant, row.rows): row.extra_bytes for row in result.scaling}
    return console.Table(
        "Peak above input and outputs, MiB, at a fixed row chunk",
        ("variant", *(f"{size} rows" for size in sizes)),
        [
            (f"{variant}, {inner}", *(f"{extra[inner, variant, size] / 2**20:.1f}" for size in sizes))
            for inner, variant in dict.fromkeys((row.inner, row.variant) for row in result.scaling)
        ],
    )


def _mark(passed: bool | None) -> str:
    return {True: "pass", False: "FAIL", None: "-"}[passed]


def _write(folder: Path, head: dict[str, Any], result: BenchResult) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**head, **dataclasses.asdict(result)}, indent=2)
    (folder / "bench.json").write_text(text + "\n", encoding="utf-8")
    console.say(f"wrote {folder / 'bench.json'}")
    if console.has("matplotlib"):
        from sortpass.plots import plot_bench, plot_scaling

        plot_bench(result, folder / "bench.png")
        console.say(f"wrote {folder / 'bench.png'}")
        if result.scaling:
            plot_scaling(result, folder / "scaling.png")
            console.say(f"wrote {folder / 'scaling.png'}")
    else:
        console.say("no plot: this needs matplotlib; pip install sortpass[plot]")


def _environment(argv: list[str], device: str) -> dict[str, Any]:
    is_cuda = device.startswith("cuda")
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join(["python", "-m", "sortpass", *argv]),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name(device) if is_cuda else "cpu",
        "num_cpus": os.cpu_count(),
        "num_threads": torch.get_num_threads(),
    }


if __name__ == "__main__":
    sys.exit(main())
