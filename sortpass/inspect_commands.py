"""The commands ``explain``, ``compare`` and ``doctor``."""

from __future__ import annotations

import argparse
from typing import Any

import torch

from sortpass import console
from sortpass.config import ANCHORS, EXACTNESS, FORMS, SCOPES
from sortpass.errors import SortPassError
from sortpass.target import DTYPES, load_target, make_args, parse_shape


def add_target(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``explain`` and ``compare``."""
    parser.add_argument("target", type=load_target, metavar="TARGET", help="module:function or file.py:function")
    parser.add_argument(
        "--shape",
        type=parse_shape,
        nargs="+",
        default=[(8192, 128_256)],
        metavar="NxM",
        help="shape of each tensor argument (default: 8192x128256)",
    )
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="f32", help="of the arguments")
    parser.add_argument("--device", default="cpu", help="of the arguments")
    parser.add_argument("--inner", default="inductor", help="compiler of the rewritten graph")
    parser.add_argument("--memory-budget", metavar="SIZE", help="what one chunk may hold, such as 512MiB")
    parser.add_argument("--row-chunk", type=int, metavar="ROWS", help="most rows of a chunk, instead of a budget")
    parser.add_argument("--anchors", choices=ANCHORS, default="sort", help="what a region may start from")
    parser.add_argument("--scope", choices=SCOPES, default="auto", help="what is chunked")
    parser.add_argument("--form", choices=FORMS, default="auto", help="what chunks look like in the graph")
    parser.add_argument("--exactness", choices=EXACTNESS, default="any", help="what must be promised")
    parser.add_argument("--min-bytes", type=int, metavar="BYTES", help="smaller sorts are left alone")
    parser.add_argument("--force", action="store_true", help="rewrite also what does not pay")


def _options(args: argparse.Namespace) -> dict[str, Any]:
    names = ("inner", "memory_budget", "row_chunk", "anchors", "scope", "form", "exactness", "min_bytes", "force")
    return {name: value for name in names if (value := getattr(args, name)) is not None}


def run_explain(args: argparse.Namespace, argv: list[str]) -> int:
    """Status 0; 2 where the function cannot be followed."""
    from sortpass.explain import explain

    tensors = make_args(args.shape, DTYPES[args.dtype], "cpu", meta=True)
    device = None if torch.device(args.device).type == "cpu" else args.device
    try:
        explanation = explain(args.target, *tensors, device=device, **_options(args))
    except SortPassError as error:
        console.say(f"sortpass: {error}")
        return 2
    if args.json is not None:
        args.json.write_text(explanation.to_json() + "\n")
        console.say(f"wrote {args.json}")
    return 0


def run_compare(args: argparse.Namespace, argv: list[str]) -> int:
    """Status 0; 1 where results that are promised to be bit-equal differ; 2 where an option is wrong."""
    from sortpass.compare import compare

    tensors = make_args(args.shape, DTYPES[args.dtype], args.device, meta=False)
    try:
        comparison = compare(args.target, *tensors, rounds=args.rounds, **_options(args))
    except SortPassError as error:
        console.say(f"sortpass: {error}")
        return 2
    sites = [site for report in comparison.reports for site in report.sites if site.status == "rewritten"]
    promised = all(site.exactness == "bitwise" for site in sites)
    return 1 if promised and not comparison.equal else 0


def run_doctor(args: argparse.Namespace, argv: list[str]) -> int:
    """Status 1 where something is missing."""
    from sortpass.doctor import run_checks

    checks = run_checks()
    marks = {True: "pass", False: "FAIL", None: "-"}
    rows = [(check.name, marks[check.passed], check.found) for check in checks]
    console.show(console.Table("What sortpass needs", ("", "", "found"), rows))
    for check in checks:
        if check.passed is False:
            console.say(f"{check.name}: {check.advice}")
    return 1 if any(check.passed is False for check in checks) else 0
