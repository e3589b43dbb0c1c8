"""The table of a topic follows the partition's record, no matter which part is away in between."""

from __future__ import annotations

from sluice.actors.messages import DeleteTopic, Offload
from sluice.actors.topic.background.offloading import Offloading
from sluice.actors.topic.background.table_following import TableFollowing
from sluice.storage.errors import Unavailable
from tests.actors.topic.background.test_offloading import leaving, named
from tests.actors.topic.cluster import Cluster
from tests.actors.topic.partition.test_reads import ask, until
from tests.sim.tables import TableCatalog
from tests.sim.world import World


def with_catalog(world: World) -> TableCatalog:
    """Give the processes of a world a catalog."""
    world.tables = TableCatalog(world.meta, world.objects, world.seed)
    return world.tables


def following(cluster: Cluster) -> TableFollowing:
    """The part of the owner."""
    return cluster.job(Offloading).table


def test_the_table_has_what_the_record_names() -> None:
    async def scenario(world: World) -> None:
        catalog = with_catalog(world)
        cluster, client, _ = await leaving(world)
        await until(client, lambda: catalog.tables.get("t") == sorted(named(cluster)))
        await client.clock.sleep(60_000)
        assert catalog.commits <= 5, "nothing new is no commit"
        await ask(client, cluster.current, DeleteTopic(force=True))
        assert catalog.tables["t"] == []

    World(1).play(scenario)


def test_a_catalog_that_is_away_is_told_and_tried_again() -> None:
    async def scenario(world: World) -> None:
        catalog = with_catalog(world)
        follow = catalog.follow

        async def refuse(machine: str, topic: str) -> None:
            raise Unavailable("planted")

        catalog.follow = refuse  # type: ignore[method-assign]
        cluster, client, _ = await leaving(world)
        await until(client, lambda: following(cluster).error == "the table: planted")
        assert (await ask(client, cluster.current, Offload())).error == "the table: planted"
        assert len(named(cluster)) == 4, "what leaves does not wait for it"
        catalog.follow = follow  # type: ignore[method-assign]
        await until(client, lambda: catalog.tables.get("t") == sorted(named(cluster)))
        assert (await ask(client, cluster.current, Offload())).error == ""

    World(2).play(scenario)
