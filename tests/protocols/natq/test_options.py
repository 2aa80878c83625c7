"""natq's options: what cannot work is refused by name, with what to write instead."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from penstock.core.errors import ConfigError
from penstock.protocols.natq.options import NatqOptions
from penstock.protocols.natq.upstream import NatqWorkerOptions
from penstock.settings import load_settings


@pytest.mark.parametrize(("name", "value", "remedy"), [
    ("tasks_bucket", "natq.tasks", "letters, digits"),
    ("stream", "", "letters, digits"),
    ("stream", "natq jobs", "letters, digits"),
    ("sync_prefix", "natq.req", "a dot after each"),
    ("async_prefix", "natq.*.", "a dot after each"),
    ("async_prefix", "$KV.natq_results.", "a dot after each"),
    ("sync_prefix", "natq.job.", "its stream would answer the requests"),
    ("sync_prefix", "natq.job.sync.", "its stream would answer the requests"),
    ("dead_prefix", "natq.job.dead.", "dead letters would be jobs again"),
    ("heartbeat", timedelta(0), "a time such as 10s"),
    ("result_ttl", timedelta(milliseconds=10), "1s or more"),
    ("max_attempts", 0, "1 or more"),
    ("max_requests", -1, "1 or more"),
    ("replicas", 0, "1 or more"),
])  # fmt: skip
def test_what_cannot_work_is_refused_by_name(name: str, value: Any, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        NatqOptions(**{name: value})

    assert f"natq.{name} is " in caught.value.message
    assert remedy in caught.value.remedy


def test_the_defaults_are_the_names_of_the_page() -> None:
    options = NatqOptions()

    assert (options.tasks_bucket, options.results_bucket) == ("natq_tasks", "natq_results")
    assert (options.stream, options.heartbeat) == ("natq_jobs", timedelta(seconds=10))
    assert (options.sync_prefix, options.async_prefix) == ("natq.req.", "natq.job.")
    assert options.max_attempts is None  # a limit would be news to a fleet of other SDKs


def test_settings_from_outside_are_held_to_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_NATQ__ASYNC_PREFIX", "natq.req.")

    with pytest.raises(ConfigError, match=r"natq\.sync_prefix is 'natq\.req\.'"):
        load_settings()


def test_options_in_the_manner_of_upstream_are_held_to_the_same() -> None:
    with pytest.raises(ConfigError, match=r"natq\.stream is 'my jobs'"):
        NatqWorkerOptions(stream_name="my jobs").to_natq()
