"""Decides whether a client may do something, from its roles, its wish and the recorded permissions.

A client has roles (actors.pulsar.conversation.gateway.gateway), and may do what one of them may. In order:

* A superuser may do everything, and an administrator of a tenant everything with the tenant's topics and namespaces.
* A viewer may look at everything but the content of messages, and change nothing.
* Another role may produce or consume where that was granted to it, for the topic or for its namespace
  (actors.policies.permissions). A subscription that has roles of its own is for these roles alone. A role that may do
  one of the two may look the topic up and see its statistics.

Names of topics are Sluice's own here. The caller has translated a client's name, so a topic has one name, and a
partition is its topic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sluice.actors.ownership.names import namespace_of, unquoted
from sluice.actors.policies.namespaces import Tenant
from sluice.actors.policies.permissions import Grants
from sluice.storage.errors import Invalid

Needed = Literal["superuser", "administrator", "produce", "consume", "either"]
"""either: produce or consume, of a topic; with any subscription."""


EVERY = "*"
"""Stands for all subscriptions of a topic or namespace: no name looks like that."""


NO_PROXIES = "this broker takes no proxy's word for who asks: connect to it without one"
"""What a proxy is told that names somebody else: whoever comes through it would have the rights of the proxy."""


class Forbidden(Invalid):
    """No role of the client has the right that is needed. The text says which."""


@dataclass(frozen=True, slots=True)
class Wish:
    """An action that a client asks for. Without a topic it concerns a namespace, without that a tenant, or the cluster.

    space: as in `sales/eu`. looks: it changes nothing and shows no content of messages.
    """

    needs: Needed
    topic: str = ""
    space: str = ""
    tenant: str = ""
    subscription: str = ""
    looks: bool = False


def of_topic(needs: Needed, topic: str, subscription: str = "", *, looks: bool = False) -> Wish:
    """A wish that concerns a topic."""
    space, _ = namespace_of(topic)
    return Wish(needs, topic, space, space.partition("/")[0], subscription, looks)


def of_space(needs: Needed, space: str, subscription: str = "", *, looks: bool = False) -> Wish:
    """A wish that concerns a namespace, or all of its topics."""
    return Wish(needs, "", space, space.partition("/")[0], subscription, looks)


NOBODY, NOTHING = Tenant(), Grants()


@dataclass(frozen=True, slots=True)
class KnownRights:
    """The recorded rights of the tenant, the namespace and the topic that a wish concerns."""

    tenant: Tenant = NOBODY
    space: Grants = NOTHING
    topic: Grants = NOTHING


@dataclass(frozen=True, slots=True)
class Authorization:
    """The roles that settings name."""

    superusers: Sequence[str] = ()
    viewers: Sequence[str] = ()

    def known_from_settings(self, roles: Sequence[str], wish: Wish) -> bool:
        """Whether these may do this, whatever the records say."""
        return any(role in self.superusers or (wish.looks and role in self.viewers) for role in roles)

    def permits(self, roles: Sequence[str], wish: Wish, rights: KnownRights) -> bool:
        """Whether these may do this."""
        return self.known_from_settings(roles, wish) or any(_permitted(role, wish, rights) for role in roles)


def _permitted(role: str, wish: Wish, rights: KnownRights) -> bool:
    if wish.needs == "superuser" or not wish.tenant:
        return False
    if role in rights.tenant.admin_roles:
        return True
    if wish.needs == "administrator":
        return False
    granted = (*rights.space.roles.get(role, ()), *rights.topic.roles.get(role, ()))
    if wish.needs == "either":
        return "produce" in granted or "consume" in granted
    if wish.needs == "consume" and wish.subscription:
        named, subscriptions = wish.subscription, rights.space.subscriptions
        for only in subscriptions.values() if named == EVERY else [subscriptions.get(named)]:
            if only and role not in only:
                return False
    return wish.needs in granted


def refusal(roles: Sequence[str], wish: Wish) -> Forbidden:
    """Return the error for a refused client. The text names the missing right, and not whether the topic exists."""
    who = f"role {roles[0]!r}" if len(roles) == 1 else f"none of the roles {', '.join(map(repr, roles[:5]))}"
    where = unquoted(wish.topic) if wish.topic else wish.space or wish.tenant
    if wish.needs == "superuser":
        return Forbidden(f"{who} is not authorized: this needs a superuser")
    if wish.needs == "administrator":
        return Forbidden(f"{who} is not authorized: this needs an administrator of tenant {wish.tenant}")
    action = "produce or consume" if wish.needs == "either" else wish.needs
    using = f" with subscription {unquoted(wish.subscription)}" if wish.subscription else ""
    using = " with every subscription" if wish.subscription == EVERY else using
    return Forbidden(f"{who} is not authorized: this needs the permission {action} for {where}{using}")
