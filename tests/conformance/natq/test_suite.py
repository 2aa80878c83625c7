"""The natq suite as tests: our worker must be perfect, the reference as good as upstream.

And the suite itself must be able to fail: a worker full of flaws is caught in each of them.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
from pathlib import Path

import pytest

from tests.chaos.harness import Program
from tests.chaos.servers import NatsServer
from tests.conformance.natq.registry import checks
from tests.conformance.natq.stage import Stage
from tests.conformance.natq.suite import Report, chosen, run_suite

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "natq_e2e_worker.py"


UPSTREAM_WEAKNESSES = {
    "async.bad_json_reason",
    "async.bad_run_ids",
    "async.run_id_number_as_text",
    "async.term_reason",
    "config.definition_subject",
    "fleet.consumer_deleted",
    "fleet.finished_is_not_rerun",
    "fleet.one_reply_from_three",
    "fleet.sigterm_under_load",
    "results.any_json_is_input",
    "results.final_is_final",
    "results.live_is_not_run_twice",
    "results.only_true_drops",
    "results.oversize",
    "results.returns_nothing",
    "results.unserializable",
    "sync.any_json_is_input",
    "sync.concurrent",
    "sync.error_text_is_tamed",
    "sync.returns_nothing",
    "sync.run_ids",
}

FLAWS_SEEN_BY = (
    "async.bad_json",
    "async.exception_backs_off",
    "async.final_record_before_ack",
    "async.no_record_on_500",
    "async.no_retry_after_400",
    "async.record_sequence",
    "async.status_decides",
    "config.buckets",
    "config.consumers",
    "config.stream",
    "results.dropped_in_order",
    "results.errors_are_not_dropped",
    "results.heartbeat",
    "sync.bad_json",
    "sync.body_is_data_only",
    "sync.headers",
    "sync.status_as_given",
    "upstream.add",
    "upstream.client_error",
    "upstream.delay",
    "upstream.echo",
)


def module(name: str) -> list[str]:
    return [sys.executable, "-m", f"tests.conformance.natq.{name}"]


def told(report: Report, word: str) -> str:
    return "\n".join(str(verdict) for verdict in report.of(word))


async def test_the_reference_worker_does_what_upstream_does_and_has_its_weaknesses() -> None:
    report = await run_suite(module("reference_tasks"), chosen())

    assert not report.of("FAIL", "both"), told(report, "FAIL")
    assert not report.of("skip"), told(report, "skip")
    assert {v.check.name for v in report.of("FAIL", "strict")} == UPSTREAM_WEAKNESSES


async def test_each_flaw_of_a_flawed_worker_is_seen() -> None:
    selected = [checks[name] for name in FLAWS_SEEN_BY]
    report = await run_suite(module("flawed_worker"), selected)

    assert not report.of("ok"), told(report, "ok")
    assert len(report.of("FAIL")) == len(FLAWS_SEEN_BY)


async def test_our_worker_keeps_every_promise() -> None:
    report = await run_suite(module("penstock_worker"), chosen())

    assert not report.of("FAIL"), told(report, "FAIL")
    assert not report.of("skip"), told(report, "skip")


async def test_the_example_worker_passes_all_that_its_seven_tasks_can_show() -> None:
    selected = [check for check in chosen() if all(task.startswith("e2e-") for task in check.needs)]
    report = await run_suite([sys.executable, str(EXAMPLE)], selected)

    assert not report.of("FAIL"), told(report, "FAIL")
    assert not report.of("skip"), told(report, "skip")


async def test_two_example_workers_agree_on_the_attempts_of_a_job() -> None:
    """They count deliveries: a counter in memory would start anew in the other worker."""
    command = [sys.executable, str(EXAMPLE)]
    async with NatsServer() as server, Stage(server.url, command, server) as stage:
        await asyncio.gather(stage.add_worker(), stage.add_worker())
        jobs = [await stage.enqueue("e2e-retry", {"failCount": 1}) for _ in range(8)]
        for job in jobs:
            assert (await stage.final(job.key, 30))["data"] == {"attempts": 2}
            assert await stage.statuses(job.key) == [100, 100, 200]


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_the_backoff_of_the_reference_worker_is_capped() -> None:
    report = await run_suite(module("reference_tasks"), chosen(only=["async.backoff_is_capped"]))

    assert not report.of("FAIL"), told(report, "FAIL")


async def cli(*args: str) -> tuple[int, str]:
    async with Program.python("tests.conformance.natq", *args) as program:
        return await program.wait(60), program.output


async def test_the_command_line_judges_a_worker_and_says_its_scores() -> None:
    code, said = await cli("--worker", shlex.join(module("reference_tasks")), "--only", "sync.head")

    assert code == 0
    assert "ok    sync.headers" in said
    assert "strict 1/1, compat 1/1" in said


async def test_one_failed_check_is_an_exit_code_of_1() -> None:
    code, said = await cli("--worker", shlex.join(module("reference_tasks")), "--only", "sync.run_")

    assert code == 1
    assert "FAIL  sync.run_ids" in said


async def test_a_worker_that_does_not_start_cannot_be_judged_and_shows_why() -> None:
    broken = shlex.join([sys.executable, "-c", "raise SystemExit('no such module: shop')"])
    code, said = await cli("--worker", broken)

    assert code == 1
    assert "cannot be judged" in said and "no such module: shop" in said


async def test_an_unknown_check_names_the_nearest() -> None:
    code, said = await cli("--worker", "true", "--only", "sync.headrs")

    assert code == 2
    assert "did you mean sync.headers?" in said


async def test_every_check_is_listed_with_its_promise() -> None:
    code, said = await cli("--list")

    assert code == 0
    assert len(said.splitlines()) == len(checks)


async def test_on_a_foreign_server_only_what_does_not_disturb_it_is_run() -> None:
    async with NatsServer() as server:
        selected = chosen(only=["upstream.add", "fleet.sigterm_when_idle"])
        report = await run_suite(module("reference_tasks"), selected, nats_url=server.url)

    assert [v.check.name for v in report.of("ok")] == ["upstream.add"]
    assert [v.why for v in report.of("skip")] == ["needs a server of its own"]
