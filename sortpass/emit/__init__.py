"""The only code that changes a graph."""

from sortpass.emit.apply import apply_plan

__all__ = ["apply_plan"]
