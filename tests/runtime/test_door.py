"""The health door: what probes and Prometheus ask, and what strangers are not told."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import httpx
import pytest

from penstock.core.errors import ConfigError, Problem
from penstock.runtime.observe.door import Check, HealthDoor, parse_address
from penstock.runtime.options import WorkerOptions
from penstock.runtime.worker import Worker
from tests.runtime.scripted import ScriptedSource, ScriptedWire
from tests.runtime.stage import tasks

WELL = Check(True)
ILL = Check(False, ("source a is deaf",))


def a_door(check: Check = WELL, address: str = "0", **more: Any) -> HealthDoor:
    def metrics() -> bytes:
        return b"penstock_ready 1.0\n"

    return HealthDoor(
        address, health=lambda: check, ready=lambda: check, **{"metrics": metrics, **more}
    )


async def get(door: HealthDoor, path: str, **headers: str) -> httpx.Response:
    url = door.url.replace("0.0.0.0", "127.0.0.1")
    async with httpx.AsyncClient(base_url=url) as client:
        return await client.get(path, headers=headers)


async def test_a_worker_answers_for_its_health_readiness_and_metrics() -> None:
    async def quick() -> None: ...

    wire = ScriptedWire("quick")
    options = WorkerOptions(signals=False, health="0")
    worker = Worker(tasks(quick), [ScriptedSource(wire)], (), options)
    await worker.start()
    await wire.over(await wire.enqueue({}))
    async with httpx.AsyncClient(base_url=worker.door_url) as client:
        health, ready = await client.get("/health"), await client.get("/ready")
        metrics = await client.get("/metrics")

    assert (health.status_code, ready.status_code) == (200, 200)
    assert health.json() == {"status": "ok", "reasons": [], "worker": worker.id, "process": 1}
    assert 'penstock_runs_total{outcome="succeeded",protocol="natq",task="quick"} 1' in metrics.text
    assert "penstock_ready 1.0" in metrics.text
    await worker.stop()
    async with httpx.AsyncClient(base_url=worker.door_url) as client:
        with pytest.raises(httpx.ConnectError):
            await client.get("/health")


async def test_what_is_wrong_is_a_503_with_the_reason() -> None:
    door = a_door(ILL)
    await door.start()
    answer = await get(door, "/health")
    await door.stop()

    assert answer.status_code == 503
    assert answer.json()["reasons"] == ["source a is deaf"]


async def test_other_machines_are_told_the_status_alone() -> None:
    door = a_door(ILL, "0.0.0.0:0", facts={"worker": "w"})
    await door.start()
    health, metrics = await get(door, "/ready"), await get(door, "/metrics")
    await door.stop()

    assert (health.status_code, health.json()) == (503, {"status": "unavailable"})
    assert metrics.status_code == 401
    assert "worker.health_token" in metrics.json()["error"]


async def test_the_bearer_of_the_token_is_told_everything_even_on_loopback_only_he() -> None:
    for address in ("0.0.0.0:0", "0"):
        door = a_door(ILL, address, token="open sesame")
        await door.start()
        with_token = await get(door, "/metrics", authorization="Bearer open sesame")
        wrong = await get(door, "/metrics", authorization="Bearer close sesame")
        without = await get(door, "/health")
        await door.stop()

        assert (with_token.status_code, wrong.status_code) == (200, 401)
        assert "reasons" not in without.json()


async def test_without_the_metrics_extra_the_answer_names_it() -> None:
    def missing() -> bytes:
        raise Problem("metrics need prometheus-client", remedy="pip install 'penstock[metrics]'")

    door = a_door(metrics=missing)
    await door.start()
    answer = await get(door, "/metrics")
    await door.stop()

    assert answer.status_code == 501
    assert answer.json()["remedy"] == "pip install 'penstock[metrics]'"


async def test_head_has_no_body_and_other_paths_and_methods_are_refused() -> None:
    door = a_door()
    await door.start()
    async with httpx.AsyncClient(base_url=door.url) as client:
        assert (await client.head("/health")).status_code == 200
        assert (await client.get("/health?verbose=1")).status_code == 200
        assert (await client.get("/")).status_code == 404
        assert (await client.post("/health")).status_code == 405
    await door.stop()


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET", b"GET /health HTTP/1.1\r\n", b"x" * 20_000, b"\xff\xfe\r\n\r\n"],
    ids=["nothing", "a word", "half", "far too much", "noise"],
)
async def test_bad_askers_are_hung_up_on_and_others_served(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.runtime.observe.door._WITHIN_S", 0.2)
    door = a_door()
    await door.start()
    reader, writer = await asyncio.open_connection(door.host, door.port)
    writer.write(sent)
    try:
        said = await asyncio.wait_for(reader.read(), 20)
    except ConnectionError:
        said = b""
    writer.close()

    assert not said or b"400" in said.partition(b"\r\n")[0]
    monkeypatch.undo()
    assert (await get(door, "/health")).status_code == 200
    await door.stop()


async def test_a_busy_port_is_told_in_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        door = a_door(address=str(port))
        with pytest.raises(Problem, match=f"cannot listen on 127.0.0.1:{port}"):
            await door.start()


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("8081", ("127.0.0.1", 8081)),
        (":8081", ("127.0.0.1", 8081)),
        ("0.0.0.0:8081", ("0.0.0.0", 8081)),
        ("[::1]:8081", ("::1", 8081)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "http", "host.example:8081", "127.0.0.1:", "1.2.3.4:70000"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="no address for the health door"):
        parse_address(text)
