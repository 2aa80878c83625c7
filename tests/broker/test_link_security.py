"""Who we are and who may listen: proved with certificates, keys and accounts made here."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.broker.embedded import EmbeddedNats
from penstock.broker.errors import AuthFailed, LinkError, TlsFailed
from penstock.broker.link import Link, NatsOptions

from .conftest import OpenLink
from .credentials import Authority, KeyPair, creds_text, operator_config

pytestmark = pytest.mark.usefixtures("link_kind")


@contextmanager
def a_server(config: str) -> Iterator[str]:
    """The address, without credentials, of a server with this configuration."""
    with EmbeddedNats(config=config) as server:
        yield f"127.0.0.1:{server.port}"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def works(link: Link) -> bool:
    return b"account_info" in (await link.request(b"$JS.API.INFO")).payload


async def test_a_password_opens_and_a_wrong_one_is_named_as_such(open_link: OpenLink) -> None:
    with a_server('authorization { user: ann, password: "p@ss:w" }') as address:
        assert await works(await open_link(f"nats://ann:p%40ss%3Aw@{address}"))
        for url in (f"nats://ann:wrong@{address}", address):
            with pytest.raises(AuthFailed) as caught:
                await open_link(url)
            assert address in caught.value.message
            assert "wrong" not in str(caught.value)


async def test_a_token_opens_and_a_wrong_one_is_named_as_such(open_link: OpenLink) -> None:
    with a_server("authorization { token: s3cret }") as address:
        assert await works(await open_link(f"nats://s3cret@{address}"))
        assert await works(await open_link(address, token="s3cret"))
        with pytest.raises(AuthFailed):
            await open_link(address, token="other")


async def test_an_nkey_opens_and_a_strangers_does_not(open_link: OpenLink, tmp_path: Path) -> None:
    known, stranger = KeyPair.user(), KeyPair.user()
    seeds = []
    for name, pair in (("known", known), ("stranger", stranger)):
        path = tmp_path / f"{name}.nk"
        path.write_bytes(pair.seed + b"\n")
        seeds.append(str(path))
    with a_server(f"authorization {{ users: [ {{ nkey: {known.public} }} ] }}") as address:
        assert await works(await open_link(address, nkey_seed_file=seeds[0]))
        with pytest.raises(AuthFailed):
            await open_link(address, nkey_seed_file=seeds[1])


async def test_a_creds_file_opens_and_a_foreign_accounts_does_not(
    open_link: OpenLink, tmp_path: Path
) -> None:
    operator, account, foreign = KeyPair.operator(), KeyPair.account(), KeyPair.account()
    good, bad = tmp_path / "good.creds", tmp_path / "bad.creds"
    good.write_text(creds_text(account, KeyPair.user()))
    bad.write_text(creds_text(foreign, KeyPair.user()))
    config = operator_config(operator, account)
    with a_server(config) as address:
        assert await works(await open_link(address, creds_file=str(good)))
        with pytest.raises(AuthFailed):
            await open_link(address, creds_file=str(bad))


async def test_renewed_credentials_are_read_when_the_old_ones_run_out(
    open_link: OpenLink, tmp_path: Path
) -> None:
    operator, account = KeyPair.operator(), KeyPair.account()
    creds = tmp_path / "user.creds"
    creds.write_text(creds_text(account, KeyPair.user(), lives=2))
    with a_server(operator_config(operator, account)) as address:
        link = await open_link(address, creds_file=str(creds))
        back = asyncio.Event()
        link.on_reconnect(back.set)
        creds.write_text(creds_text(account, KeyPair.user()))

        await asyncio.wait_for(back.wait(), 20)

        assert await works(link)


@pytest.mark.parametrize("option", ["creds_file", "nkey_seed_file"])
async def test_a_missing_file_is_named(open_link: OpenLink, tmp_path: Path, option: str) -> None:
    missing = tmp_path / "nowhere"

    with pytest.raises(AuthFailed, match="nowhere"):
        await open_link(**{option: str(missing)})


@pytest.mark.parametrize("option", ["creds_file", "nkey_seed_file"])
async def test_a_file_that_holds_no_key_is_one_sentence(
    open_link: OpenLink, tmp_path: Path, option: str
) -> None:
    garbage = tmp_path / "garbage"
    garbage.write_text("hello\n")
    with a_server("authorization { token: x }") as address, pytest.raises(LinkError) as caught:
        await open_link(address, **{option: str(garbage)})
    assert "\n" not in caught.value.message


async def test_a_denied_subject_is_reported_and_the_link_lives_on(open_link: OpenLink) -> None:
    users = 'users: [ { user: ann, password: a, permissions: { publish: { deny: "no.>" } } } ]'
    with a_server(f"authorization {{ {users} }}") as address:
        link = await open_link(f"ann:a@{address}")
        faults: asyncio.Queue[Exception] = asyncio.Queue()
        link.on_error(faults.put_nowait)

        link.publish(b"no.way", b"x")

        assert "no.way" in str(await asyncio.wait_for(faults.get(), 10))
        assert await works(link)


async def test_an_own_inbox_prefix_serves_a_narrow_account(open_link: OpenLink) -> None:
    users = 'users: [ { user: ann, password: a, permissions: { subscribe: "mine.>" } } ]'
    with a_server(f"authorization {{ {users} }}") as address:
        assert await works(await open_link(f"ann:a@{address}", inbox_prefix="mine"))


async def test_tls_with_a_known_authority_opens(open_link: OpenLink, authority: Authority) -> None:
    server = authority.issue("server", "127.0.0.1")
    with a_server(f'tls {{ cert_file: "{server.cert}", key_file: "{server.key}" }}') as address:
        link = await open_link(f"tls://{address}", tls_ca=str(authority.ca))
        assert await works(link)
        big = b"x" * 500_000
        assert (await an_echo_of(link, big)) == big


async def test_tls_handshake_before_any_word_opens(
    open_link: OpenLink, authority: Authority
) -> None:
    server = authority.issue("server", "127.0.0.1")
    files = f'cert_file: "{server.cert}", key_file: "{server.key}"'
    with a_server(f"tls {{ {files}, handshake_first: auto }}") as address:
        link = await open_link(address, tls_ca=str(authority.ca), tls_first=True)
        assert await works(link)


async def test_an_unknown_authority_is_refused(
    open_link: OpenLink, authority: Authority, tmp_path: Path
) -> None:
    server = authority.issue("server", "127.0.0.1")
    other = Authority(tmp_path, "other authority")
    with a_server(f'tls {{ cert_file: "{server.cert}", key_file: "{server.key}" }}') as address:
        for ca in (str(other.ca), None):
            with pytest.raises(TlsFailed, match=address):
                await open_link(f"tls://{address}", tls_ca=ca)


async def test_a_certificate_for_another_host_is_refused(
    open_link: OpenLink, authority: Authority
) -> None:
    server = authority.issue("server", "127.0.0.9")
    with (
        a_server(f'tls {{ cert_file: "{server.cert}", key_file: "{server.key}" }}') as address,
        pytest.raises(TlsFailed, match=r"match|valid for"),
    ):
        await open_link(f"tls://{address}", tls_ca=str(authority.ca))


async def test_a_client_certificate_opens_where_one_is_demanded(
    open_link: OpenLink, authority: Authority
) -> None:
    server, client = authority.issue("server", "127.0.0.1"), authority.issue("client")
    files = f'cert_file: "{server.cert}", key_file: "{server.key}", ca_file: "{authority.ca}"'
    with a_server(f"tls {{ {files}, verify: true }}") as address:
        mine = {"tls_cert": str(client.cert), "tls_key": str(client.key)}
        assert await works(await open_link(address, tls_ca=str(authority.ca), **mine))
        with pytest.raises(LinkError):
            await open_link(f"tls://{address}", tls_ca=str(authority.ca))


async def test_a_tls_file_that_cannot_be_read_is_named_before_connecting(
    open_link: OpenLink, tmp_path: Path
) -> None:
    with pytest.raises(TlsFailed, match="TLS files"):
        await open_link(tls_ca=str(tmp_path / "nowhere.pem"))


async def test_no_secret_is_spoken_to_a_server_that_does_not_offer_tls() -> None:
    spoken = bytearray()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"evil","auth_required":true,"max_payload":1048576}\r\n')
        await writer.drain()
        spoken.extend(await reader.read())
        writer.close()

    async with await asyncio.start_server(listen, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        options = NatsOptions.from_url(f"tls://ann:hush@127.0.0.1:{port}")
        with pytest.raises(TlsFailed, match="does not offer TLS"):
            await Link.open(options)

    assert bytes(spoken) == b""


async def an_echo_of(link: Link, payload: bytes) -> bytes:
    def answer(_: bytes, reply: bytes | None, __: bytes | None, body: bytes) -> None:
        link.publish(reply or b"", body)

    await link.subscribe("echo", answer)
    await link.flush()
    return (await link.request(b"echo", payload)).payload
