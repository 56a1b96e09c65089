"""What the pass knows about ops: where the row dim goes, one place per op."""

from sortpass.rules import create, index, pointwise, reduce, rowwise, shape
from sortpass.rules.registry import (
    ANY,
    WHOLE,
    Blocked,
    Call,
    Flow,
    find_rule_maybe,
    is_pure,
    register_rule,
    registered_rules,
    same_size,
    value_of,
)

__all__ = [
    "ANY",
    "WHOLE",
    "Blocked",
    "Call",
    "Flow",
    "create",
    "find_rule_maybe",
    "index",
    "is_pure",
    "pointwise",
    "reduce",
    "register_rule",
    "registered_rules",
    "rowwise",
    "same_size",
    "shape",
    "value_of",
]
