"""Traces: one OpenTelemetry span per run, child of the ``traceparent`` that came with the work.

`Tracer.installed` is ``None`` unless OpenTelemetry is installed and a provider is
configured, so that nobody else pays for it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock.core.invocation import Invocation
from penstock.core.outcome import Failed, Outcome

__all__ = ["Span", "Tracer", "traceparent"]


class Span:
    """The span of one run."""

    __slots__ = ("_span",)

    def __init__(self, span: Any) -> None:
        self._span = span

    def ended(self, outcome: Outcome) -> None:
        """Note how it ended; a failure marks the span as one."""
        self._span.set_attribute("penstock.outcome", type(outcome).__name__.lower())
        if isinstance(outcome, Failed):
            from opentelemetry.trace import Status, StatusCode

            self._span.set_attribute("error.type", outcome.failure.type)
            self._span.set_status(Status(StatusCode.ERROR, outcome.failure.message))


class Tracer:
    """Opens spans with the provider that the application configured (or the one given)."""

    def __init__(self, worker_id: str, provider: Any = None) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._tracer = trace.get_tracer("penstock", tracer_provider=provider)
        self._kind = trace.SpanKind.CONSUMER
        self._carry = TraceContextTextMapPropagator()
        self._worker_id = worker_id

    @classmethod
    def installed(cls, worker_id: str) -> Tracer | None:
        """A tracer, or ``None`` where no provider is configured."""
        if "opentelemetry.trace" not in sys.modules:  # whoever configures it has loaded it
            return None
        from opentelemetry import trace

        proxy = getattr(trace, "ProxyTracerProvider", None)
        if proxy is not None and isinstance(trace.get_tracer_provider(), proxy):
            return None
        return cls(worker_id)

    @contextmanager
    def span(self, invocation: Invocation) -> Iterator[Span]:
        """The span around one handler, current while it runs."""
        parent = self._carry.extract({"traceparent": invocation.trace})
        attributes: dict[str, str | int] = {
            "messaging.system": f"penstock.{invocation.protocol}",
            "messaging.operation.type": "process",
            "messaging.message.id": invocation.work_id,
            "penstock.task": invocation.task,
            "penstock.attempt": invocation.attempt,
            "penstock.worker": self._worker_id,
        }
        with self._tracer.start_as_current_span(
            f"run {invocation.task}", context=parent, kind=self._kind, attributes=attributes
        ) as span:
            yield Span(span)


def traceparent() -> str:
    """The ``traceparent`` of the span that is current, or empty: for work enqueued inside one."""
    if "opentelemetry.trace" not in sys.modules:  # then nobody traces, and nothing is loaded
        return ""
    from opentelemetry import trace

    span = trace.get_current_span().get_span_context()
    if not span.is_valid:
        return ""
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"
