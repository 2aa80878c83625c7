"""What a worker creates on the server and announces about its tasks."""

from __future__ import annotations

import json

from tests.conformance.natq.registry import E2E, check, expect
from tests.conformance.natq.stage import Stage

__all__: list[str] = []

_SECOND = 1_000_000_000


@check("config.buckets")
async def buckets(stage: Stage) -> None:
    """Both buckets keep one value per key, without an age limit."""
    for name in ("KV_natq_tasks", "KV_natq_results"):
        config = stage.configs[name]
        bucket = name.removeprefix("KV_")
        expect(config["subjects"] == [f"$KV.{bucket}.>"], f"{name}: {config['subjects']}")
        expect(config["max_msgs_per_subject"] == 1, f"{name}: history {config}")
        expect(config.get("max_age", 0) == 0, f"{name}: max_age {config.get('max_age')}")


@check("config.stream")
async def stream(stage: Stage) -> None:
    """`natq_jobs` is a work queue on file for `natq.job.>` that refuses new messages when full."""
    config = stage.configs["natq_jobs"]
    wanted = {
        "subjects": ["natq.job.>"],
        "retention": "workqueue",
        "discard": "new",
        "storage": "file",
    }
    found = {name: config.get(name) for name in wanted}
    expect(found == wanted, f"{found}")
    expect(config.get("max_age", 0) == 0, f"jobs vanish after {config.get('max_age')} ns")


@check("config.consumers")
async def consumers(stage: Stage) -> None:
    """Each async task has its durable pull consumer that any SDK can share."""
    for task in [task for task, kind in E2E.items() if kind == "async"]:
        name = f"natq_worker_{task}"
        config = (await stage.api(f"CONSUMER.INFO.natq_jobs.{name}"))["config"]
        wanted = {
            "durable_name": name,
            "filter_subject": f"natq.job.{task}",
            "ack_policy": "explicit",
            "deliver_policy": "all",
            "ack_wait": 30 * _SECOND,
        }
        found = {member: config.get(member) for member in wanted}
        expect(found == wanted, f"{name}: {found}")
        expect(config.get("max_deliver", -1) <= 0, f"{name}: max_deliver strands foreign jobs")
        expect(not config.get("backoff"), f"{name}: backoff shortens the ack wait")
        expect("deliver_subject" not in config, f"{name}: a push consumer")


@check("config.definitions")
async def definitions(stage: Stage) -> None:
    """Each task is announced under its id with its type; schemas are JSON Schema as text."""
    for task, kind in E2E.items():
        said = stage.definitions[task]
        expect(said.get("id") == task, f"{task}: id {said.get('id')!r}")
        expect(said.get("type") == kind, f"{task}: type {said.get('type')!r}")
    for task, said in stage.definitions.items():
        for member in ("inputSchema", "outputSchema"):
            text = said.get(member, "{}")
            expect(isinstance(text, str), f"{task}: {member} is not a text")
            try:
                schema = json.loads(text)
            except ValueError as error:
                expect(False, f"{task}: {member}: {error}")
            expect(isinstance(schema, dict | bool), f"{task}: {member} is no schema: {text}")


@check("config.definition_subject", level="strict")
async def definition_subject(stage: Stage) -> None:
    """A definition names its subject: prefix and id."""
    for task, kind in E2E.items():
        wanted = f"natq.{'req' if kind == 'sync' else 'job'}.{task}"
        found = stage.definitions[task].get("subject")
        expect(found == wanted, f"{task}: subject {found!r}")


@check("config.foreign_resources", own_server=True, needs=("e2e-delay",))
async def foreign_resources(stage: Stage) -> None:
    """Buckets, stream and consumer that others made differently are used as they are."""
    results = {"subjects": ["$KV.natq_results.>"], "max_msgs_per_subject": 7, "allow_direct": True}
    kv = {"allow_rollup_hdrs": True, "discard": "new", "storage": "memory"}
    jobs = {"subjects": ["natq.job.>"], "retention": "workqueue", "max_msgs": 5000}
    consumer = {
        "durable_name": "natq_worker_e2e-delay",
        "filter_subject": "natq.job.e2e-delay",
        "ack_policy": "explicit",
        "ack_wait": 20 * _SECOND,
    }
    made = {"KV_natq_results": {**kv, **results}, "natq_jobs": jobs}
    for name, config in made.items():
        await stage.api(f"STREAM.CREATE.{name}", {"name": name, **config})
    await stage.api(
        "CONSUMER.DURABLE.CREATE.natq_jobs.natq_worker_e2e-delay",
        {"stream_name": "natq_jobs", "config": consumer},
    )
    await stage.add_worker()

    job = await stage.enqueue("e2e-delay", {"delayMs": 50})
    expect((await stage.final(job.key, 10))["status"] == 200, "the job did not succeed")
    for name, config in made.items():
        found = {member: stage.configs[name].get(member) for member in config}
        expect(found == config, f"{name} was changed: {found}")
    info = await stage.api("CONSUMER.INFO.natq_jobs.natq_worker_e2e-delay")
    expect(info["config"]["ack_wait"] == 20 * _SECOND, "the consumer was changed")


@check("config.definitions_stay", own_server=True)
async def definitions_stay(stage: Stage) -> None:
    """Definitions of others are left alone and a worker's own stay when it is gone."""
    config = {
        "name": "KV_natq_tasks",
        "subjects": ["$KV.natq_tasks.>"],
        "max_msgs_per_subject": 1,
        "allow_rollup_hdrs": True,
    }
    await stage.api("STREAM.CREATE.KV_natq_tasks", config)
    bucket = await stage.js.key_value("natq_tasks")
    foreign = b'{"id":"foreign-task","type":"async"}'
    await bucket.put("foreign-task", foreign)
    worker = await stage.add_worker()
    worker.kill()
    await worker.wait()

    expect((await bucket.get("foreign-task")).value == foreign, "a foreign definition was changed")
    missing = set(E2E) - set(await bucket.keys())
    expect(not missing, f"gone with the worker: {sorted(missing)}")
