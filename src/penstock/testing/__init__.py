"""What users test their handlers with: a context that remembers what it was told.

For everything beyond a handler itself there is the real thing: ``app.running("embedded")``.
"""

from penstock.testing.context import HandlerContext, a_context

__all__ = ["HandlerContext", "a_context"]
