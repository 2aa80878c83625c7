"""The schema registry on a real bucket: versions stand for ever, the newest checks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
from msgspec import Raw

from penstock.broker.bucket import Bucket, BucketConfig
from penstock.broker.link import Link
from penstock.protocols.ojs.refusal import Refusal
from penstock.protocols.ojs.schemas import Registered, SchemaRegistry

ONE_TEXT = Raw(b'{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"array",'
               b'"prefixItems":[{"type":"string"}],"minItems":1}')  # fmt: skip
ANYTHING = Raw(b'{"type":"array"}')


def now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture
async def bucket(link: Link, unique: str) -> Bucket:
    return await Bucket.open(link, f"{unique}_schemas", create=BucketConfig())


@pytest.fixture
async def registry(bucket: Bucket) -> AsyncIterator[SchemaRegistry]:
    async with SchemaRegistry(bucket, now) as opened:
        yield opened


async def test_a_version_stands_and_is_seen_at_once(registry: SchemaRegistry) -> None:
    first = await registry.register("mail.send", "1", ONE_TEXT)

    assert isinstance(first, Registered)
    assert first.shown_version == 1
    assert registry.latest("mail.send") == first
    again = await registry.register("mail.send", "1", ANYTHING)
    assert isinstance(again, Refusal)
    assert (again.code, again.status) == ("conflict", 409)
    assert registry.get("mail.send", "1") == first


async def test_the_newest_is_the_highest_and_not_the_last_that_came(
    registry: SchemaRegistry,
) -> None:
    for version in ("10", "2", "1.9.0", "1.10.0"):
        assert isinstance(await registry.register("t", version, ANYTHING), Registered)

    assert [one.version for one in registry.versions("t")] == ["1.9.0", "1.10.0", "2", "10"]
    await registry.remove("t", "10")
    assert registry.latest("t") == registry.get("t", "2")


async def test_what_is_gone_is_gone_and_may_come_again(registry: SchemaRegistry) -> None:
    await registry.register("t", "1", ANYTHING)

    assert await registry.remove("t", "1") is None
    assert registry.latest("t") is None
    missing = await registry.remove("t", "1")
    assert missing is not None
    assert missing.status == 404
    assert isinstance(await registry.register("t", "1", ONE_TEXT), Registered)


async def test_another_instance_sees_it_after_asking(
    bucket: Bucket, registry: SchemaRegistry
) -> None:
    async with SchemaRegistry(bucket, now) as other:
        await registry.register("t", "1", ONE_TEXT)
        await other.fresh()

        assert other.problems("t", "", Raw(b"[1]")) == [
            {"path": "$[0]", "message": '1 is not of type "string"'}
        ]


async def test_arguments_are_checked_by_the_version_that_is_asked_for(
    registry: SchemaRegistry,
) -> None:
    await registry.register("t", "1", ONE_TEXT)
    await registry.register("t", "2", ANYTHING)

    assert registry.problems("t", "1", Raw(b"[]"))
    assert registry.problems("t", "2", Raw(b"[]")) == []
    assert registry.problems("t", "7", Raw(b"[]")) == []
    assert registry.problems("unknown", "", Raw(b"[]")) == []


@pytest.mark.parametrize(
    ("version", "schema"),
    [
        ("versions", ANYTHING),
        ("a b", ANYTHING),
        ("1", Raw(b"{}")),
        ("1", Raw(b"[]")),
        (
            "1",
            Raw(b'{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"nonsense"}'),
        ),
    ],
)
async def test_what_is_no_schema_is_refused(
    registry: SchemaRegistry, version: str, schema: Raw
) -> None:
    refused = await registry.register("t", version, schema)

    assert isinstance(refused, Refusal)
    assert refused.status == 400


async def test_an_older_dialect_is_kept_and_checks_what_it_can(registry: SchemaRegistry) -> None:
    older = Raw(b'{"type":"array","items":[{"type":"string"}]}')

    assert isinstance(await registry.register("t", "1", older), Registered)
    assert isinstance(registry.problems("t", "1", Raw(b"[1]")), list)
