"""A trace goes on over natq: what is enqueued inside a span runs beneath it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from opentelemetry.sdk.trace import TracerProvider

from penstock.protocols.natq.client import NatqClient
from penstock.protocols.natq.worker import JobSource
from tests.protocols.natq.conftest import a_task

if TYPE_CHECKING:
    from penstock.broker.link import Link
    from penstock.protocols.natq.options import NatqOptions


async def test_a_job_carries_the_span_in_which_it_was_enqueued(
    link: Link, options: NatqOptions
) -> None:
    client = await NatqClient.open(link, options)
    source = JobSource(client.room, a_task(), "ann")
    await source.bind()

    await client.enqueue("job", {"n": 1})
    with TracerProvider().get_tracer("test").start_as_current_span("checkout") as span:
        await client.enqueue("job", {"n": 2})
    context = span.get_span_context()

    traces: dict[int, str] = {}
    while len(traces) < 2:
        for job in await source.take(2, timedelta(seconds=5)):
            traces[job.invocation.body["n"]] = job.invocation.trace
    await source.stop()
    ids = f"{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    assert traces == {1: "", 2: f"00-{ids}"}
