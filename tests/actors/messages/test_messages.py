"""The whole conversation: every request can be answered, survives the wire, and is handled by somebody."""

from __future__ import annotations

import inspect

import msgspec
import pytest

from sluice.actors.bookie import Bookie
from sluice.actors.controller.candidate import ControllerCandidate
from sluice.actors.controller.controller import Controller
from sluice.actors.dispatcher import Dispatcher
from sluice.actors.messages import Done, SubscriptionSettings, TopicSettings
from sluice.actors.ports.wire import Reply, pack, unpack
from sluice.actors.pulsar.conversation.gateway.gateway import GatewayActor
from sluice.actors.runtime.host import REQUESTS, Actor
from sluice.actors.topic.topic import Topic

BY_HAND = {"Ping"}
"""Answered by every actor in actors.runtime.host."""


@pytest.mark.parametrize("name", sorted(REQUESTS))
def test_every_request_names_its_reply(name: str) -> None:
    """A reply that travels, with a description of both."""
    request = REQUESTS[name]
    assert issubclass(request.reply, Reply)
    assert inspect.getdoc(request)
    assert inspect.getdoc(request.reply)


def test_every_request_is_handled_by_some_actor() -> None:
    """By the method that its name gives."""
    kinds: list[type[Actor]] = [Bookie, Topic, Dispatcher, Controller, ControllerCandidate, GatewayActor]
    handled = {name for kind in kinds for name in dir(kind) if name.startswith("on_")}
    wanted = {
        "on_" + "".join("_" + letter.lower() if letter.isupper() else letter for letter in name).lstrip("_")
        for name in set(REQUESTS) - BY_HAND
    }
    assert wanted - handled == set()
    assert handled - wanted == set()


def test_unknown_fields_are_ignored_and_missing_ones_default() -> None:
    """So that a newer peer can say more."""
    head = msgspec.msgpack.encode({"colour": "red"})
    assert unpack(Done, head, [], []) == Done()
    assert pack(Done()).head == msgspec.msgpack.encode({})


@pytest.mark.parametrize("kind", [TopicSettings, SubscriptionSettings])
def test_settings_survive_metadata(kind: type[msgspec.Struct]) -> None:
    """As JSON, whole; and an older record without the newest fields reads as defaults."""
    settings = kind()
    assert msgspec.json.decode(msgspec.json.encode(settings), type=kind) == settings
    assert msgspec.json.decode(b"{}", type=kind) == settings
