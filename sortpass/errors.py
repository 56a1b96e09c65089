"""The errors sortpass raises, by whose mistake they are.

The user wrote something wrong: :class:`ConfigError`. The user asked to be told when nothing was rewritten
(``on_miss="raise"``): :class:`NothingRewritten`. A function that goes on only with values at hand:
:class:`EstimateError`. A bug of ours: :class:`InternalError`. A graph that is not for this
pass is none of these: it is a :class:`sortpass.Decline` in the report, and compilation goes on.
"""

from __future__ import annotations


class SortPassError(Exception):
    """Base class of every error raised by sortpass."""


class ConfigError(SortPassError, ValueError):
    """An option has an unknown name, a wrong type or a value out of range; the message names all three."""


class NothingRewritten(SortPassError):
    """A graph had no sort that was rewritten, and ``on_miss="raise"`` was set."""


class EstimateError(SortPassError):
    """:func:`sortpass.estimate` cannot follow a function without running it."""


class InternalError(SortPassError):
    """sortpass broke one of its own promises; please report the message, which shows the node."""
