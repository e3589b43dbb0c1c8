"""The process of a worker on Ray, when calls come in an unplanned order."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import sluice
from sluice.cluster.client.client import Client
from sluice.cluster.workers import ray_places
from sluice.cluster.workers.options import wanted_options
from sluice.cluster.workers.places import WorkerGone, new_worker
from sluice.cluster.workers.ray_places import RayPlaces, StaleKeeper, WorkerActor
from tests.cluster.workers.test_pool import send

PLACE = ("orders", "billing", "billing-workers-0")
END_S = 20


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with sluice.connect(embedded=True, data_dir=tmp_path) as one:
        one.create_topic("orders", 1)
        yield one


@pytest.fixture
def actor(client: Client, monkeypatch: pytest.MonkeyPatch) -> WorkerActor:
    """In this process, as no actor of Ray."""
    send(client, 1, 3)
    monkeypatch.setattr(ray_places, "connect", lambda: client)
    return WorkerActor(lambda message: None, wanted_options({}, "billing"), "1")


def test_one_that_is_to_stop_before_it_begins_never_does(client: Client, actor: WorkerActor) -> None:
    actor.stop(1)
    assert actor.run(PLACE, 1).ended
    assert "billing" not in client.subscriptions("orders")


def test_one_that_is_to_stop_while_it_begins_ends(actor: WorkerActor, monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(*given: Any) -> Any:
        actor.stop(1)
        return new_worker(*given)

    monkeypatch.setattr(ray_places, "new_worker", begin)
    report = actor.run(PLACE, 1)
    assert (report.ended, report.error) == (True, "")


def test_one_of_another_pool_of_its_name_ends(client: Client, actor: WorkerActor) -> None:
    """The worker's pool was forgotten or replaced, and the next one of that name is for another topic."""
    with ThreadPoolExecutor(2) as calls:
        first = calls.submit(actor.run, PLACE, 1)
        actor.wait_begun()
        try:
            report = calls.submit(actor.run, ("others", *PLACE[1:]), 2).result(END_S)
        finally:
            actor.stop(2)
        assert (report.ended, report.error, first.result()) == (True, "", report)
    assert "billing" in client.subscriptions("orders")


def test_an_earlier_keeper_is_refused(actor: WorkerActor) -> None:
    actor.stop(3)
    with pytest.raises(StaleKeeper):
        actor.run(PLACE, 2)


@pytest.mark.parametrize("fails", ["is_ready", "start_worker"])
def test_an_error_of_ray_where_a_worker_begins_is_one_of_places(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A keeper knows no errors of Ray, and its thread would end with one."""
    import ray

    def broken(*_: Any) -> Any:
        raise ray.exceptions.RaySystemError("the head is away")

    monkeypatch.setattr(ray, "put", lambda handler: handler)
    places = RayPlaces(("orders", "billing"), lambda message: None, wanted_options({}, "billing"), "1")
    monkeypatch.setattr(places, "_made", broken)
    with pytest.raises(WorkerGone, match="the head is away"):
        places.start_worker("billing-workers-0") if fails == "start_worker" else places.is_ready()
