"""Which names are allowed, and that the refusal is one line that says why."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.actors.ownership.names import MAX_NAME, check_name, check_space, namespace_of, quoted, unquoted
from sluice.storage.errors import Invalid


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
        "non-persistent://public/default/orders", "persistent://orders", "persistent://public/default/",
        "persistent://public/default/../x", "public/default/a/b", "orders-partition-3", "a..b", "a..b..c..d", "..a..b",
        "public..default..a",
        "persistent://public/default/orders-partition-0", "persistent://sales/eu/orders-partition-0", "sales/orders",
        "sales/eu/west/orders", "sales./eu/orders", "sales/eu./orders", "sales/.eu/orders", "sales..eu/orders",
        "sales//orders", "/eu/orders", "sales/eu/", "persistent://sales/eu/a..b", "sales/eu/persistent://a/b/c",
    ],
)  # fmt: skip
def test_other_topic_names_are_refused(full: str) -> None:
    with pytest.raises(Invalid):
        check_name("topic", full)


@pytest.mark.parametrize("full", ["persistent://sales/eu/orders", "sales/eu/orders", "sales..eu..orders"])
def test_a_topic_of_another_namespace_has_a_name_of_its_own(full: str) -> None:
    assert check_name("topic", full) == "sales..eu..orders"
    assert namespace_of("sales..eu..orders") == ("sales/eu", "orders")
    assert namespace_of("orders") == ("public/default", "orders")


_PART = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,8}", fullmatch=True)


@given(_PART, _PART, _PART)
def test_no_two_topics_share_a_name(tenant: str, namespace: str, own: str) -> None:
    try:
        name = check_name("topic", f"persistent://{tenant}/{namespace}/{own}")
    except Invalid:
        return
    assert namespace_of(name) == (f"{tenant}/{namespace}", own)


@pytest.mark.parametrize(
    ("kind", "text"), [("tenant", "a/b"), ("tenant", "a."), ("tenant", ""), ("tenant", "a..b"), ("namespace", "a")]
)
def test_names_of_tenants_and_namespaces_are_as_narrow(kind: str, text: str) -> None:
    check_space("tenant", "sales")
    check_space("namespace", "sales/eu")
    with pytest.raises(Invalid):
        check_space(kind, text)


@given(st.text(max_size=200))
@settings(max_examples=200)
def test_allowed_name_is_safe_as_a_file_name(text: str) -> None:
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


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("orders", "orders"), ("a.b-c_d", "a.b-c_d"), ("a..b", "q--a._2eb"), ("", ""), (" ", " "),
        ("eu/billing", "q--eu_2fbilling"),
        ("-a", "q---a"), ("_a", "q--_5fa"), ("é", "q--_c3_a9"), ("q--a", "q--a"), ("q--a_2fb", "q--a_2fb"),
    ],
)  # fmt: skip
def test_name_with_other_letters_is_quoted(text: str, name: str) -> None:
    assert quoted(text) == name


@given(st.text(min_size=1, max_size=10).filter(str.strip))
def test_every_name_that_is_quoted_is_allowed_and_found_again(text: str) -> None:
    name = quoted(text)
    assert check_name("subscription", name) == name
    assert unquoted(name) == (unquoted(text) if name == text else text)


@pytest.mark.parametrize("name", ["q--a", "q--_ff", "q--_2", "q--a_2Fb", "q--_61", "orders", "q-a_2fb"])
def test_unquoted_name_is_shown_as_it_is(name: str) -> None:
    assert unquoted(name) == name
