"""Leases: a promise with a deadline."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from penstock.core.lease import Lease, Proof

NOW = datetime(2027, 1, 1, tzinfo=UTC)
TERM = timedelta(seconds=30)


def a_lease() -> Lease:
    return Lease(holder="ann", fence="f", term=TERM, until=NOW + TERM)


def test_a_lease_lapses_at_its_deadline_and_not_before() -> None:
    lease = a_lease()

    assert not lease.lapsed(NOW + TERM - timedelta(microseconds=1))
    assert lease.lapsed(NOW + TERM)


def test_a_renewed_lease_runs_for_a_whole_term_and_keeps_its_fence() -> None:
    later = NOW + timedelta(seconds=20)

    renewed = a_lease().renewed(later)

    assert renewed.until == later + TERM
    assert (renewed.holder, renewed.fence) == ("ann", "f")


def test_a_lease_without_deadline_never_lapses() -> None:
    assert not Lease("ann", "f", TERM).lapsed(datetime.max.replace(tzinfo=UTC))
    assert Lease("ann", "f", TERM).proof is Proof.INFERRED


def test_a_beat_leaves_three_chances_unless_agreed_otherwise() -> None:
    agreed = Lease("ann", "f", TERM, renew_every=timedelta(seconds=4))

    assert a_lease().beat == timedelta(seconds=10)
    assert agreed.beat == timedelta(seconds=4)
