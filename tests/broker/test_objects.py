"""Object stores: large values, whole or not at all, shared with the stock client."""

from __future__ import annotations

import asyncio
import os

import pytest

from penstock.broker.embedded import EmbeddedNats, ServerLimits
from penstock.broker.link import Link
from penstock.broker.objects import CHUNK_BYTES, ObjectDamaged, ObjectStore, ObjectTooLarge
from penstock.broker.options import NatsOptions
from penstock.broker.publisher import Publisher
from penstock.broker.streams import JetStream
from penstock.core.errors import BadInput, UnknownName


@pytest.fixture
async def store(link: Link, unique: str) -> ObjectStore:
    return await ObjectStore.open(link, unique, create=True, storage="memory")


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3_000_000])
async def test_a_value_of_any_size_comes_back(store: ObjectStore, size: int) -> None:
    value = os.urandom(size)

    info = await store.put("some/ name ä", value)

    assert await store.get("some/ name ä") == value
    assert (info.size, info.chunks) == (size, -(-size // CHUNK_BYTES))


async def test_chunks_are_as_small_as_the_server_wants_messages() -> None:
    value = os.urandom(50_000)
    with EmbeddedNats(limits=ServerLimits(max_payload=16_384)) as server:
        link = await Link.open(NatsOptions.from_url(server.url))
        store = await ObjectStore.open(link, "small", create=True, storage="memory")

        info = await store.put("a", value)

        assert await store.get("a") == value
        assert info.chunks == 4
        await link.close()


async def test_a_missing_object_is_none(store: ObjectStore) -> None:
    assert await store.get("nothing") is None
    assert await store.info("nothing") is None
    assert not await store.delete("nothing")


async def test_what_is_replaced_or_deleted_leaves_no_chunks(store: ObjectStore, link: Link) -> None:
    await store.put("a", b"x" * 300_000)
    await store.put("a", b"y" * 200_000)
    assert await store.get("a") == b"y" * 200_000

    assert await store.delete("a")

    assert await store.get("a") is None
    chunks = await JetStream(link).subject_counts(store.stream, f"$O.{store.name}.C.>")
    assert chunks == {}


async def test_too_large_is_said_before_anything_moves(store: ObjectStore, link: Link) -> None:
    with pytest.raises(ObjectTooLarge, match="has 11 bytes, more than 10"):
        await store.put("a", b"x" * 11, max_bytes=10)
    assert await JetStream(link).subject_counts(store.stream) == {}

    await store.put("a", b"x" * 11)
    with pytest.raises(ObjectTooLarge):
        await store.get("a", max_bytes=10)


async def test_a_lost_chunk_is_noticed(store: ObjectStore, link: Link) -> None:
    info = await store.put("a", os.urandom(400_000))
    chunk = await JetStream(link).get_message(
        store.stream, 1, next_by_subj=f"$O.{store.name}.C.{info.nuid}"
    )
    assert chunk is not None
    await JetStream(link).delete_message(store.stream, chunk.seq)

    with pytest.raises(ObjectDamaged, match="do not match its description"):
        await store.get("a")


async def test_changed_bytes_are_noticed(store: ObjectStore, link: Link) -> None:
    info = await store.put("a", b"good")
    subject = f"$O.{store.name}.C.{info.nuid}"
    await JetStream(link).purge(store.stream, subject=subject)
    await Publisher(link).publish(subject.encode(), b"evil")

    with pytest.raises(ObjectDamaged):
        await store.get("a")


async def test_a_reader_gets_one_whole_version_while_writers_replace_it(store: ObjectStore) -> None:
    await store.put("a", b"0" * 300_000)

    async def write() -> None:
        for number in range(10):
            await store.put("a", b"%d" % number * 300_000)

    async def read() -> None:
        for _ in range(10):
            value = await store.get("a")
            assert value is not None and len(set(value)) == 1

    await asyncio.gather(write(), read(), read())


async def test_the_stock_client_reads_what_we_write(store: ObjectStore, link: Link) -> None:
    value = os.urandom(300_000)
    await store.put("from us", value)

    theirs = await link.client.jetstream().object_store(store.name)

    assert (await theirs.get("from us")).data == value


async def test_we_read_what_the_stock_client_writes(link: Link, unique: str) -> None:
    value = os.urandom(300_000)
    theirs = await link.client.jetstream().create_object_store(unique)
    await theirs.put("from them", value)
    await theirs.put("gone", b"x")
    await theirs.delete("gone")

    ours = await ObjectStore.open(link, unique)

    assert await ours.get("from them") == value
    assert await ours.get("gone") is None


async def test_a_missing_store_is_named(link: Link, unique: str) -> None:
    with pytest.raises(UnknownName, match=r"object store .* is not known"):
        await ObjectStore.open(link, unique)


async def test_an_object_needs_a_name(store: ObjectStore) -> None:
    with pytest.raises(BadInput, match="needs a name"):
        await store.put("", b"x")
