"""What transformers documents of its warpers, case by case, through the bridge's graphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as hf

from sortpass.hf.options import read_options
from sortpass.hf.processors import Bridge, ChunkedProcessorList
from sortpass.hf.report import GenerationReport

INF = float("inf")
IDS = torch.zeros(2, 3, dtype=torch.long)
PROBS = torch.tensor([[0.3, 0.1, 0.1, 0.5], [0.15, 0.3, 0.3, 0.25]])


def chunked(*processors: Any, row_chunk: int = 1) -> ChunkedProcessorList:
    config, options = read_options({"row_chunk": row_chunk, "min_bytes": 1, "force": True, "exactness": "any"})
    return ChunkedProcessorList(processors, Bridge(config, options, GenerationReport()))


def kept(processors: ChunkedProcessorList, probs: torch.Tensor) -> list[list[int]]:
    """The tokens of each row that survive."""
    scores = processors(IDS, probs.log())
    assert processors._bridge.report.graphs[0].num_rewritten == 1
    return [row.isfinite().nonzero().flatten().tolist() for row in scores]


CASES: dict[str, tuple[Any, list[list[int]]]] = {
    # "the smallest set of most probable tokens with probabilities that add up to `top_p` or higher"
    "top_p": (hf.TopPLogitsWarper(0.8), [[0, 3], [1, 2, 3]]),
    "top_p, at least two": (hf.TopPLogitsWarper(0.1, min_tokens_to_keep=2), [[0, 3], [1, 2]]),
    "top_p, all": (hf.TopPLogitsWarper(1.0), [[0, 1, 2, 3], [0, 1, 2, 3]]),
    # "the number of highest probability tokens to keep"; what ties with the last of them stays
    "top_k": (hf.TopKLogitsWarper(1), [[3], [1, 2]]),
    "top_k, more than there are": (hf.TopKLogitsWarper(9), [[0, 1, 2, 3], [0, 1, 2, 3]]),
    # "all tokens that are above a minimum probability, scaled by the probability of the most likely token"
    "min_p": (hf.MinPLogitsWarper(0.55), [[0, 3], [1, 2, 3]]),
    "min_p, at least four": (hf.MinPLogitsWarper(0.55, min_tokens_to_keep=4), [[0, 1, 2, 3], [0, 1, 2, 3]]),
    # "tokens with probabilities higher than `epsilon`"
    "epsilon": (hf.EpsilonLogitsWarper(0.26), [[0, 3], [1, 2]]),
    "epsilon, at least one": (hf.EpsilonLogitsWarper(0.9), [[3], [1, 2]]),
    # "eta := min(epsilon, sqrt(epsilon) * e^-entropy)"
    "eta": (hf.EtaLogitsWarper(0.16), [[0, 3], [0, 1, 2, 3]]),
}


@pytest.mark.parametrize("name", CASES)
def test_a_warper_keeps_the_tokens_it_is_documented_to(name: str) -> None:
    warper, expected = CASES[name]
    assert kept(chunked(warper), PROBS) == expected


def test_typical_keeps_what_is_nearest_to_the_expected_surprise() -> None:
    # The entropy of the first row is 1.17 nats; -log p is 1.20, 2.30, 2.30, 0.69: token 0 is nearest, then token 3.
    # In the second row (1.36 nats) it is 3 (1.39), then 1 and 2 (1.20).
    assert kept(chunked(hf.TypicalLogitsWarper(0.2)), PROBS) == [[0], [3]]
    assert kept(chunked(hf.TypicalLogitsWarper(0.7)), PROBS) == [[0, 3], [1, 2, 3]]


def test_top_h_keeps_tokens_until_their_entropy_reaches_its_share() -> None:
    whole = hf.TopHLogitsWarper(0.4)(IDS, PROBS.log())
    assert kept(chunked(hf.TopHLogitsWarper(0.4)), PROBS) == [
        row.isfinite().nonzero().flatten().tolist() for row in whole
    ]
    assert kept(chunked(hf.TopHLogitsWarper(0.01)), PROBS) == [[3], [1]]


def test_what_is_dropped_gets_the_filter_value_and_what_is_kept_stays() -> None:
    scores = PROBS.log()
    out = chunked(hf.TopPLogitsWarper(0.8, filter_value=-5.0))(IDS, scores)
    assert torch.equal(out, torch.where(torch.tensor([[1, 0, 0, 1], [0, 1, 1, 1]]).bool(), scores, -5.0))


def test_processors_before_the_warpers_keep_their_place() -> None:
    # The penalty halves token 0, which all prompts have, so that top-k takes another.
    scores = torch.tensor([[4.0, 3.0, 1.0, 0.0], [3.9, 3.0, 1.0, 0.0]])
    out = chunked(hf.RepetitionPenaltyLogitsProcessor(2.0), hf.TopKLogitsWarper(1))(IDS, scores)
    assert torch.equal(out, torch.tensor([[-INF, 3.0, -INF, -INF]] * 2))


def test_temperature_scales_before_top_p_cuts() -> None:
    cold = chunked(hf.TemperatureLogitsWarper(0.1), hf.TopPLogitsWarper(0.8))
    assert kept(cold, PROBS) == [[3], [1, 2]]
    hot = chunked(hf.TemperatureLogitsWarper(10.0), hf.TopPLogitsWarper(0.8))
    assert [len(row) for row in kept(hot, PROBS)] == [4, 4]


def test_a_list_can_be_added_to_between_steps() -> None:
    processors = chunked(hf.TopKLogitsWarper(2))
    assert kept(processors, PROBS) == [[0, 3], [1, 2]]
    processors.append(hf.TopKLogitsWarper(1))
    assert kept(processors, PROBS) == [[3], [1, 2]]
