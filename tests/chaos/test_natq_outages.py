"""The broker goes away under load, or only some of its words get lost; the work goes on.

Servers are stopped, killed and started again on their store, connections are cut for longer
than the ack wait, single answers are dropped between worker and server.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from nats.js.errors import NotFoundError

import penstock
from penstock.broker.embedded import EmbeddedNats
from penstock.protocols.natq.client import NotEnqueued
from tests.chaos.app import LARGE
from tests.chaos.frames import Frame
from tests.chaos.harness import eventually, is_stopped
from tests.chaos.invariants import Ledger, judge
from tests.chaos.natq_flow import Flow
from tests.chaos.natq_stage import ACK_WAIT_S, LAWS, Load, NatqStage
from tests.chaos.points import KillPoint
from tests.chaos.proxy import FaultProxy


@pytest.fixture
async def proxy(natq: NatqStage) -> AsyncIterator[FaultProxy]:
    async with FaultProxy.to(natq.server.url) as proxy:
        yield proxy


@pytest.mark.parametrize("how", ["stopped", "killed"])
async def test_a_server_that_goes_and_comes_back_under_load_loses_nothing(
    how: str, natq: NatqStage
) -> None:
    ledger = Ledger()
    async with natq.worker() as worker:
        await natq.ready(worker)
        jobs = Flow(natq, ledger)
        for _ in range(3):
            await jobs.has_put(60)
            await (natq.server.stop() if how == "stopped" else natq.server.kill())
            await natq.server.start()
        await jobs.has_put(60)
        await jobs.end()
        await natq.all_ended()
        worker.terminate()
        assert await worker.wait(40) == 0, worker.output[-3000:]

    await natq.collect(ledger)
    assert judge(ledger, LAWS) == []
    assert len(ledger.ids("final")) >= 240


async def test_a_server_frozen_for_longer_than_the_ack_wait_wakes_up_to_order(
    natq: NatqStage,
) -> None:
    ledger, gate = Ledger(), natq.folder / "gate"
    async with natq.worker() as worker:
        await natq.ready(worker)
        for n in range(10):
            await natq.put(Load("held", f"h{n}", {"gate": str(gate)}), ledger)
            await natq.put(Load("plain", f"p{n}", {"n": n}), ledger)
        await natq.started("held.h9", 1)
        natq.server.freeze()
        gate.touch()  # handlers end while nobody can be told
        await asyncio.sleep(2 * ACK_WAIT_S)
        natq.server.thaw()
        await natq.all_ended()

    await natq.collect(ledger)
    assert judge(ledger, LAWS) == []


async def test_who_waits_for_a_result_gets_it_across_a_killed_server(natq: NatqStage) -> None:
    gate = natq.folder / "gate"
    async with natq.worker() as worker, penstock.connect(natq.server.url) as client:
        await natq.ready(worker)
        runs = [await client.enqueue("held", gate=str(gate), run_id=f"r{n}") for n in range(5)]
        waiting = [asyncio.create_task(run.result(timeout=60)) for run in runs]
        await natq.started("held.r4", 1)
        await natq.server.kill()
        await natq.server.start()
        gate.touch()

        assert [await one for one in waiting] == [1] * 5


async def test_a_server_that_dies_with_its_embedding_worker_keeps_every_job(
    tmp_path: Path,
) -> None:
    """``penstock worker`` with a data folder and no other server, killed with jobs in hand."""
    ledger, gate = Ledger(), tmp_path / "gate"
    data = tmp_path / "data"
    with EmbeddedNats(data / "nats") as server:
        stage = await NatqStage.on(server, tmp_path)
        for n in range(10):
            await stage.put(Load("held", f"r{n}", {"gate": str(gate)}), ledger)
        await stage.close()

    alone = {"PENSTOCK_DATA": str(data), "PENSTOCK_NATS_URL": ""}
    async with stage.worker(alone) as doomed:
        await stage.started("held.r9", 1)
        doomed.kill()
        await doomed.wait()
    gate.touch()
    async with stage.worker(alone) as worker:
        url = (await worker.line(r"^serving .* at (nats://\S+)", within=60)).group(1)
        second = await NatqStage.at(SimpleNamespace(url=url), tmp_path)
        await second.all_ended()
        await second.collect(ledger)
        await second.close()

    assert judge(ledger, LAWS) == []


async def test_a_cut_longer_than_the_ack_wait_gives_the_job_to_another_and_fences_the_first(
    natq: NatqStage, proxy: FaultProxy
) -> None:
    ledger = Ledger()
    gate = natq.folder / "gate"
    job = Load("held", "r0", {"gate": str(gate)})
    async with natq.worker(url=proxy.url) as cut_off, natq.worker() as other:
        await natq.ready(cut_off)
        await natq.ready(other)
        other.freeze()  # so that the one behind the proxy gets it
        await natq.put(job, ledger)
        await natq.started(job.key, 1)
        proxy.refuse()
        other.thaw()
        await natq.started(job.key, 2)
        gate.touch()
        await natq.ended(job.key)
        proxy.heal()
        await cut_off.line("not settled|another worker|lease|heartbeat", within=30)

        after = Load("plain", "r1", {"n": 1})
        other.terminate()
        await other.wait(40)
        await natq.put(after, ledger)  # only the one that was cut off is left to run it
        await natq.ended(after.key)
        await natq.all_ended()

    assert await natq.statuses(job.key) == [100, 100, 200]
    await natq.collect(ledger)
    assert judge(ledger, LAWS) == []


async def test_a_worker_alone_behind_a_long_cut_goes_on_where_it_was(
    natq: NatqStage, proxy: FaultProxy
) -> None:
    ledger = Ledger()
    gate = natq.folder / "gate"
    async with natq.worker(url=proxy.url) as worker:
        await natq.ready(worker)
        for n in range(20):
            await natq.put(Load("held", f"h{n}", {"gate": str(gate)}), ledger)
            await natq.put(Load("plain", f"p{n}", {"n": n}), ledger)
        await natq.started("held.h19", 1)
        await proxy.cut(for_=2 * ACK_WAIT_S)
        gate.touch()
        await natq.all_ended()

    await natq.collect(ledger)
    assert judge(ledger, LAWS) == []


async def test_a_frozen_worker_that_wakes_up_after_another_took_over_writes_nothing(
    natq: NatqStage,
) -> None:
    ledger = Ledger()
    gate = natq.folder / "gate"
    job = Load("held", "r0", {"gate": str(gate)})
    async with natq.worker() as sleeper:
        await natq.ready(sleeper)
        await natq.put(job, ledger)
        await natq.started(job.key, 1)
        sleeper.freeze()
        async with natq.worker() as other:
            await natq.ready(other)
            await natq.started(job.key, 2)
            gate.touch()
            await natq.ended(job.key)
            await natq.all_ended()
        sleeper.thaw()
        await sleeper.line("not settled", within=30)

    assert await natq.statuses(job.key) == [100, 100, 200]


async def test_a_worker_frozen_while_it_settles_cannot_change_a_large_result_of_another(
    natq: NatqStage,
) -> None:
    ledger = Ledger()
    job = Load("large", "r0")
    frozen = KillPoint("natq.handled", freeze=True)
    async with natq.worker(frozen.env) as sleeper:
        await natq.ready(sleeper)
        await natq.put(job, ledger)
        await eventually(lambda: is_stopped(sleeper.pid), 30, what=f"reaching {frozen}")
        async with natq.worker() as other:
            await natq.ready(other)
            await natq.ended(job.key)
            await natq.all_ended()
        sleeper.thaw()
        await sleeper.line("not settled", within=30)

    async with penstock.connect(natq.server.url) as client:
        assert await client.result("large", "r0", timeout=10) == "2" * LARGE
    store = await natq.js.object_store("natq_large_results")
    assert len([one for one in await store.list() if not one.deleted]) == 1
    assert await natq.statuses(job.key) == [100, 100, 200]


# Words that get lost ------------------------------------------------------------------------


class Wire:
    """What passes the proxy about records: counts the writes, and loses chosen ones."""

    def __init__(self, proxy: FaultProxy) -> None:
        self.writes: Counter[tuple[str, int]] = Counter()
        self._lost_answers: set[tuple[str, int]] = set()
        self._lost_writes: set[tuple[str, int]] = set()
        self._inboxes: set[bytes] = set()
        proxy.drop(matching=self._write, towards="server")
        proxy.drop(matching=self._answer, towards="client")

    def lose_answer(self, key: str, status: int) -> None:
        """The write of that record arrives; its acknowledgement does not."""
        self._lost_answers.add((key, status))

    def lose_write(self, key: str, status: int) -> None:
        """The write of that record itself is lost, once."""
        self._lost_writes.add((key, status))

    def _write(self, frame: Frame) -> bool:
        prefix = b"$KV.natq_results."
        if not frame.subject.startswith(prefix):
            return False
        write = frame.subject[len(prefix) :].decode(), json.loads(frame.payload)["status"]
        self.writes[write] += 1
        if write in self._lost_answers:
            self._lost_answers.remove(write)
            self._inboxes.add(frame.reply)
        if write in self._lost_writes:
            self._lost_writes.remove(write)
            return True
        return False

    def _answer(self, frame: Frame) -> bool:
        return frame.subject in self._inboxes


async def test_a_write_whose_answer_was_lost_is_read_back_and_never_repeated_blindly(
    natq: NatqStage, proxy: FaultProxy
) -> None:
    await natq.wait_for_acks(30)  # longer than a write is waited for
    ledger, wire = Ledger(), Wire(proxy)
    wire.lose_answer("plain.begun", 100)
    wire.lose_answer("plain.ended", 200)
    wire.lose_write("plain.unsaid", 200)
    async with natq.worker(url=proxy.url) as worker:
        await natq.ready(worker)
        for run_id in ("begun", "ended", "unsaid"):
            await natq.put(Load("plain", run_id, {"n": 1}), ledger)
        await natq.all_ended()

    await natq.collect(ledger)
    assert judge(ledger, LAWS) == []
    assert len(proxy.dropped) == 3
    assert set(ledger.tally("started").values()) == {1}
    for run_id, writes in {"begun": (1, 1), "ended": (1, 1), "unsaid": (1, 2)}.items():
        key = f"plain.{run_id}"
        assert await natq.statuses(key) == [100, 200]
        assert (wire.writes[key, 100], wire.writes[key, 200]) == writes, key


@pytest.mark.parametrize("drops", [False, True])
async def test_a_job_whose_ack_was_lost_comes_back_and_is_not_run_again(
    drops: bool, natq: NatqStage, proxy: FaultProxy
) -> None:
    ledger = Ledger()
    proxy.drop(matching=is_ack, towards="server", times=1)
    async with natq.worker(url=proxy.url) as worker:
        await natq.ready(worker)
        await natq.put(Load("plain", "r0", {"n": 1}, drop=drops), ledger)
        await proxy.dropped_at_least(1, within=30)
        await natq.all_ended()

    await natq.collect(ledger)
    assert judge(ledger, LAWS) == []
    assert ledger.tally("started") == {"plain.r0": 1}


def is_ack(frame: Frame) -> bool:
    return frame.subject.startswith(b"$JS.ACK.") and frame.payload in (b"", b"+ACK")


# Things that are taken away -----------------------------------------------------------------


async def test_a_consumer_deleted_under_running_jobs_is_made_again_and_each_ends_once(
    natq: NatqStage,
) -> None:
    ledger = Ledger()
    gate = natq.folder / "gate"
    async with natq.worker() as worker:
        await natq.ready(worker)
        for n in range(5):
            await natq.put(Load("held", f"r{n}", {"gate": str(gate)}), ledger)
        await natq.started("held.r4", 1)
        await natq.js.delete_consumer("natq_jobs", "natq_worker_held")
        await natq.put(Load("held", "late", {"gate": str(gate)}), ledger)
        await natq.started("held.late", 1)
        gate.touch()
        await natq.all_ended()

    await natq.collect(ledger)
    assert judge(ledger, LAWS) == []


async def test_a_queue_deleted_under_a_worker_is_made_again_and_served(natq: NatqStage) -> None:
    ledger = Ledger()
    async with natq.worker() as worker:
        await natq.ready(worker)
        await natq.put(Load("plain", "before", {"n": 0}), ledger)
        await natq.all_ended()
        await natq.js.delete_stream("natq_jobs")

        async def made_again() -> bool:
            with contextlib.suppress(NotFoundError):
                return (await natq.js.stream_info("natq_jobs")).state.consumer_count > 0
            return False

        await eventually(made_again, 60, what="the queue, made again")
        await natq.put(Load("plain", "after", {"n": 1}), ledger)
        await natq.all_ended()

    await natq.collect(ledger)
    assert judge(ledger, LAWS) == []


async def test_results_that_find_no_room_wait_for_it_where_that_is_asked_for(
    natq: NatqStage,
) -> None:
    ledger = Ledger()
    async with natq.worker({"PENSTOCK_NATQ__ON_LOST_RESULT": "nak"}) as worker:
        await natq.ready(worker)
        await natq.put(Load("plain", "before", {"n": 0}), ledger)
        await natq.all_ended()
        await natq.limit("KV_natq_results", max_bytes=1)
        for n in range(5):
            await natq.put(Load("plain", f"r{n}", {"n": n}), ledger)
        await worker.line("the final record was not written", within=30)
        await natq.limit("KV_natq_results", max_bytes=-1)
        await natq.all_ended()

    await natq.collect(ledger)
    assert judge(ledger, LAWS) == []


async def test_without_room_for_its_result_a_job_ends_as_the_protocol_says_and_the_log_names_it(
    natq: NatqStage,
) -> None:
    ledger = Ledger()
    await natq.limit("KV_natq_results", max_bytes=1)
    async with natq.worker() as worker:
        await natq.ready(worker)
        await natq.put(Load("plain", "r0", {"n": 0}), ledger)
        await worker.line('the final record was not written.*"runId":"r0"', within=30)
        await natq.all_ended()


async def test_a_full_queue_refuses_new_jobs_and_keeps_the_old_ones(natq: NatqStage) -> None:
    ledger = Ledger()
    await natq.limit("natq_jobs", max_msgs=5, discard="new")
    async with penstock.connect(natq.server.url) as client:
        for n in range(5):
            await client.enqueue("plain", n=n, run_id=f"r{n}")
            ledger.note("enqueued", f"plain.r{n}")
        with pytest.raises(NotEnqueued, match="maximum messages"):
            await client.enqueue("plain", n=5, run_id="r5")
    async with natq.worker() as worker:
        await natq.ready(worker)
        await natq.all_ended()

    await natq.collect(ledger)
    assert judge(ledger, LAWS) == []
