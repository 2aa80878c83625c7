"""natq's bytes: names, inputs and records, as every SDK reads and writes them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from penstock.core.codec import JsonError
from penstock.core.errors import BadInput, ConfigError
from penstock.core.ids import uuid7_instant
from penstock.core.invocation import MISSING
from penstock.protocols.natq import wire
from penstock.protocols.natq.wire import BadRunId, Input, Output, parse_input

run_ids = st.from_regex(r"[-/_=A-Za-z0-9]+(\.[-/_=A-Za-z0-9]+)*", fullmatch=True).filter(
    lambda text: len(text) < 100
)


def test_reserved_members_are_taken_out_of_the_input() -> None:
    given_input = parse_input(b'{"runId":"r-1","dropResultOnSuccess":true,"a":1}')

    assert given_input == Input("r-1", {"a": 1}, drop_result=True)


@pytest.mark.parametrize("run_id", ["", 0, None, False])
def test_a_run_id_that_says_nothing_is_replaced_by_a_uuid7(run_id: object) -> None:
    made = parse_input(json.dumps({"runId": run_id}).encode()).run_id

    assert uuid7_instant(made) is not None


def test_a_number_as_run_id_becomes_text() -> None:
    assert parse_input(b'{"runId":42}').run_id == "42"


@pytest.mark.parametrize("run_id", ["a b", ".a", "a.", "a..b", "a*", "a>", "ü", "a\n", "x" * 600])
def test_a_run_id_that_cannot_be_a_key_is_refused(run_id: str) -> None:
    with pytest.raises(BadRunId, match="letters, digits"):
        parse_input(json.dumps({"runId": run_id}).encode())


@pytest.mark.parametrize("run_id", [True, ["a"], {"a": 1}])
def test_a_run_id_of_another_kind_is_refused(run_id: object) -> None:
    with pytest.raises(BadRunId):
        parse_input(json.dumps({"runId": run_id}).encode())


@pytest.mark.parametrize("payload", [b"", b"{", b"\xff\xfe", b'{"a":NaN}', b"nope"])
def test_what_is_not_json_is_refused(payload: bytes) -> None:
    with pytest.raises(JsonError):
        parse_input(payload)


@pytest.mark.parametrize(("payload", "body"), [(b"[1,2]", [1, 2]), (b'"x"', "x"), (b"7", 7)])
def test_any_json_value_is_an_input(payload: bytes, body: object) -> None:
    assert parse_input(payload).body == body


def test_null_is_no_input() -> None:
    assert parse_input(b"null").body is MISSING


@pytest.mark.parametrize(("value", "compat", "drops"), [
    (True, False, True), (1, False, False), ("yes", False, False),
    (1, True, True), ("yes", True, True), (0, True, False),
])  # fmt: skip
def test_only_true_drops_a_result_unless_compat_is_on(
    value: object, compat: bool, drops: bool
) -> None:
    payload = json.dumps({"dropResultOnSuccess": value}).encode()

    assert parse_input(payload, compat=compat).drop_result is drops


@given(st.binary() | st.text().map(str.encode))
def test_no_payload_does_more_than_be_an_input_or_be_refused(payload: bytes) -> None:
    try:
        read = parse_input(payload)
    except (JsonError, BadRunId):
        return
    assert wire.check_run_id(read.run_id)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["runId", "dropResultOnSuccess", "a"]), json_values))
def test_no_reserved_member_does_more_than_be_taken_or_be_refused(body: dict[str, object]) -> None:
    try:
        read = parse_input(json.dumps(body).encode())
    except (JsonError, BadRunId):
        return
    assert wire.check_run_id(read.run_id)
    assert "runId" not in read.body and "dropResultOnSuccess" not in read.body


@given(st.fixed_dictionaries(
    {"id": json_values, "taskId": json_values, "status": json_values},
    optional=dict.fromkeys(("data", "error", "attempt", "seq", "worker"), json_values),
))  # fmt: skip
def test_a_record_of_any_kind_is_read_or_refused_and_its_status_is_a_number(
    record: dict[str, object],
) -> None:
    try:
        read = wire.decode_output(json.dumps(record).encode())
    except JsonError:
        return
    assert isinstance(read.id, str) and isinstance(read.status, int)
    assert read.error is UNSET or isinstance(read.error, str)


def test_records_in_the_manner_of_other_sdks_are_read() -> None:
    spaced = wire.decode_output(b'{"id": 7, "taskId": "t", "status": 200, "error": null}')
    odd = wire.decode_output(b'{"id":"r","taskId":"t","status":200,"data":{"x":NaN},"more":1}')

    assert (spaced.id, spaced.error) == ("7", UNSET)
    assert odd.is_final
    with pytest.raises(JsonError):
        wire.decode_output(b'["not", "a", "record"]')


@pytest.mark.parametrize("subject", [
    "$JS.API.STREAM.DELETE.natq_jobs", "a b", "a..b", "a.*", "a.>", ">", "", ".a", "a.",
    "a\r\nPUB b",
])  # fmt: skip
def test_an_announced_subject_that_could_do_harm_is_not_believed(subject: str) -> None:
    definition = wire.TaskDefinition("t", wire.TaskType.SYNC, subject)

    assert wire.subject_of("t", "natq.req.", definition) == "natq.req.t"


def test_an_announced_subject_is_used_and_a_missing_one_computed() -> None:
    moved = wire.TaskDefinition("t", wire.TaskType.SYNC, "other.place")

    assert wire.subject_of("t", "natq.req.", moved) == "other.place"
    assert wire.subject_of("t", "natq.req.", wire.TaskDefinition("t", wire.TaskType.SYNC)) == (
        "natq.req.t"
    )


@given(run_ids, st.dictionaries(st.text(), st.integers() | st.text() | st.none(), max_size=4))
def test_a_submission_is_read_back_as_it_was_meant(run_id: str, body: dict[str, object]) -> None:
    body = {k: v for k, v in body.items() if k not in ("runId", "dropResultOnSuccess")}

    payload = wire.submission(body, run_id=run_id, drop_result=True)

    assert parse_input(payload) == Input(run_id, body, drop_result=True)


def test_a_list_cannot_be_submitted_because_it_has_no_place_for_a_run_id() -> None:
    with pytest.raises(BadInput, match="needs an object"):
        wire.submission([1, 2], run_id="r")


def test_the_processing_record_is_the_minimal_one_every_sdk_knows() -> None:
    assert wire.processing_record("t", "r") == b'{"id":"r","taskId":"t","status":100}'


@given(run_ids, st.none() | st.integers(0, 99), st.none() | st.integers(1, 2**40))
def test_a_processing_record_reads_back(run_id: str, attempt: int | None, seq: int | None) -> None:
    record = wire.decode_output(wire.processing_record("t", run_id, attempt=attempt, seq=seq))

    assert record.id == run_id
    assert not record.is_final
    assert record.attempt == (UNSET if attempt is None else attempt)
    assert record.seq == (UNSET if seq is None else seq)


def test_absent_data_and_error_are_left_out_but_null_is_kept() -> None:
    assert wire.encode_output(Output("r", "t", 200)) == b'{"id":"r","taskId":"t","status":200}'
    assert wire.encode_output(Output("r", "t", 200, None)) == (
        b'{"id":"r","taskId":"t","status":200,"data":null}'
    )


def test_a_result_that_json_cannot_say_is_refused() -> None:
    with pytest.raises(JsonError, match="nan"):
        wire.encode_output(Output("r", "t", 200, {"x": float("nan")}))


def test_a_definition_without_subject_is_read() -> None:
    definition = wire.decode_definition(b'{"id":"p-a","type":"async"}')

    assert definition.type is wire.TaskType.ASYNC
    assert definition.subject is None


def test_a_definition_is_written_in_the_names_of_the_wire() -> None:
    definition = wire.TaskDefinition("t", wire.TaskType.SYNC, "natq.req.t", "{}", None)

    assert json.loads(wire.codec.encode(definition)) == {
        "id": "t",
        "type": "sync",
        "subject": "natq.req.t",
        "inputSchema": "{}",
    }


@pytest.mark.parametrize("task_id", ["", "a.b", "a b", "a*", "a>b", "é"])
def test_a_task_id_that_could_change_a_subject_is_refused(task_id: str) -> None:
    with pytest.raises(ConfigError, match="cannot be used on natq"):
        wire.check_task_id(task_id)


def test_reply_headers_are_spelled_in_lower_case() -> None:
    assert wire.reply_headers(200) == b"status: 200\r\n"
    assert wire.reply_headers(400, "no") == b"status: 400\r\nerror: no\r\n"


def test_an_error_text_cannot_smuggle_a_header_line() -> None:
    headers = wire.reply_headers(500, "boom\r\nstatus: 200\r\n\r\n" + "x" * 5000)

    assert headers.count(b"\r\n") == 2
    assert len(headers) < 1200
