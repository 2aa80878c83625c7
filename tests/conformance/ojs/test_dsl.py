"""The language of the cases, word by word: a runner that misreads it would prove nothing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.ojs.case import BadCase, grouped, read_case
from tests.conformance.ojs.judge import Answer, judged, judged_together
from tests.conformance.ojs.matchers import matches
from tests.conformance.ojs.modes import Mode
from tests.conformance.ojs.paths import PathError, found
from tests.conformance.ojs.templates import Unfilled, expanded, expanded_json

DOCUMENT = {
    "jobs": [{"id": "a", "n": 1, "args": [[10, 20]]}, {"id": "b"}],
    "meta": {"a.b": {"c": 7}, "a": {"b": 8}},
    "none": None,
}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("$.jobs[0].id", "a"),
        ("jobs[1].id", "b"),
        ("$.jobs[0].args[0][1]", 20),
        ("$.jobs[*].id", ["a", "b"]),
        ("$.jobs[*].n", [1]),
        ("$.jobs[?(@.id=='b')].id", "b"),
        ('$.jobs[?(@.n=="1")].id', "a"),
        ("$.jobs[?(@.id=='c')]", None),
        ("$.missing.deeper", None),
        ("$.none", None),
        ("$.meta.a.b", 8),
    ],
)
def test_a_path_leads_to_a_value(path: str, value: Any) -> None:
    assert found(DOCUMENT, path) == value


@pytest.mark.parametrize("path", ["$.jobs[2].id", "$.meta[0]", "$.jobs.id", "$.jobs['id']"])
def test_a_path_that_makes_no_sense_is_an_error(path: str) -> None:
    with pytest.raises(PathError):
        found(DOCUMENT, path)


def test_dotted_keys_are_found_longest_first_when_asked() -> None:
    assert found(DOCUMENT, "meta.a.b.c", dotted_keys=True) == 7


@pytest.mark.parametrize(
    ("matcher", "good", "bad"),
    [
        (None, [None], [0, ""]),
        (True, [True], [1, "true", None]),
        (3, [3, 3.0], [4, "3", True]),
        (1.5, [1.5], [1.6]),
        ([], [[]], [None, [1], {}]),
        ([1, "any"], [[1, 2]], [[2, 1], [1]]),
        ("plain", ["plain"], ["Plain", None]),
        ("any", [1, None], []),
        ("absent", [None], [0, ""]),
        ("exists", [0, ""], [None]),
        ("string:nonempty", ["a"], ["", 1]),
        ("string:uuid", ["019461a8-1a2b-1c3d-8e4f-5a6b7c8d9e0f"], ["x"]),
        (
            "string:uuidv7",
            ["019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f"],
            ["019461a8-1a2b-4c3d-8e4f-5a6b7c8d9e0f", "019461A8-1A2B-7C3D-8E4F-5A6B7C8D9E0F"],
        ),
        ("string:datetime", ["2026-01-01T00:00:00.123Z"], ["2026-01-01 00:00:00Z"]),
        ("number:positive", [0.1], [0, "1"]),
        ("number:non_negative", [0], [-1]),
        ("array:nonempty", [[1]], [[], None]),
        ("array:empty", [[]], [None]),
        ("array:min:2", [[1, 2], [1, 2, 3]], [[1]]),
        ("array:min_length:1", [[1]], [[]]),
        ("array:length:2", [[1, 2]], [[1]]),
        ("array:length(0)", [[]], [[1]]),
        ("contains:x", [["x"]], [["y"], "x"]),
        ("not_contains:x", [["y"]], [["x"], "y"]),
        ("string:contains:bc", ["abcd"], ["acbd"]),
        ("number:range(-1,2.5)", [-1, 2.5], [2.6, "1"]),
        ("~1000", [500, 1500], [499, 1501]),
        ("string:pattern(^a+$)", ["aaa"], ["b"]),
        ({"$exists": True, "$type": "string"}, ["a"], [1, None]),
        ({"$exists": False}, [None], ["a"]),
        ({"$match": "^a"}, ["ab"], ["ba"]),
        ({"$in": [1, "string:nonempty"]}, [1, "x"], [2, ""]),
        ({"$size": 2}, [[1, 2]], [[1]]),
        ({"$size": {"$gte": 1}}, [[1, 2]], [[]]),
        ({"range": {"min": 1, "max": 2}}, [1, 2], [0, 3, "1"]),
        ({"a": "exists", "b": "absent"}, [{"a": 1, "c": 2}], [{"a": 1, "b": 2}, {}, None]),
    ],
)
def test_a_matcher_says_yes_and_no(matcher: Any, good: list[Any], bad: list[Any]) -> None:
    for mode in Mode:
        assert all(matches(value, matcher, mode) for value in good)
        assert not any(matches(value, matcher, mode) for value in bad)


def test_what_upstream_reads_otherwise() -> None:
    assert matches("x", {"$empty": True}, Mode.COMPAT)
    assert not matches("x", {"$empty": True}, Mode.STRICT)
    assert matches(5, {"$gte": 3}, Mode.STRICT)
    assert not matches(5, {"$gte": 3}, Mode.COMPAT)


BODIES = {"s1": {"job": {"id": "j1", "n": 3.0, "f": 1.5}, "jobs": [{"id": "a"}]}, "s2": None}


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("/jobs/{{steps.s1.response.body.job.id}}/x", "/jobs/j1/x"),
        ("{{steps.s1.response.body.jobs[0].id}}", "a"),
        ("{{steps.s1.response.body.job.n}}", "3"),
        ("{{steps.s1.response.body.job.f}}", "1.5"),
        ("{{steps.s1.response.body.missing}}", "{{steps.s1.response.body.missing}}"),
        ("{{steps.s2.response.body.job}}", "{{steps.s2.response.body.job}}"),
        ("{{steps.s9.response.body.job}}", "{{steps.s9.response.body.job}}"),
    ],
)
def test_a_template_stands_for_an_earlier_answer(text: str, result: str) -> None:
    assert expanded(text, BODIES) == result


def test_a_template_in_a_matcher_becomes_text() -> None:
    assert expanded_json({"id": "{{steps.s1.response.body.job.id}}"}, BODIES) == {"id": "j1"}


def test_every_miss_is_told() -> None:
    answer = Answer(200, {"content-type": "text/plain"}, '{"a": 1, "b": null}')
    wanted = {
        "status": 201,
        "headers": {"Content-Type": "application/json"},
        "body": {"$.a": 2, "$.b": "exists"},
        "body_absent": ["$.a", "$.b"],
        "body_contains": ["a", "zzz"],
    }

    for mode in Mode:
        assert len(judged(wanted, answer, {}, mode)) == 6


@pytest.mark.parametrize(
    ("wanted", "good", "bad"),
    [
        (404, 404, 400),
        ("one_of:400, 422", 422, 404),
        ("number:range(400,422)", 410, 423),
        ({"$in": [200, 204]}, 204, 201),
    ],
)
def test_a_status_is_named_in_several_ways(wanted: Any, good: int, bad: int) -> None:
    for mode in Mode:
        assert judged({"status": wanted}, Answer(good), {}, mode) == []
        assert judged({"status": wanted}, Answer(bad), {}, mode) != []


def test_an_answer_without_json_passes_only_upstream() -> None:
    wanted = {"body": {"$.job.id": "exists"}}

    assert judged(wanted, Answer(200, {}, "nothing"), {}, Mode.COMPAT) == []
    assert judged(wanted, Answer(200, {}, "nothing"), {}, Mode.STRICT) != []


def test_or_wants_one_alternative_in_full() -> None:
    wanted = {"body": {"$or": [{"$empty": True}, {"$.jobs": "array:length(0)"}]}}

    assert judged(wanted, Answer(204), {}, Mode.STRICT) == []
    assert judged(wanted, Answer(204), {}, Mode.COMPAT) != []
    for mode in Mode:
        assert judged(wanted, Answer(200, {}, '{"jobs": []}'), {}, mode) == []
        assert judged(wanted, Answer(200, {}, '{"jobs": [1]}'), {}, mode) != []


def test_an_error_on_the_way_counts_as_absent() -> None:
    wanted = {"body": {"$.jobs[?(@.id=='x')].id": "absent"}}

    assert judged(wanted, Answer(200, {}, '{"jobs": []}'), {}, Mode.STRICT) == []


def test_one_of_two_fetches_has_the_job() -> None:
    claim = {
        "job_id": "{{steps.e.response.body.job.id}}",
        "fetches": ["{{steps.a.response.body.jobs}}", "{{steps.b.response.body.jobs}}"],
        "exactly_one_has_job": True,
        "exactly_one_empty": True,
    }
    enqueued = {"job": {"id": "j"}}
    full, empty = {"jobs": [{"id": "j"}]}, dict[str, Any](jobs=[])

    def misses(a: object, b: object) -> list[str]:
        return judged_together({"exclusive_claim": claim}, {"e": enqueued, "a": a, "b": b})

    assert misses(full, empty) == misses(empty, full) == []
    assert misses(full, full)
    assert misses(empty, empty)
    assert judged_together({"exclusive_claim": claim}, {"e": enqueued})


def test_equality_compares_whole_answers() -> None:
    wanted = {"equality": {"$.steps.a.response.body": "{{steps.b.response.body}}"}}

    assert judged_together(wanted, {"a": {"x": [1]}, "b": {"x": [1]}}) == []
    assert judged_together(wanted, {"a": {"x": [1]}, "b": {"x": [2]}})
    assert judged_together(wanted, {"a": {"x": [1]}})


def _case(**step: Any) -> dict[str, Any]:
    words = dict.fromkeys(("test_id", "category", "name", "description", "spec_ref"), "x")
    return {**words, "level": 0, "tags": [], "steps": [{"id": "s", "action": "GET", **step}]}


@pytest.mark.parametrize(
    "step",
    [
        {"retries": 3},
        {"action": "FETCH"},
        {"assertions": {"stauts": 200}},
        {"assertions": {"body": {"$and": []}}},
        {"assertions": {"body": {"$.a": {"$near": 3}}}},
        {"assertions": {"body": {"$.a": {"$exists": True, "$type": "text"}}}},
    ],
)
def test_what_is_not_understood_is_refused(step: dict[str, Any]) -> None:
    with pytest.raises(BadCase):
        read_case(_case(**step))


def test_steps_that_name_each_other_start_together() -> None:
    document = _case()
    document["steps"] = [
        {"id": "1", "action": "GET"},
        {"id": "2", "action": "GET", "parallel_with": "3"},
        {"id": "3", "action": "GET", "parallel_with": "2"},
        {"id": "4", "action": "GET"},
    ]

    groups = grouped(read_case(document).steps)

    assert [[step.id for step in group] for group in groups] == [["1"], ["2", "3"], ["4"]]


def test_a_reference_to_nothing_is_told() -> None:
    from tests.conformance.ojs.templates import whole_body

    with pytest.raises(Unfilled):
        whole_body("{{steps.gone.response.body}}", {})
