"""Allowed values of settings, and the treatment of invalid ones that were stored before values were checked."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.actors.messages import SubscriptionSettings, TopicSettings
from sluice.actors.messages.settings import CHOICES, LIMITS, check_subscription, check_topic, repaired, stored_settings
from sluice.storage.errors import Invalid

KINDS = (TopicSettings, SubscriptionSettings)


def check(found: TopicSettings | SubscriptionSettings) -> None:
    if isinstance(found, TopicSettings):
        check_topic(found)
    else:
        check_subscription(found)


@pytest.mark.parametrize("kind", KINDS)
def test_every_number_has_limits_that_hold_its_default(kind: Any) -> None:
    numbers = [field.name for field in msgspec.structs.fields(kind) if type(field.default) is int]
    assert set(numbers) <= set(LIMITS)
    check(kind())
    for name in numbers:
        for wrong in (LIMITS[name][0] - 1, LIMITS[name][1] + 1, 10**20, -(10**20)):
            with pytest.raises(Invalid, match=name):
                check(kind(**{name: wrong}))


def test_every_choice_is_checked() -> None:
    for name in CHOICES:
        with pytest.raises(Invalid, match=f"{name} = 'odd': choose one of"):
            check_subscription(SubscriptionSettings(**{name: "odd"}))  # type: ignore[arg-type]


ANY = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_is_stored_becomes_settings_that_work(kind: Any) -> None:
    names = [field.name for field in msgspec.structs.fields(kind) if "quorum" not in field.name]
    names.remove("ensemble") if "ensemble" in names else None

    @given(st.one_of(ANY, st.dictionaries(st.sampled_from([*names, "odd"]), ANY, max_size=6)))
    @settings(max_examples=300, deadline=None, derandomize=True)
    def stored(plain: Any) -> None:
        found, told = repaired(plain, kind)
        check(found)
        if isinstance(plain, dict):
            kept = {name: value for name, value in plain.items() if name in names}
            changed = [name for name, value in kept.items() if getattr(found, name) != value]
            assert len(told) >= len(changed)

    stored()


@pytest.mark.parametrize("kind", KINDS)
def test_good_settings_come_back_as_they_were(kind: Any) -> None:
    assert stored_settings(msgspec.json.encode(kind()), kind) == (kind(), [])


def test_changed_settings_are_reported() -> None:
    plain = {"delayed_delivery_tick_time_millis": -5, "type": "odd", "lease_ms": "x", "replica_points": 7}
    found, told = stored_settings(json.dumps(plain).encode(), SubscriptionSettings)
    assert found == SubscriptionSettings(replica_points=7)
    assert "delayed_delivery_tick_time_millis = -5 is used as 0" in told
    assert sorted(line.split()[0] for line in told) == sorted(list(plain)[:3])
    assert stored_settings(b"\xff{", TopicSettings)[0] == TopicSettings()
