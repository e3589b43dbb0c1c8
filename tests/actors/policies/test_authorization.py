"""The authorization decision alone, for every kind of role and of wish."""

from __future__ import annotations

import pytest

from sluice.actors.policies.authorization import EVERY, Authorization, KnownRights, Wish, of_space, of_topic, refusal
from sluice.actors.policies.namespaces import Tenant
from sluice.actors.policies.permissions import Grants

SETTINGS = Authorization(("root",), ("watcher",))
RIGHTS = KnownRights(
    Tenant(("chief",)),
    Grants({"reader": ["consume"], "writer": ["produce"], "clerk": ["consume"]}, {"billing": ["clerk"]}),
    Grants({"reader": ["produce"], "once": ["consume"], "odd": ["functions"]}),
)
TOPIC = "sales..eu..orders"
ROLES = ("root", "watcher", "chief", "reader", "writer", "clerk", "once", "odd", "nobody")
WISHES = {
    Wish("superuser"): "root",
    Wish("superuser", looks=True): "root watcher",
    Wish("administrator", tenant="sales"): "root chief",
    Wish("administrator", tenant="sales", looks=True): "root watcher chief",
    of_space("administrator", "sales/eu"): "root chief",
    of_topic("produce", TOPIC): "root chief reader writer",
    of_topic("consume", TOPIC): "root chief reader clerk once",
    of_topic("consume", TOPIC, "billing"): "root chief clerk",
    of_topic("consume", TOPIC, "shipping"): "root chief reader clerk once",
    of_topic("consume", TOPIC, EVERY): "root chief clerk",
    of_topic("consume", TOPIC, looks=True): "root watcher chief reader clerk once",
    of_topic("either", TOPIC): "root chief reader writer clerk once",
}


@pytest.mark.parametrize("wish", WISHES, ids=str)
def test_each_wish_is_permitted_to_its_roles_alone(wish: Wish) -> None:
    assert [role for role in ROLES if SETTINGS.permits((role,), wish, RIGHTS)] == WISHES[wish].split()


def test_the_roles_of_one_client_add_up() -> None:
    assert SETTINGS.permits(("nobody", "writer"), of_topic("produce", TOPIC), RIGHTS)
    assert SETTINGS.permits(("nobody", "root"), Wish("superuser"), RIGHTS)
    assert not SETTINGS.permits((), of_topic("produce", TOPIC), RIGHTS)
    both = of_topic("consume", TOPIC, "billing")
    assert not SETTINGS.permits(("reader", "nobody"), both, RIGHTS), "one role has to have both"


def test_rights_of_a_namespace_are_not_those_of_its_topics() -> None:
    assert not SETTINGS.permits(("once",), of_space("consume", "sales/eu"), KnownRights(space=RIGHTS.space))


def test_a_refusal_names_the_missing_right() -> None:
    told = {
        of_topic("produce", TOPIC): "role 'till' is not authorized: this needs the permission produce for",
        of_topic("either", "orders"): "this needs the permission produce or consume for orders",
        of_topic("consume", "orders", "q--a_2fb"): "consume for orders with subscription a/b",
        of_topic("consume", "orders", EVERY): "consume for orders with every subscription",
        of_space("consume", "sales/eu"): "consume for sales/eu",
        Wish("administrator", tenant="sales"): "this needs an administrator of tenant sales",
        Wish("superuser"): "this needs a superuser",
    }
    for wish, text in told.items():
        assert text in str(refusal(("till",), wish))
    assert "none of the roles 'a', 'b'" in str(refusal(("a", "b"), Wish("superuser")))
