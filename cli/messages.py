"""`sluice produce` and `sluice consume`: a quick try by hand, with the options of Pulsar's own client tool."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sluice.cli.options import (
    MOST,
    ConsumerNameOption,
    GraceOption,
    NackOrderOption,
    SubscriptionOption,
    finite,
    milliseconds,
    moment,
)
from sluice.cli.output import say, show_json, text_of
from sluice.cli.target import Target, takes
from sluice.cli.waiting import Waiting
from sluice.cluster.base.printable import printable
from sluice.storage.dates import iso_time

if TYPE_CHECKING:
    from sluice.cluster.client.blocking import Consumer
    from sluice.cluster.client.message import Message

QUEUE = 1000
"""Most messages that `consume` has waiting."""

CONFIRM_MILLIS = 15_000
"""How long the last acknowledgements may take to be confirmed."""


CountOption = Annotated[
    int, typer.Option("--num-messages", "-n", min=0, max=MOST, help="How many; 0 goes on until Ctrl-C.")
]


@takes("topic", "json")
def produce(
    target: Target,
    messages: Annotated[
        list[str], typer.Option("--message", "-m", metavar="TEXT", help="A message; can be repeated.")
    ] = [],  # noqa: B006 (typer reads the default and never changes it)
    key: Annotated[str | None, typer.Option("--key", "-k", help="Key of every message.")] = None,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", help="Lines are KEY<separator>TEXT, for example `:`.")
    ] = None,
    count: Annotated[int, typer.Option("--num-produce", "-n", min=1, max=MOST, help="How often to send it all.")] = 1,
    rate: Annotated[
        float,
        typer.Option("--rate", "-r", min=0, callback=finite, help="Messages per second; 0 is as fast as can be."),
    ] = 0,
    deliver_after: Annotated[str | None, typer.Option("--deliver-after", help="Delay, for example 30s.")] = None,
    deliver_at: Annotated[str | None, typer.Option("--deliver-at", help="Time of delivery (ISO-8601).")] = None,
) -> None:
    """Publish messages; each is confirmed on disk. Without --message, every line of standard input is one."""
    if deliver_after is not None and deliver_at is not None:
        raise typer.BadParameter("give --deliver-after or --deliver-at, not both")
    if key is not None and key_separator is not None:
        raise typer.BadParameter("give --key or --key-separator, not both")
    if key_separator == "":
        raise typer.BadParameter("--key-separator needs at least one character, for example `:`")
    options: dict[str, Any] = {}
    if deliver_after is not None:
        options["deliver_after"] = timedelta(milliseconds=milliseconds(deliver_after))
    if deliver_at is not None:
        options["deliver_at"] = moment(deliver_at)
    sent = 0
    with target.join() as client:
        began = time.monotonic()
        with Waiting(client).watched() as waiting:
            producer = client.create_producer(target.topic)
            for text in _texts(messages, count):
                one_key, payload = _split(text, key, key_separator)
                if rate:
                    time.sleep(max(0.0, began + sent / rate - time.monotonic()))
                    waiting.moved()
                message_id = producer.send(payload, partition_key=one_key, **options)
                sent += 1
                waiting.moved()
                if target.json:
                    show_json({"message_id": str(message_id), "key": one_key})
            producer.close()
    say(f"{sent} message{'' if sent == 1 else 's'} published and confirmed")


@takes("topic", "json")
def consume(
    target: Target,
    subscription: SubscriptionOption,
    count: CountOption = 1,
    position: Annotated[
        str, typer.Option("--subscription-position", "-p", help="A new subscription begins: latest or earliest.")
    ] = "latest",
    timeout: Annotated[
        str | None, typer.Option("--timeout", help="Stop when nothing comes for so long, subscribing included.")
    ] = None,
    acknowledge: Annotated[bool, typer.Option("--ack/--no-ack", help="Acknowledge what was received.")] = True,
    nack_order: NackOrderOption | None = None,
    name: ConsumerNameOption = None,
    grace_ms: GraceOption = None,
) -> int:
    """Receive and acknowledge messages of a Key_Shared subscription, one line each. Exit 2 if fewer came than asked."""
    if position.lower() not in ("latest", "earliest"):
        raise typer.BadParameter("--subscription-position is latest or earliest")
    patience = milliseconds(timeout) if timeout is not None else None
    got = 0
    with target.join() as client:
        # No more is taken from the others than will be printed.
        room = min(count, QUEUE) or QUEUE
        given = {"timeout_ms": patience, "consumer_name": name, "grace_ms": grace_ms, "nack_order": nack_order}
        bound: dict[str, Any] = {option: value for option, value in given.items() if value is not None}
        bound["initial_position"] = position.lower()
        with contextlib.ExitStack() as stack:
            waiting = stack.enter_context(Waiting(client).watched())
            consumer = stack.enter_context(
                client.subscribe(target.topic, subscription, receiver_queue_size=room, **bound)
            )
            for message in _received(consumer, count, patience):
                waiting.moved()
                _print(message, target.json)
                if acknowledge:
                    consumer.acknowledge(message)
                got += 1
            if got and acknowledge:
                consumer.wait_acknowledged(CONFIRM_MILLIS)
    say(f"{got} message{'' if got == 1 else 's'} received")
    return 0 if got >= count else 2


def _texts(messages: list[str], count: int) -> Iterator[bytes]:
    """The payloads; bytes, because neither an argument nor a line of standard input needs to be text."""
    if messages:
        for _ in range(count):
            yield from map(os.fsencode, messages)
        return
    lines = (line.removesuffix(b"\n") for line in sys.stdin.buffer)
    yield from lines if count == 1 else chain.from_iterable(repeat(list(lines), count))


def _split(text: bytes, key: str | None, separator: str | None) -> tuple[bytes | None, bytes]:
    if separator is None:
        return None if key is None else os.fsencode(key), text
    found, there, payload = text.partition(os.fsencode(separator))
    if not there:
        raise typer.BadParameter(f"no {separator!r} in the line {text_of(text[:60])!r}, so it has no key")
    return found, payload


def _received(consumer: Consumer, count: int, patience: int | None) -> Iterator[Message]:
    """Yield up to `count` messages (0: no end) as they come; end when none came for `patience` milliseconds."""
    batches = consumer.batches(patience)
    messages = (message for batch in batches for message in batch.messages())
    return islice(messages, count or None)


def _print(message: Message, json: bool) -> None:
    key = message.key()
    if json:
        show_json(
            {
                "message_id": str(message.message_id()),
                "key": key,
                "data": message.data(),
                "redelivery_count": message.redelivery_count(),
                "publish_time": iso_time(message.publish_timestamp()),
            }
        )
        return
    again = f" (delivery {message.redelivery_count() + 1})" if message.redelivery_count() else ""
    line = f"{message.message_id()} key={'-' if key is None else text_of(key)}{again} {text_of(message.data())}"
    print(printable(line, lines=False), flush=True)
