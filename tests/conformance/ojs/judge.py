"""The assertions of a step against an answer: every miss is a sentence, none is a pass."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.conformance.ojs.matchers import matches
from tests.conformance.ojs.modes import Mode
from tests.conformance.ojs.paths import PathError, found
from tests.conformance.ojs.templates import Unfilled, expanded, expanded_json, whole_body

__all__ = ["Answer", "judged", "judged_together"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. ``headers`` have lower-case names, the first value of each."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    text: str = ""
    millis: float = 0.0

    @property
    def body(self) -> dict[str, Any] | None:
        """The answer as a JSON object, or `None` when it is something else."""
        try:
            parsed = json.loads(self.text)
        except ValueError:
            return None
        return parsed if isinstance(parsed, dict) else None


def judged(
    assertions: Mapping[str, Any], answer: Answer, bodies: Mapping[str, Any], mode: Mode
) -> list[str]:
    """What ``answer`` misses of ``assertions``."""
    misses = [*_status(assertions, answer, mode)]
    for name, wanted in assertions.get("headers", {}).items():
        misses += _header(name, wanted, answer, mode)
    misses += _body(assertions.get("body", {}), answer, bodies, mode)
    for path in assertions.get("body_absent", ()):
        if (value := _resolved(answer.body, path, mode)) is not None:
            misses.append(f"{path} is {_short(value)}, and should be absent")
    for text in assertions.get("body_contains", ()):
        if text not in answer.text:
            misses.append(f"the answer does not contain {text!r}")
    return [*misses, *_timing(assertions.get("timing_ms", {}), answer)]


def judged_together(assertions: Mapping[str, Any], bodies: Mapping[str, Any]) -> list[str]:
    """What earlier answers, seen together, miss of an ASSERT step."""
    try:
        misses = [*_equal(assertions.get("equality", {}), bodies)]
        if claim := assertions.get("exclusive_claim"):
            misses += _claimed_once(claim, bodies)
    except Unfilled as error:
        return [str(error)]
    return misses


def _status(assertions: Mapping[str, Any], answer: Answer, mode: Mode) -> Iterator[str]:
    if "status" in assertions and not _is_status(assertions["status"], answer.status, mode):
        yield f"status {answer.status}, expected {assertions['status']}: {answer.text[:300]}"
    lists = ["status_in", "status_one_of"] if mode.strict else ["status_in"]
    for key in lists:
        if key in assertions and answer.status not in assertions[key]:
            yield f"status {answer.status}, expected one of {assertions[key]}: {answer.text[:300]}"


def _is_status(wanted: Any, status: int, mode: Mode) -> bool:
    match wanted:
        case int():
            return status == wanted
        case str() if wanted.startswith("one_of:"):
            return str(status) in [s.strip() for s in wanted.removeprefix("one_of:").split(",")]
        case str():
            return matches(status, wanted, mode)
        case {"$in": members}:
            return status in members
        case list() if mode.strict:
            return status in wanted
    return False


def _header(name: str, wanted: Any, answer: Answer, mode: Mode) -> list[str]:
    value = answer.headers.get(name.lower(), "")
    match wanted:
        case str():
            good = value == wanted
        case {"$match": pattern}:
            good = re.search(pattern, value) is not None
        case {"$eq": text}:
            good = value == text
        case {"$exists": bool(exists)} if mode.strict:
            good = (name.lower() in answer.headers) is exists
        case _:
            good = not mode.strict
    return [] if good else [f"header {name} is {value!r}, expected {wanted}"]


def _body(
    wanted: Mapping[str, Any], answer: Answer, bodies: Mapping[str, Any], mode: Mode
) -> list[str]:
    misses: list[str] = []
    for path, matcher in wanted.items():
        if path == "$or":
            alternatives = [_alternative(m, answer, bodies, mode) for m in matcher]
            if all(alternatives):
                misses.append(f"none of {len(alternatives)} alternatives: {alternatives}")
        elif answer.body is None and not mode.strict:
            continue  # upstream compares nothing when the answer is no object
        else:
            misses += _member(path, matcher, answer, bodies, mode)
    return misses


def _alternative(
    wanted: Mapping[str, Any], answer: Answer, bodies: Mapping[str, Any], mode: Mode
) -> list[str]:
    misses = []
    if "$empty" in wanted and (not mode.strict or answer.text.strip() != ""):
        misses.append("the answer is not empty")
    for path, matcher in wanted.items():
        if path != "$empty":
            misses += _member(path, matcher, answer, bodies, mode)
    return misses


def _member(
    path: str, matcher: Any, answer: Answer, bodies: Mapping[str, Any], mode: Mode
) -> list[str]:
    path = expanded(path, bodies)
    matcher = expanded_json(matcher, bodies)
    try:
        value = found(answer.body or {}, path, dotted_keys=mode.strict)
    except PathError as error:
        return [] if matcher == "absent" else [f"{path}: {error}"]
    if mode.strict and matcher == "any" and value is None and not _is_there(answer, path):
        return [f"{path} is missing"]
    if matches(value, matcher, mode):
        return []
    return [f"{path} is {_short(value)}, expected {_short(matcher)}"]


def _is_there(answer: Answer, path: str) -> bool:
    """Whether the last member of ``path`` is there, null or not."""
    parent, dot, name = path.removeprefix("$.").rpartition(".")
    try:
        holder = found(answer.body or {}, parent, dotted_keys=True) if dot else answer.body
    except PathError:
        return False
    return isinstance(holder, dict) and name in holder


def _resolved(body: Any, path: str, mode: Mode) -> Any:
    try:
        return found(body or {}, path, dotted_keys=mode.strict)
    except PathError:
        return None


def _timing(wanted: Mapping[str, Any], answer: Answer) -> Iterator[str]:
    millis = int(answer.millis)
    if "less_than" in wanted and millis >= wanted["less_than"]:
        yield f"took {millis} ms, expected less than {wanted['less_than']}"
    if "greater_than" in wanted and millis <= wanted["greater_than"]:
        yield f"took {millis} ms, expected more than {wanted['greater_than']}"
    if "approximate" in wanted:
        near = wanted["approximate"]
        if abs(millis - near) > max(near * 0.5, 100):
            yield f"took {millis} ms, expected about {near}"


def _equal(wanted: Mapping[str, Any], bodies: Mapping[str, Any]) -> Iterator[str]:
    for left, right in wanted.items():
        if whole_body(left, bodies) != whole_body(right, bodies):
            yield f"{left} and {right} differ"


def _claimed_once(claim: Mapping[str, Any], bodies: Mapping[str, Any]) -> Iterator[str]:
    job_id = whole_body(claim["job_id"], bodies)
    fetched = [whole_body(reference, bodies) for reference in claim["fetches"]]
    having = sum(any(job.get("id") == job_id for job in jobs or ()) for jobs in fetched)
    empty = sum(jobs == [] for jobs in fetched)
    if claim.get("exactly_one_has_job") and having != 1:
        yield f"{having} fetches have the job, expected exactly one"
    if claim.get("exactly_one_empty") and empty != 1:
        yield f"{empty} fetches are empty, expected exactly one"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 200 else text[:200] + "..."
