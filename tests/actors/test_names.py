"""Which names are allowed, and that the refusal is one line that says why."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.names import MAX_NAME, check_name
from storage.errors import Invalid


@pytest.mark.parametrize("name", ["a", "orders", "Orders", "a.b-c_d", "0", "x" * MAX_NAME])
def test_ordinary_names_are_allowed(name: str) -> None:
    assert check_name("subscription", name) == name


@pytest.mark.parametrize(
    "name",
    [
        "", ".", "..", "../x", "a/../b", "a/b", "/etc", "a\\b", "a..b", "-a", ".a", "_a", "a b", "a\n", "a\0", "%2e%2e",
        "x" * (MAX_NAME + 1), "x" * 300, "оrders", "ﬁ", "a:b", "C:", "é", "٣", "a\u202eb",
    ],
)  # fmt: skip
def test_dangerous_names_are_refused_in_one_line(name: str) -> None:
    with pytest.raises(Invalid) as caught:
        check_name("subscription", name)
    said = str(caught.value)
    assert "subscription name" in said
    assert "\n" not in said
    assert "\0" not in said
    assert len(said) < 200


@pytest.mark.parametrize("full", ["persistent://public/default/orders", "public/default/orders", "orders"])
def test_full_topic_names_of_the_one_namespace_are_shortened(full: str) -> None:
    assert check_name("topic", full) == "orders"


@pytest.mark.parametrize(
    "full",
    [
        "persistent://other/default/orders", "non-persistent://public/default/orders", "persistent://orders",
        "persistent://public/default/", "persistent://public/default/../x", "public/default/a/b", "orders-partition-3",
        "persistent://public/default/orders-partition-0",
    ],
)  # fmt: skip
def test_other_topic_names_are_refused(full: str) -> None:
    with pytest.raises(Invalid):
        check_name("topic", full)


@given(st.text(max_size=200))
@settings(max_examples=200)
def test_what_is_allowed_is_safe_as_a_file_name(text: str) -> None:
    for kind in ("topic", "subscription"):
        try:
            name = check_name(kind, text)
        except Invalid:
            continue
        assert name.isascii()
        assert not {*name} & {*"/\\:%\0 \n"}
        assert name not in (".", "..")
        assert name[0].isalnum()
        assert check_name(kind, name) == name
