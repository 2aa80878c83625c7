"""Scenario 18: a pause by one holds for the other, and stops nothing but new leases."""

from __future__ import annotations

from penstock.protocols.omniq.wire import now_ms
from tests.interop.omniq.sides import Side


def test_18_a_pause_holds_for_both_and_running_jobs_go_on(
    pair: tuple[Side, Side], queue: str
) -> None:
    one, two = pair
    for name in ("run", "fail", "wait"):
        one.publish(queue, {}, job_id=name, backoff_ms=0, gid="g" if name == "fail" else "")
    held = {job.job_id: job for job in (one.leased(queue), two.leased(queue))}

    assert one.pause(queue) == "OK"
    for side in pair:
        assert side.is_paused(queue)
        assert side.reserve(queue) == "PAUSED"
    assert two.heartbeat(queue, "run", held["run"].lease_token) > 0
    two.ack(queue, "run", held["run"].lease_token)
    assert one.fail(queue, "fail", held["fail"].lease_token)[0] == "RETRY"
    assert two.promote(queue, now_ms() + 60_000) == 1
    one.publish(queue, {}, job_id="late")
    assert two.reserve(queue) == "PAUSED"

    assert [two.resume(queue), one.resume(queue), two.resume(queue)] == [1, 0, 0]
    assert {one.taken(queue), two.taken(queue), one.taken(queue)} == {"fail", "wait", "late"}
