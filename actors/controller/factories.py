"""How the owners of a partition are made from what the controller says: the same in a host process and in a simulation.

`settings` are those of `Places.start`, plain values: `topic`, `partition`, and `topic_settings` for a topic,
`subscription` and `subscription_settings` for a dispatcher, and `served` if it takes the place of one. `controller` is
the address that they ask for everything else; `shared` are the indexes of delayed messages that the actors of this
process have in common, `resources` what else the owners of partitions share.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sluice.actors.controller.running import SERVED
from sluice.actors.delayed.shared import SharedIndexes
from sluice.actors.dispatcher import Dispatcher
from sluice.actors.lookup.directory import Directory
from sluice.actors.messages import SubscriptionSettings, TopicSettings
from sluice.actors.messages.settings import shared_settings
from sluice.actors.ports import Address, Ports
from sluice.actors.topic.partition.hooks import ProcessResources
from sluice.actors.topic.topic import Topic


def make_topic(
    ports: Ports,
    settings: dict[str, Any],
    controller: Address,
    shared: SharedIndexes,
    resources: ProcessResources,
) -> Topic:
    """The owner of a partition's log, not yet started."""
    return Topic(
        ports,
        topic=settings["topic"],
        partition=settings["partition"],
        settings=shared_settings(msgspec.convert(settings["topic_settings"], TopicSettings)),
        bookies=Directory(ports, controller, only=True).bookies,
        shared=shared.get_or_create(settings["topic"], settings["partition"]),
        resources=resources,
    )


def make_dispatcher(ports: Ports, settings: dict[str, Any], controller: Address, shared: SharedIndexes) -> Dispatcher:
    """The owner of a partition's subscription, not yet started."""
    made_with = msgspec.convert(settings["subscription_settings"], SubscriptionSettings)
    return Dispatcher(
        ports,
        topic=settings["topic"],
        partition=settings["partition"],
        subscription=settings["subscription"],
        settings=None if settings.get(SERVED) else shared_settings(made_with),
        directory=Directory(ports, controller, only=True),
        shared=shared.get_or_create(settings["topic"], settings["partition"]),
    )
