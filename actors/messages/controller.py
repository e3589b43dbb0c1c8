"""Requests to the controller."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from sluice.actors.messages.common import Done, Text
from sluice.actors.messages.limits import MOST_BOOKIES, Name
from sluice.actors.messages.settings import SubscriptionSettings, TopicSettings
from sluice.actors.ports.wire import Reply, Request


class Located(Reply, kw_only=True):
    """Address of each partition's owner, by partition; empty for one that is starting, if the caller does not wait.

    Where the caller named partitions and wants only those, there are only theirs, in the order in which it named them.

    settings: those of the topic (TopicSettings), as JSON.
    """

    addresses: list[str]
    settings: str = "{}"


class CreateTopic(Request[Done], kw_only=True):
    """Create a topic; Conflict if it exists with other settings."""

    reply: ClassVar[type[Reply]] = Done
    topic: str
    settings: TopicSettings


class AddPartitions(Request[Done], kw_only=True):
    """Give a topic this many partitions, if it has fewer. Existing partitions keep their messages, ids and order.

    NotFound. Invalid if it has more, or only one: to clients of Pulsar that is a topic without partitions. Unavailable
    while somebody else changes the topic.
    """

    reply: ClassVar[type[Reply]] = Done
    topic: Name
    partitions: int


class Locate(Request[Located], kw_only=True):
    """A request for the addresses of the owners of a topic's partitions.

    partition: the one whose owner is waited for; None waits for all. partitions: several in its place; the answer comes
    soon after the first of them is there, and the others' addresses may be empty.
    """

    reply: ClassVar[type[Reply]] = Located
    topic: str
    partition: int | None = None
    partitions: list[int] | None = None

    @property
    def awaited(self) -> list[int] | None:
        """The partitions that are waited for; None for all."""
        return [self.partition] if self.partitions is None and self.partition is not None else self.partitions


class LocateTopic(Locate, kw_only=True):
    """Addresses of the owners of all partitions; starts those that do not run. NotFound if there is no such topic.

    only: no others are looked at than those that are named.
    """

    only: bool = False


class LocateSubscription(Locate, kw_only=True):
    """Addresses of the dispatchers of all partitions. With settings, the subscription is created if it is new.

    waits False: for none; those that are not there, or work with other settings than these, are empty. said: see
    Configure; of a subscription that is new, the others are those of `settings` as well.
    """

    subscription: str
    settings: SubscriptionSettings | None = None
    waits: bool = True
    said: list[str] | None = None


class Leading(Reply, kw_only=True):
    """The state of a candidate for the controller (actors.controller.candidate).

    host, epoch: the process of the controller, and since which epoch. leads: it is this candidate; acts: and may start
    and end others on suspicion. silent_ms: how long this one has not heard the controller. candidates: all processes.
    machine: where this one is.
    """

    host: str
    epoch: int
    leads: bool
    acts: bool
    silent_ms: int
    candidates: list[str]
    machine: str = ""


class WhoLeads(Request[Leading], kw_only=True):
    """Which candidate is the controller? asker: the candidate that asks, and its machine; empty if it is none."""

    reply: ClassVar[type[Reply]] = Leading
    asker: str = ""
    machine: str = ""


class StartGateways(Request[Done]):
    """Answered when each machine's gateway for clients of Pulsar has started once, or could not."""

    reply: ClassVar[type[Reply]] = Done


class NodeDrain(Reply, kw_only=True):
    """How the draining of a node stands. address: of its machine.

    owners, gateways: how many are left there. fragments: parts of ledgers that are still to be copied from bookies
    there; one partition that has not answered yet counts as one. problem: what it waits for, empty if for nothing.
    drained: it was asked for, and not withdrawn since.
    """

    node: str
    address: str
    owners: int = 0
    gateways: int = 0
    fragments: int = 0
    done: bool = False
    problem: str = ""
    drained: bool = True


class DrainNode(Request[NodeDrain], kw_only=True):
    """Begin to move everything away from a node, or say how far that is. node: the address of its machine, or at least
    four characters of its id.

    keep_ledgers: what its bookies hold is not copied, because the machine comes back with its disk. withdrawn: use the
    node again; what has moved stays where it is. look: begin nothing, only tell. A caller that polls sets it: else its
    next question would undo another caller's `withdrawn`.

    NotFound. Invalid if it is the last node, if several are meant, or if too few bookies would be left. Unavailable
    while a bookie is being started that may be there.
    """

    reply: ClassVar[type[Reply]] = NodeDrain
    node: Name
    keep_ledgers: bool = False
    withdrawn: bool = False
    look: bool = False


class Suspect(Request[Done], kw_only=True):
    """An address did not answer; the controller looks, and replaces it if it is dead."""

    reply: ClassVar[type[Reply]] = Done
    address: str


class BookieList(Reply, kw_only=True):
    """Bookies that answer: stable id and present address, in order of id. read_only: ids that take no new runs.

    leaving: ids that are chosen only if there is no other one, because their machine is about to be taken down. frames:
    the newest kind of frame that all processes of the cluster read (storage.format.frame.NEWEST).
    """

    ids: list[str]
    addresses: list[str]
    read_only: list[str] = []
    leaving: list[str] = []
    frames: int = 1


class ListBookies(Request[BookieList]):
    """The bookies that a topic may choose from."""

    reply: ClassVar[type[Reply]] = BookieList


class TopicList(Reply):
    """All topics, with their settings."""

    topics: dict[str, TopicSettings]


class ListTopics(Request[TopicList]):
    """The topics of the cluster."""

    reply: ClassVar[type[Reply]] = TopicList


class SubscriptionList(Reply):
    """names: in order."""

    names: list[str]


class ListSubscriptions(Request[SubscriptionList], kw_only=True):
    """The subscriptions of a topic. NotFound if there is no such topic."""

    reply: ClassVar[type[Reply]] = SubscriptionList
    topic: Name


class RemoveTopic(Request[Done], kw_only=True):
    """Delete a topic with all its partitions. force: even if it has subscriptions, which are deleted as well."""

    reply: ClassVar[type[Reply]] = Done
    removes: ClassVar[bool] = True
    topic: Name
    force: bool = False


class RemoveSubscription(Request[Done], kw_only=True):
    """Delete a subscription on all partitions. force: even if consumers are connected."""

    reply: ClassVar[type[Reply]] = Done
    removes: ClassVar[bool] = True
    topic: Name
    subscription: Name
    force: bool = False


class RemoveUnused(Request[Done], kw_only=True):
    """Delete a subscription that is not durable, unless a consumer uses it on some partition: then it stays whole."""

    reply: ClassVar[type[Reply]] = Done
    topic: Name
    subscription: Name


class BookiesAdded(Reply):
    """ids: those that did not run before."""

    ids: list[str]


class AddBookies(Request[BookiesAdded], kw_only=True):
    """Start bookies with these ids in addition, unless they run already."""

    reply: ClassVar[type[Reply]] = BookiesAdded
    ids: Annotated[list[Name], Meta(max_length=MOST_BOOKIES)]


class DescribeCluster(Request[Text]):
    """A description of what runs where, and in which state, for people."""

    reply: ClassVar[type[Reply]] = Text
