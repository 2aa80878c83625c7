"""The server, over a real socket: bodies, limits, streams, WebSockets, faults, ports."""

from __future__ import annotations

import asyncio
import gzip
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from typing import Any

import httpx
import pytest
import websockets

from penstock.core.errors import ConfigError, Problem
from penstock.web.message import Request, Response, Socket, Streaming
from penstock.web.mounts import Mounts
from penstock.web.server import HttpServer, parse_address

MAX = 100_000


class Echo:
    """Answers with what it got."""

    def __init__(self) -> None:
        self.hung_up = asyncio.Event()
        self.stream_closed = asyncio.Event()
        self.waiting = asyncio.Event()

    async def answer(self, request: Request) -> Response | Streaming:
        match request.path:
            case "/boom":
                raise RuntimeError("a secret detail")
            case "/ticks":
                return Streaming(self._ticks(), headers=(("content-type", "text/event-stream"),))
            case "/wait":
                self.waiting.set()
                await request.gone()
                self.hung_up.set()
                return Response(204)
        told = f"{request.method} {request.path} {request.query('q')} {request.header('x-mine')}"
        return Response(200, told.encode() + b" " + request.body, (("x-ours", "1"),))

    def socket(self, request: Request) -> Callable[[Socket], Coroutine[Any, Any, None]] | None:
        return self._chat if request.path == "/chat" else None

    async def _chat(self, chat: Socket) -> None:
        while (said := await chat.receive()) is not None:
            await chat.send(f"you said {said}")

    async def _ticks(self) -> AsyncGenerator[bytes, None]:
        try:
            for number in range(1_000_000):
                yield b"data: %d\n\n" % number
                await asyncio.sleep(0)
        finally:
            self.stream_closed.set()


@pytest.fixture
async def echo() -> Echo:
    return Echo()


@pytest.fixture
async def server(echo: Echo) -> AsyncIterator[HttpServer]:
    async with HttpServer(echo, max_bytes=MAX) as running:
        yield running


@pytest.fixture
async def http(server: HttpServer) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
        yield client


async def test_a_request_arrives_whole(http: httpx.AsyncClient) -> None:
    answer = await http.post("/a/b?q=1&q=2", content=b"body", headers={"X-Mine": "yes"})

    assert answer.text == "POST /a/b 1 yes body"
    assert answer.headers["x-ours"] == "1"


async def test_packed_and_chunked_bodies_arrive_plain(http: httpx.AsyncClient) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"one "
        yield b"two"

    packed = gzip.compress(b"plain")
    zipped = await http.post("/", content=packed, headers={"content-encoding": "gzip"})

    assert zipped.text.endswith(" plain")
    assert (await http.post("/", content=chunks())).text.endswith(" one two")


async def test_a_body_over_the_limit_is_413_however_it_comes(http: httpx.AsyncClient) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"x" * 10_000

    packed = gzip.compress(b"x" * (MAX + 1))

    assert (await http.post("/", content=b"x" * (MAX + 1))).status_code == 413
    assert (await http.post("/", content=chunks())).status_code == 413
    bomb = await http.post("/", content=packed, headers={"content-encoding": "gzip"})
    assert bomb.status_code == 413
    assert (await http.post("/", content=b"x" * 10)).status_code == 200


async def test_a_fault_is_a_500_that_tells_nothing(http: httpx.AsyncClient) -> None:
    answer = await http.get("/boom")

    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert (await http.get("/")).status_code == 200


async def test_head_is_get_without_a_body(http: httpx.AsyncClient) -> None:
    answer = await http.head("/here")

    assert answer.status_code == 200
    assert answer.content == b""


async def test_a_stream_flows_and_ends_with_its_client(http: httpx.AsyncClient, echo: Echo) -> None:
    async with http.stream("GET", "/ticks") as answer:
        lines = answer.aiter_lines()
        assert await anext(lines) == "data: 0"
    await http.aclose()

    await asyncio.wait_for(echo.stream_closed.wait(), 30)


async def test_a_client_that_hangs_up_is_noticed(server: HttpServer, echo: Echo) -> None:
    _, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
    await asyncio.wait_for(echo.waiting.wait(), 30)

    writer.close()

    await asyncio.wait_for(echo.hung_up.wait(), 30)


async def test_stopping_ends_streams_and_sockets(echo: Echo) -> None:
    async with HttpServer(echo) as server, httpx.AsyncClient(timeout=30) as http:
        chat = await websockets.connect(f"{server.url.replace('http', 'ws', 1)}/chat")
        async with http.stream("GET", f"{server.url}/ticks") as answer:
            await anext(answer.aiter_lines())

            await asyncio.wait_for(server.stop(), 10)

            assert echo.stream_closed.is_set()
            await asyncio.wait_for(chat.wait_closed(), 10)


async def test_a_websocket_talks_and_an_unknown_one_is_refused(server: HttpServer) -> None:
    base = server.url.replace("http", "ws", 1)
    async with websockets.connect(f"{base}/chat") as chat:
        await chat.send("hello")
        assert await chat.recv() == "you said hello"
    with pytest.raises(websockets.InvalidStatus):
        await websockets.connect(f"{base}/elsewhere")


async def test_a_busy_port_is_one_sentence(echo: Echo, server: HttpServer) -> None:
    with pytest.raises(Problem, match=f"{server.port} cannot be served: Address already in use"):
        await HttpServer(echo, port=server.port).start()


async def test_servers_that_agree_share_a_port(echo: Echo, server: HttpServer) -> None:
    async with HttpServer(echo, port=server.port, shared=True):
        for _ in range(10):
            async with httpx.AsyncClient(base_url=server.url) as http:
                assert (await http.get("/")).status_code == 200


async def test_a_stopped_server_frees_its_port_and_stops_again(echo: Echo) -> None:
    server = HttpServer(echo)
    await server.start()
    await server.stop()
    await server.stop()

    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind((server.host, server.port))


def test_the_network_is_not_served_without_tokens(echo: Echo) -> None:
    with pytest.raises(ConfigError):
        HttpServer(echo, host="0.0.0.0")


async def test_the_longest_prefix_answers(echo: Echo) -> None:
    class Fixed:
        def __init__(self, text: bytes) -> None:
            self.text = text

        async def answer(self, request: Request) -> Response | Streaming:
            return Response(200, self.text)

        def socket(self, request: Request) -> None:
            return None

    mounts = Mounts({"/ojs": Fixed(b"ojs"), "/ojs/admin": Fixed(b"admin"), "/metrics": Fixed(b"m")})

    async def said(path: str) -> tuple[int, bytes]:
        answer = await mounts.answer(Request("GET", path))
        assert isinstance(answer, Response)
        return answer.status, answer.body

    assert await said("/ojs/v1") == (200, b"ojs")
    assert await said("/ojs/admin/x") == (200, b"admin")
    assert await said("/metrics") == (200, b"m")
    assert (await said("/ojsx"))[0] == 404


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("8080", ("127.0.0.1", 8080)),
        (":8080", ("127.0.0.1", 8080)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
        ("[::1]:80", ("::1", 80)),
    ],
)
def test_an_address_is_read(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "here", "127.0.0.1:", "127.0.0.1:99999", "a:b"])
def test_what_is_no_address_is_told(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_address(text)
