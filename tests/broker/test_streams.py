"""Streams and consumers over the management API of a real server."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from penstock.broker.binary import check_server
from penstock.broker.embedded import EmbeddedNats
from penstock.broker.link import Link
from penstock.broker.options import NatsOptions
from penstock.broker.publisher import Publisher, Stored
from penstock.broker.streams import ApiError, ConsumerConfig, JetStream, StreamConfig
from penstock.core.errors import BadInput, Problem


async def work_stream(link: Link, unique: str, **more: object) -> tuple[JetStream, str]:
    js = JetStream(link)
    config = StreamConfig(name=unique, subjects=[f"{unique}.>"], storage="memory", **more)
    await js.ensure_stream(config)
    return js, unique


async def store(link: Link, *subjects: str) -> list[int]:
    outcomes = [await Publisher(link).publish(s.encode(), s.encode()) for s in subjects]
    assert all(isinstance(outcome, Stored) for outcome in outcomes)
    return [outcome.seq for outcome in outcomes if isinstance(outcome, Stored)]


async def test_a_stream_is_made_once_and_then_left_as_it_is(link: Link, unique: str) -> None:
    js, name = await work_stream(link, unique, max_age=timedelta(hours=1))

    again = await js.ensure_stream(StreamConfig(name=name, subjects=["other.>"]))

    assert again.config.subjects == [f"{unique}.>"]
    assert again.config.max_age == timedelta(hours=1)


async def test_an_update_changes_the_named_fields_only(link: Link, unique: str) -> None:
    js, name = await work_stream(link, unique, max_age=timedelta(hours=1), max_msgs=7)

    await js.ensure_stream(StreamConfig(name=name, max_msgs=9), update=True)

    config = (await js.stream_info(name)).config
    assert (config.max_msgs, config.max_age) == (9, timedelta(hours=1))


async def test_of_many_who_make_a_stream_at_once_all_get_it(link: Link, unique: str) -> None:
    js = JetStream(link)
    configs = [
        StreamConfig(name=unique, subjects=[f"{unique}.>"], max_msgs=100 + n) for n in range(8)
    ]

    infos = await asyncio.gather(*(js.ensure_stream(config) for config in configs))

    assert len({info.config.max_msgs for info in infos}) == 1


async def test_durations_survive_the_wire_exactly(link: Link, unique: str) -> None:
    js, name = await work_stream(link, unique, duplicate_window=timedelta(seconds=1.5))
    config = ConsumerConfig(
        durable_name="worker",
        ack_policy="explicit",
        ack_wait=timedelta(seconds=2, microseconds=7),
        backoff=[timedelta(milliseconds=200), timedelta(seconds=3)],
        max_deliver=5,
    )

    made = await js.ensure_consumer(name, config)

    assert (await js.stream_info(name)).config.duplicate_window == timedelta(seconds=1.5)
    assert made.config.backoff == [timedelta(milliseconds=200), timedelta(seconds=3)]
    no_backoff = ConsumerConfig(durable_name="other", ack_wait=timedelta(seconds=2, microseconds=7))
    other = await js.ensure_consumer(name, no_backoff)
    assert other.config.ack_wait == timedelta(seconds=2, microseconds=7)


async def test_a_consumer_is_made_once_and_changed_only_when_asked(link: Link, unique: str) -> None:
    js, name = await work_stream(link, unique)
    await js.ensure_consumer(name, ConsumerConfig(durable_name="w", max_ack_pending=10))
    wider = ConsumerConfig(durable_name="w", max_ack_pending=20)

    left = await js.ensure_consumer(name, wider)
    changed = await js.ensure_consumer(name, wider, update=True)

    assert (left.config.max_ack_pending, changed.config.max_ack_pending) == (10, 20)
    assert await js.consumer_names(name) == ["w"]
    assert await js.delete_consumer(name, "w")
    assert not await js.delete_consumer(name, "w")


async def test_messages_are_read_by_sequence_and_by_subject(link: Link, unique: str) -> None:
    js, name = await work_stream(link, unique)
    first, _, third = await store(link, f"{name}.a", f"{name}.b", f"{name}.a")

    by_seq = await js.get_message(name, first)
    last = await js.get_message(name, last_by_subj=f"{name}.a")
    following = await js.get_message(name, 2, next_by_subj=f"{name}.>")

    assert by_seq is not None and by_seq.payload == f"{name}.a".encode()
    assert last is not None and last.seq == third
    assert following is not None and following.subject == f"{name}.b"
    assert await js.get_message(name, 99) is None


async def test_messages_are_counted_removed_and_purged(link: Link, unique: str) -> None:
    js, name = await work_stream(link, unique)
    first, *_ = await store(link, *[f"{name}.{s}" for s in "aabbbc"])

    assert await js.subject_counts(name) == {f"{name}.a": 2, f"{name}.b": 3, f"{name}.c": 1}
    assert await js.delete_message(name, first)
    assert not await js.delete_message(name, first)
    assert await js.purge(name, subject=f"{name}.b") == 3
    assert await js.subject_counts(name) == {f"{name}.a": 1, f"{name}.c": 1}
    assert await js.purge(name) == 2


async def test_a_refusal_says_what_the_server_said(link: Link, unique: str) -> None:
    with pytest.raises(ApiError, match="stream not found") as refused:
        await JetStream(link).stream_info(unique)
    assert refused.value.missing and refused.value.err_code == 10059


@pytest.mark.parametrize("name", ["", "a.b", "a b", "a*", ">", "a/b", "a\n"])
async def test_names_that_would_break_a_subject_are_refused(link: Link, name: str) -> None:
    with pytest.raises(BadInput, match="cannot name a stream"):
        await JetStream(link).ensure_stream(StreamConfig(name=name))


async def test_streams_are_listed_by_subject(link: Link, unique: str) -> None:
    js, name = await work_stream(link, unique)
    assert await js.stream_names(f"{unique}.x") == [name]
    assert name in await js.stream_names()


async def test_the_last_stream_can_be_deleted_and_made_again_at_once() -> None:
    """The server answers 10049 now and then while it removes the account's folder."""
    async with EmbeddedNats() as server:
        link = await Link.open(NatsOptions.from_url(server.url))
        js = JetStream(link)
        for _ in range(30):
            await js.ensure_stream(StreamConfig(name="LAST", subjects=["last"], storage="file"))
            assert await js.delete_stream("LAST")
        assert not await js.delete_stream("LAST")
        await link.close()


async def test_a_good_server_is_described(link: Link) -> None:
    info = await check_server(link)
    assert info.api_level >= 4 and info.jetstream and info.max_payload == 1048576
    assert info.version.startswith("2.1")


async def test_a_server_below_the_needed_level_is_refused(
    link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.broker.binary.MIN_API_LEVEL", 99)
    with pytest.raises(Problem, match=r"has JetStream API level \d; Penstock needs 99"):
        await check_server(link)


async def test_an_account_without_jetstream_is_named() -> None:
    users = 'accounts { A { users: [{user: "a", password: "a"}] } }'
    async with EmbeddedNats(config=users) as server:
        link = await Link.open(NatsOptions((server.url,), user="a", password="a"))
        with pytest.raises(Problem, match="JetStream is not enabled for us"):
            await check_server(link)
        await link.close()
