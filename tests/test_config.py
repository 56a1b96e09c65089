"""Options: what is wrong is named, with its value and the choices."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import sortpass
from sortpass import ChunkConfig, ConfigError
from sortpass.cache import cache_id
from sortpass.rules import registry


@pytest.mark.parametrize("name", ["row_chunk", "min_bytes", "max_unroll"])
@pytest.mark.parametrize("value", [0, -1, True, "8", 2.0, None])
def test_a_count_that_is_not_a_positive_int_is_refused_by_name_and_value(name: str, value: object) -> None:
    if name == "row_chunk" and value is None:
        assert ChunkConfig(row_chunk=None).row_chunk is None  # the budget decides
        return
    with pytest.raises(ConfigError, match=f"option '{name}' is .*expected an integer of at least 1") as error:
        ChunkConfig(**{name: value})
    assert repr(value) in str(error.value)


@pytest.mark.parametrize(
    "name, value, near", [("scope", "regions", "region"), ("form", "lop", "loop"), ("on_oom", "shrinks", "shrink")]
)
def test_a_wrong_choice_lists_the_choices_and_the_nearest(name: str, value: str, near: str) -> None:
    with pytest.raises(ConfigError, match=f"option '{name}' is '{value}' .did you mean '{near}'.*choices are: "):
        ChunkConfig(**{name: value})


@pytest.mark.parametrize("name", ["force", "recompute"])
@pytest.mark.parametrize("value", [1, "yes", None])
def test_a_switch_is_true_or_false(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"option '{name}' is .*expected True or False"):
        ChunkConfig(anchors="rowwise", **{name: value})


def test_recompute_says_which_option_it_needs() -> None:
    with pytest.raises(ConfigError, match="option 'recompute' is True with anchors=.'sort',.; .*add anchors='rowwise'"):
        ChunkConfig(recompute=True)


def test_an_unknown_option_suggests_the_nearest_and_lists_all() -> None:
    with pytest.raises(ConfigError, match="unknown option 'row_chunks' .did you mean 'row_chunk'.*min_bytes"):
        ChunkConfig.from_options({"row_chunks": 8})


@pytest.mark.parametrize("value", [3, "", None])
def test_inner_must_be_a_name_or_a_callable(value: object) -> None:
    with pytest.raises(ConfigError, match="option 'inner'"):
        ChunkConfig(inner=value)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"row_chunks": 8}, "unknown option 'row_chunks'"),
        ({"row_chunk": 0}, "option 'row_chunk' is 0"),
        ({"inner": "aot_eagr"}, "'aot_eagr', which is no registered backend"),
        ({"inner": "aot_eager", "max_autotune": True}, "unknown option 'max_autotune'"),
    ],
)
def test_torch_compile_shows_the_config_error(options: dict[str, object], message: str) -> None:
    step = torch.compile(lambda x: x.sort(-1)[0], backend="chunked_sort", options=options)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=message):
        step(torch.randn(4, 4))


@pytest.mark.parametrize("entry", [lambda **o: sortpass.rewrite(torch.fx.GraphModule({}, torch.fx.Graph()), **o)])
def test_rewrite_and_the_inductor_pass_check_options_too(entry) -> None:
    for build in (entry, sortpass.ChunkedSortPass):
        with pytest.raises(ConfigError, match="unknown option 'chunk'"):
            build(chunk=8)


def test_every_option_that_may_change_a_graph_changes_the_cache_id() -> None:
    other = {
        "row_chunk": 7,
        "min_bytes": 7,
        "scope": "sort",
        "form": "unroll",
        "max_unroll": 7,
        "inner": "eager",
        "on_miss": "raise",
        "exactness": "bitwise",
        "memory_budget": "1MiB",
        "force": True,
        "dump_dir": "somewhere",
        "anchors": "sort",
        "through_matmul": True,
        "recompute": True,
        "allow_rng": True,
    }
    same = {"on_oom": "shrink"}
    base = {"anchors": "rowwise"}
    assert {*other, *same} == {field.name for field in dataclasses.fields(ChunkConfig)}
    assert cache_id(ChunkConfig(**base, **same)) == cache_id(ChunkConfig(**base))
    ids = {cache_id(ChunkConfig(**{**base, name: value})) for name, value in other.items()}
    assert len(ids | {cache_id(ChunkConfig(**base))}) == len(other) + 1


@pytest.mark.parametrize("kind", ["function", "closure", "callable object"])
def test_the_cache_id_is_stable_and_covers_rules_that_users_register(kind: str) -> None:
    class Rule:
        def __call__(self, call, row_dim):
            return sortpass.Flow({"self": row_dim})

    def make(name: str):
        return lambda call, row_dim: sortpass.Flow({name: row_dim})

    op = torch.ops.aten.cosh.default
    rules = {"function": [make("self")], "closure": [make("self"), make("other")], "callable object": [Rule(), Rule()]}
    ids = [cache_id(ChunkConfig())]
    try:
        for rule in rules[kind]:
            sortpass.register_rule(op)(rule)
            ids.append(cache_id(ChunkConfig()))
            assert ids[-1] == cache_id(ChunkConfig())
    finally:
        registry._RULES.pop(op)
    assert len(set(ids)) == len(ids)
    assert cache_id(ChunkConfig()) == ids[0]
