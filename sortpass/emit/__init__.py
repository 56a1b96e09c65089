"""The only code that changes a graph."""

from sortpass.emit.apply import Applied, apply_plan

__all__ = ["Applied", "apply_plan"]
