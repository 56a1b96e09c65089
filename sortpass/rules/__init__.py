"""What the pass knows about ops: where the row dim goes, one place per op."""

from sortpass.rules import create, index, matmul, pointwise, random, reduce, rowwise, shape
from sortpass.rules.call import Call, same_size, value_of
from sortpass.rules.exactness import Exactness, declared_exactness, exactness_of
from sortpass.rules.matmul import MATMULS, Flattened
from sortpass.rules.random import is_draw
from sortpass.rules.registry import (
    ANY,
    WHOLE,
    Blocked,
    Flow,
    find_rule_maybe,
    is_pure,
    register_rule,
    registered_rules,
)

__all__ = [
    "ANY",
    "MATMULS",
    "WHOLE",
    "Blocked",
    "Call",
    "Exactness",
    "Flattened",
    "Flow",
    "create",
    "declared_exactness",
    "exactness_of",
    "find_rule_maybe",
    "index",
    "is_draw",
    "is_pure",
    "matmul",
    "pointwise",
    "random",
    "reduce",
    "register_rule",
    "registered_rules",
    "rowwise",
    "same_size",
    "shape",
    "value_of",
]
