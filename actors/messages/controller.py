"""What is asked of the controller."""

from __future__ import annotations

from typing import ClassVar

from actors.messages.common import Done, Text
from actors.messages.settings import SubscriptionSettings, TopicSettings
from actors.wire import Reply, Request


class Located(Reply, kw_only=True):
    """Address of each partition's owner, by partition; empty where it is being started and was not waited for."""

    addresses: list[str]
    settings: str = "{}"


class CreateTopic(Request[Done], kw_only=True):
    """Create a topic; Conflict if it exists with other settings."""

    reply: ClassVar[type[Reply]] = Done
    topic: str
    settings: TopicSettings


class LocateTopic(Request[Located], kw_only=True):
    """Addresses of the owners of all partitions; starts those that are not running. NotFound.

    partition: the one whose owner is waited for; None waits for all.
    """

    reply: ClassVar[type[Reply]] = Located
    topic: str
    partition: int | None = None


class LocateSubscription(Request[Located], kw_only=True):
    """Addresses of the dispatchers of all partitions. With settings, the subscription is created if it is new.

    partition: the one whose dispatcher is waited for; None waits for all.
    """

    reply: ClassVar[type[Reply]] = Located
    topic: str
    subscription: str
    settings: SubscriptionSettings | None = None
    partition: int | None = None


class Suspect(Request[Done], kw_only=True):
    """An address did not answer; the controller looks, and replaces it if it is dead."""

    reply: ClassVar[type[Reply]] = Done
    address: str


class BookieList(Reply, kw_only=True):
    """Bookies that answer: stable id and present address, in order of id. read_only: ids that take no new runs."""

    ids: list[str]
    addresses: list[str]
    read_only: list[str] = []


class ListBookies(Request[BookieList]):
    """The bookies that a topic may choose from."""

    reply: ClassVar[type[Reply]] = BookieList


class Manage(Request[Text], kw_only=True):
    """An administrative verb of the cluster: topics, subscriptions, delete_topic, status; arguments as JSON."""

    reply: ClassVar[type[Reply]] = Text
    verb: str
    arguments: str = "{}"
