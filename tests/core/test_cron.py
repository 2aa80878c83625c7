"""Schedules: what they mean on the wall clock, across clock changes, and after an absence."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.cron import CronSchedule, Misfire, fire_id, jitter_of, to_fire, zone_of
from penstock.core.errors import ConfigError

ZONES = [
    *("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia"),
    *("Asia/Kathmandu", "America/Havana", "Africa/Casablanca", "Asia/Beirut"),
]
EXPRESSIONS = [
    *("* * * * *", "*/15 * * * *", "30 2 * * *", "0 0 * * *", "15 */6 * * *", "0 9 * * 1-5"),
    *("*/20 1 * * *", "0 12 L * *", "5 4 1 */3 *", "@hourly", "@every 7m"),
]


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def fires(expression: str, zone: str, after: str, count: int) -> list[str]:
    schedule = CronSchedule.parse(expression, zone)
    end = at(after) + timedelta(days=4000)
    return [f"{t:%m-%d %H:%M}" for t in islice(schedule.between(at(after), end), count)]


def test_words_stand_for_their_fields() -> None:
    after = at("2026-05-13T10:20:30Z")

    for word, first in {
        "@yearly": "2027-01-01T00:00:00Z",
        "@ANNUALLY": "2027-01-01T00:00:00Z",
        "@monthly": "2026-06-01T00:00:00Z",
        "@weekly": "2026-05-17T00:00:00Z",
        "@daily": "2026-05-14T00:00:00Z",
        "@midnight": "2026-05-14T00:00:00Z",
        "@hourly": "2026-05-13T11:00:00Z",
    }.items():
        assert CronSchedule.parse(word).next_after(after) == at(first), word


def test_names_and_both_sundays_are_read_in_any_case() -> None:
    assert fires("0 0 * jan SUN", "UTC", "2026-01-01T00:00:00Z", 1) == ["01-04 00:00"]
    assert fires("0 0 * * 7", "UTC", "2026-01-01T00:00:00Z", 1) == ["01-04 00:00"]


def test_either_restricted_day_field_may_match() -> None:
    found = fires("0 0 13 * 5", "UTC", "2026-02-01T00:00:00Z", 3)
    assert found == ["02-06 00:00", "02-13 00:00", "02-20 00:00"]


@pytest.mark.parametrize(
    "bad",
    [
        *("", "* * * *", "* * * * * *", "0 0 0 0 0 0 0", "99 25 32 13 8", "*/0 * * * *"),
        *("not a valid cron x", "0 0 30 2 *", "@fortnightly", "@every", "@every 0s", "@every 1x"),
        *("@every 100000h", "5-1 * * * *", "a b c d e", "0 0 L/2 * L", "1,, * * * *", "* * * * #"),
    ],
)
def test_what_is_no_schedule_is_refused_with_a_remedy(bad: str) -> None:
    with pytest.raises(ConfigError) as refused:
        CronSchedule.parse(bad)

    assert refused.value.code == "cron.expression"
    assert refused.value.remedy


@pytest.mark.parametrize(
    "zone", ["+05:00", "EST", "CST", "Europe/Nowhere", "", "../etc/passwd", "/"]
)
def test_offsets_abbreviations_and_unknown_places_are_no_zones(zone: str) -> None:
    with pytest.raises(ConfigError):
        CronSchedule.parse("@daily", zone)


def test_the_hour_is_the_one_on_the_wall_in_its_zone() -> None:
    assert fires("0 9 * * *", "Asia/Tokyo", "2026-01-01T12:00:00Z", 1) == ["01-02 00:00"]
    assert fires("0 9 * * *", "America/New_York", "2026-01-01T00:00:00Z", 1) == ["01-01 14:00"]
    assert fires("0 9 * * *", "America/New_York", "2026-07-01T00:00:00Z", 1) == ["07-01 13:00"]


def test_a_time_that_does_not_exist_is_skipped_and_can_be_told() -> None:
    """On 2026-03-29 Berlin jumps from 02:00 to 03:00."""
    schedule = CronSchedule.parse("30 2 * * *", "Europe/Berlin")

    assert fires("30 2 * * *", "Europe/Berlin", "2026-03-27T12:00:00Z", 2) == [
        "03-28 01:30",
        "03-30 00:30",
    ]
    told = schedule.skipped(at("2026-03-28T12:00:00Z"), at("2026-03-30T12:00:00Z"))
    assert told == [datetime(2026, 3, 29, 2, 30)]


def test_a_time_that_happens_twice_fires_the_first_time_only() -> None:
    """On 2026-10-25 Berlin goes back from 03:00 to 02:00 at 01:00 UTC."""
    assert fires("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", 2) == [
        "10-25 00:30",
        "10-26 01:30",
    ]
    assert fires("*/30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", 3) == [
        "10-25 00:00",
        "10-25 00:30",
        "10-26 01:00",
    ]


def test_between_the_two_equal_hours_nothing_fires_again() -> None:
    schedule = CronSchedule.parse("30 2 * * *", "Europe/Berlin")

    second_time = at("2026-10-25T01:10:00Z")  # 02:10 for the second time
    assert schedule.next_after(second_time) == at("2026-10-26T01:30:00Z")
    assert schedule.previous(second_time) == at("2026-10-25T00:30:00Z")


def test_every_hour_keeps_its_rhythm_through_clock_changes() -> None:
    back = fires("0 * * * *", "Europe/Berlin", "2026-10-24T23:30:00Z", 3)
    assert back == ["10-25 00:00", "10-25 01:00", "10-25 02:00"]
    ahead = fires("*/30 * * * *", "Europe/Berlin", "2026-03-29T00:10:00Z", 3)
    assert ahead == ["03-29 00:30", "03-29 01:00", "03-29 01:30"]


def test_a_day_that_the_island_left_out_has_no_midnight() -> None:
    """Samoa went from 29 to 31 December 2011."""
    assert fires("0 0 30 12 *", "Pacific/Apia", "2011-01-01T00:00:00Z", 2)[0] == "12-29 10:00"


def test_every_counts_from_its_anchor() -> None:
    anchor = at("2026-01-01T00:00:10Z")
    schedule = CronSchedule.parse("@every 1h30m", anchor=anchor)

    assert schedule.next_after(anchor - timedelta(days=3)) == anchor + timedelta(minutes=90)
    assert schedule.next_after(anchor) == anchor + timedelta(minutes=90)
    assert schedule.next_after(anchor + timedelta(minutes=90)) == anchor + timedelta(hours=3)
    assert schedule.previous(anchor + timedelta(minutes=90)) is None
    assert schedule.previous(anchor + timedelta(minutes=91)) == anchor + timedelta(minutes=90)


@settings(max_examples=150, deadline=None)
@given(
    expression=st.sampled_from(EXPRESSIONS),
    zone=st.sampled_from(ZONES),
    start=st.datetimes(datetime(2005, 1, 1), datetime(2035, 1, 1)),
)
def test_forwards_and_backwards_are_the_same_instants(
    expression: str, zone: str, start: datetime
) -> None:
    schedule = CronSchedule.parse(expression, zone, anchor=at("2000-01-01T00:00:00Z"))
    begin = start.replace(tzinfo=UTC)

    forward = list(islice(schedule.between(begin, begin + timedelta(days=8000)), 6))

    assert all(a < b for a, b in pairwise(forward))
    for earlier, later in pairwise(forward):
        assert schedule.previous(later) == earlier
        assert schedule.next_after(earlier + timedelta(microseconds=1)) == later
    first = schedule.previous(forward[0])
    assert first is None or first <= begin


@settings(max_examples=100, deadline=None)
@given(
    zone=st.sampled_from(ZONES),
    start=st.datetimes(datetime(2005, 1, 1), datetime(2035, 1, 1)),
    hour=st.integers(0, 23),
    minute=st.integers(0, 59),
)
def test_a_daily_time_fires_once_on_each_day_that_has_it(
    zone: str, start: datetime, hour: int, minute: int
) -> None:
    schedule = CronSchedule.parse(f"{minute} {hour} * * *", zone)
    tz = ZoneInfo(zone)
    begin = start.replace(tzinfo=UTC)

    found = [t.astimezone(tz) for t in schedule.between(begin, begin + timedelta(days=20))]

    assert {(t.hour, t.minute) for t in found} <= {(hour, minute)}
    assert len({t.date() for t in found}) == len(found) >= 17


def test_skip_drops_what_was_missed() -> None:
    hourly, now = CronSchedule.parse("0 * * * *"), at("2026-01-01T12:30:00Z")
    assert to_fire(hourly, at("2026-01-01T08:10:00Z"), now, Misfire.SKIP) == []


def test_once_makes_up_for_an_absence_with_the_newest() -> None:
    hourly, now = CronSchedule.parse("0 * * * *"), at("2026-01-01T12:30:00Z")
    found = to_fire(hourly, at("2026-01-01T08:10:00Z"), now, Misfire.ONCE)
    assert found == [at("2026-01-01T12:00:00Z")]


def test_all_makes_up_for_each_up_to_the_limit() -> None:
    hourly, now = CronSchedule.parse("0 * * * *"), at("2026-01-01T12:30:00Z")
    last = at("2026-01-01T08:10:00Z")
    assert [t.hour for t in to_fire(hourly, last, now, Misfire.ALL)] == [9, 10, 11, 12]
    assert [t.hour for t in to_fire(hourly, last, now, Misfire.ALL, limit=2)] == [11, 12]


@pytest.mark.parametrize("policy", list(Misfire))
def test_what_is_on_time_fires_under_every_policy(policy: Misfire) -> None:
    minutely, now = CronSchedule.parse("* * * * *"), at("2026-01-01T12:30:05Z")
    found = to_fire(minutely, at("2026-01-01T12:29:30Z"), now, policy)
    assert found == [at("2026-01-01T12:30:00Z")]


@pytest.mark.parametrize("policy", list(Misfire))
def test_nothing_fires_twice(policy: Misfire) -> None:
    minutely, now = CronSchedule.parse("* * * * *"), at("2026-01-01T12:30:05Z")
    assert to_fire(minutely, at("2026-01-01T12:30:00Z"), now, policy) == []


def test_ten_years_of_absence_cost_no_more_than_a_minute() -> None:
    minutely, now = CronSchedule.parse("* * * * *"), at("2026-01-01T12:30:05Z")
    found = to_fire(minutely, at("2016-01-01T00:00:00Z"), now, Misfire.ONCE)
    assert found == [at("2026-01-01T12:30:00Z")]


def test_jitter_is_spread_yet_the_same_everywhere() -> None:
    nominal, most = at("2026-01-01T00:00:00Z"), timedelta(seconds=30)
    drawn = {jitter_of(f"job-{i}", nominal, most) for i in range(50)}

    assert len(drawn) == 50
    assert all(timedelta(0) <= d < most for d in drawn)
    assert jitter_of("job-1", nominal, most) == jitter_of("job-1", nominal, most)


def test_a_firing_has_one_name_and_needs_a_zone() -> None:
    berlin = datetime(2027, 3, 28, 3, 0, tzinfo=zone_of("Europe/Berlin"))
    assert fire_id("nightly", berlin) == "nightly@20270328T010000Z"
    with pytest.raises(ValueError, match="time zone"):
        fire_id("nightly", datetime(2027, 3, 28))
