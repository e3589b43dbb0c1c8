"""Mutants of what stays behind when something is deleted or ends, and meets the next one of its name."""

from __future__ import annotations

from tools.mutants import Mutant

BROKER = "broker"
LIVING_ON = "tests/actors/producer/test_living_on.py"
IDLE, SUPERVISOR = "tests/actors/controller/test_idle_owners.py", "tests/actors/controller/test_supervisor.py"
OFFLOADING = "tests/actors/topic/background/test_offloading.py"
CATALOG = "tests/actors/controller/test_catalog.py"
CONSUMER = "tests/actors/consumer/test_made_again.py"
PLACES = "tests/cluster/workers/test_ray_places.py"
KEEPER, POOL = "tests/cluster/workers/test_keeper.py", "tests/cluster/workers/test_pool.py"
REGISTRY, LAUNCH = "tests/cluster/workers/test_registry.py", "tests/cluster/launch/test_launch.py"
FENCING = "tests/actors/ownership/test_fenced_record.py"
REMADE, REPARTITIONED = "tests/cluster/test_deleting.py", "tests/cluster/client/test_repartitioned.py"
DELETING, GROWING = "tests/actors/test_deletion.py", "tests/actors/test_growing.py"

LEAVING_BEHIND: list[Mutant] = [
    Mutant(
        name="a producer that its partition has forgotten waits for what nobody sends again",
        module="sluice.actors.topic.topic",
        old="        if request.follows is not None:\n",
        new="        if self._log.record.ever_given_up and request.follows is not None:\n",
        world=BROKER,
        test=f"{LIVING_ON}::test_in_a_topic_that_was_deleted_and_made_again",
    ),
    Mutant(
        name="what was deleted is found dead by a ping from before, and started",
        module="sluice.actors.controller.supervisor",
        old="        return entry.address == address and self._running.has(entry)\n",
        new="        return entry.address == address\n",
        world=BROKER,
        test=f"{SUPERVISOR}::test_actor_deleted_during_its_ping_is_not_started",
    ),
    Mutant(
        name="a topic that is made again is woken with the settings of the one before",
        module="sluice.actors.controller.idle_owners",
        old='wanted = {**settings, "topic_settings": plain_settings(made)} if is_topic',
        new='wanted = {"topic_settings": plain_settings(made), **settings} if is_topic',
        world=BROKER,
        test=f"{IDLE}::test_a_topic_that_is_made_again_is_woken_as_it_is_now",
    ),
    Mutant(
        name="a partition is woken that its topic does not have any more",
        module="sluice.actors.controller.idle_owners",
        old="        elif partition < made.partitions:\n",
        new="        else:\n",
        world=BROKER,
        test=f"{IDLE}::test_a_topic_that_is_made_again_is_woken_as_it_is_now",
    ),
    Mutant(
        name="nobody waits for who subscribes to a topic that is deleted",
        module="sluice.actors.controller.controller",
        old="            await self._until_subscribed(topic)\n",
        new="",
        world=BROKER,
        test=f"{DELETING}::test_late_subscriber_leaves_nothing_to_the_next_topic",
    ),
    Mutant(
        name="who asked before the deletion begins to subscribe after it",
        module="sluice.actors.controller.controller",
        old="        self._check_stays(request)  # who begins to delete from here on knows what is wanted\n",
        new="",
        world=BROKER,
        test=f"{DELETING}::test_request_just_before_a_deletion_starts_nothing_deleted",
    ),
    Mutant(
        name="partitions that a deleted topic was to get stay for the next one",
        module="sluice.actors.controller.controller",
        old="        beyond = await self._catalog.partitions_beyond(topic)\n",
        new="        beyond = list[int]()\n",
        world=BROKER,
        test=f"{GROWING}::test_a_topic_goes_from_where_its_growth_ended_halfway",
    ),
    Mutant(
        name="an owner knows its record by the number of the newest version alone",
        module="sluice.actors.ownership.fenced_record",
        old="        return (head.epoch, head.owner) == self._newest\n",
        new="        return True\n",
        world=BROKER,
        test=f"{FENCING}::test_owner_frozen_meanwhile_has_lost_a_remade_record[looks-3]",
    ),
    Mutant(
        name="an owner that was frozen writes without a look",
        module="sluice.actors.ownership.fenced_record",
        old="                if not await self._is_another() and await self._ports.meta.create(",
        new="                if await self._ports.meta.create(",
        world=BROKER,
        test=f"{FENCING}::test_owner_frozen_meanwhile_has_lost_a_remade_record[writes-3]",
    ),
    Mutant(
        name="an owner that was frozen while it took a record has it",
        module="sluice.actors.ownership.fenced_record",
        old="        if not self._removable or self._seen >= since or self.is_proved(since):\n",
        new="        if not self._removable or not self._proven or self._seen >= since or self.is_proved(since):\n",
        world=BROKER,
        test=f"{FENCING}::test_owner_frozen_while_taking_over_is_fenced",
    ),
    Mutant(
        name="an owner that was frozen removes a record without a look",
        module="sluice.actors.ownership.fenced_record",
        old="                if not await self._is_another() and await self._ports.meta.remove(",
        new="                if await self._ports.meta.remove(",
        world=BROKER,
        test=f"{FENCING}::test_owner_frozen_meanwhile_has_lost_a_remade_record[removes-3]",
    ),
    Mutant(
        name="a topic that is made again counts anew how often somebody had it",
        module="sluice.actors.ledger.partition_metadata",
        old="                exclusivity=Exclusivity(base.exclusivity.epoch),\n",
        new="",
        world=BROKER,
        test=f"{LIVING_ON}::test_exclusive_producer_comes_back_in_the_remade_topic",
    ),
    Mutant(
        name="a producer divides by the partitions of the topic that was deleted",
        module="sluice.actors.producer.producer",
        old="        if lost and self._is_repartitioned():\n",
        new="        if missing and self._is_repartitioned():\n",
        world=BROKER,
        test=f"{REMADE}::test_a_producer_divides_by_a_remade_topics_partitions[False-5]",
    ),
    Mutant(
        name="further messages let those that came back from a remade topic wait",
        module="sluice.cluster.client.producer_core",
        old="            if self._moved:\n                return\n",
        new="",
        world=BROKER,
        test=f"{REPARTITIONED}::test_messages_that_a_remade_topic_gives_back_go_first[5]",
    ),
    Mutant(
        name="past decisions stay until the collector looks",
        module="sluice.actors.key_shared.state.dispatch_state",
        old="name=self.members.describe, repeated",
        new="name=lambda slot: self.members.describe(slot), repeated",
        world=BROKER,
        test="tests/actors/recorder/test_replay.py::test_decisions_of_one_partition_are_kept_at_a_time",
    ),
    Mutant(
        name="what a deleted topic left in the store stays if there is another one of its name",
        module="sluice.actors.ledger.garbage_collection",
        old="            if record.deleted or record.first_epoch:\n",
        new="            if record.deleted:\n",
        world="history",
        test=f"{OFFLOADING}::test_objects_left_by_a_deletion_are_collected",
    ),
    Mutant(
        name="settings that were read while their topic was removed count",
        module="sluice.actors.controller.catalog",
        old="        for _ in range(2):\n",
        new="        for _ in range(1):\n",
        world=BROKER,
        test=f"{CATALOG}::test_a_read_that_a_removal_overtook_finds_no_topic",
    ),
    Mutant(
        name="sessions of a subscription that is made again have the numbers of those before",
        module="sluice.actors.dispatcher.delivery.sessions",
        old=" + 1 + zlib.crc32(owner.encode()) % (EPOCH_SESSIONS // 2)\n",
        new=" + 1\n",
        world=BROKER,
        test=f"{CONSUMER}::test_its_acknowledgements_count_from_the_beginning",
    ),
    Mutant(
        name="a worker that another pool of the name has left goes on with its subscription",
        module="sluice.cluster.workers.ray_places",
        old="            elif place != self._place:\n                self._worker.stop()\n",
        new="",
        world="workers",
        test=f"{PLACES}::test_one_of_another_pool_of_its_name_ends",
    ),
    Mutant(
        name="a subscription is deleted while its topic grows",
        module="sluice.actors.controller.controller",
        old="            self._check_not_growing(topic)  # what comes to be on new partitions would stay\n",
        new="",
        world=BROKER,
        test=f"{GROWING}::test_a_subscription_that_goes_meanwhile_comes_nowhere_new",
    ),
    Mutant(
        name="a topic grows while a subscription of it is deleted",
        module="sluice.actors.controller.controller",
        old="        if self._is_changing(topic):\n",
        new="        if False:\n",
        world=BROKER,
        test=f"{GROWING}::test_a_topic_does_not_grow_while_a_subscription_goes",
    ),
    Mutant(
        name="a keeper looks for the ends of its workers as often as it can",
        module="sluice.cluster.workers.keeper",
        old="self._places.wait(LOOK_S, nothing_more, self._placed())",
        new="self._places.wait(LOOK_S, self._stopping, self._placed())",
        world="workers",
        test=f"{KEEPER}::test_a_keeper_that_stops_waits_for_its_workers",
    ),
    Mutant(
        name="a version that Ray does not take ends the keeper",
        module="sluice.cluster.workers.keeper",
        old="is_ready()\n        except CANNOT_BEGIN as error:",
        new="is_ready()\n        except WorkerGone as error:",
        world="workers",
        test=f"{KEEPER}::test_a_version_that_cannot_begin_leaves_the_old_one",
    ),
    Mutant(
        name="a successor that does not answer stays",
        module="sluice.cluster.workers.keeper",
        old="        member.successor.kill()\n",
        new="",
        world="workers",
        test=f"{KEEPER}::test_a_successor_that_does_not_answer_is_ended",
    ),
    Mutant(
        name="workers whose keeper has failed go on without one",
        module="sluice.cluster.workers.pool",
        old="            self._keeper.kill()\n        finally:",
        new="        finally:",
        world="workers",
        test=f"{POOL}::test_a_keeper_that_fails_says_so_and_ends_its_workers",
    ),
    Mutant(
        name="a pool that does not start keeps its client",
        module="sluice.cluster.workers.pool",
        old="        except BaseException:\n            self._leave()\n            raise",
        new="        finally:\n            pass",
        world="workers",
        test=f"{POOL}::test_a_pool_that_does_not_start_leaves_no_client",
    ),
    Mutant(
        name="last lines of workers are cut where they end",
        module="sluice.cluster.workers.registry",
        old="report.tails = _fitting(self._callbacks.tails())",
        new="report.tails = json.dumps(self._callbacks.tails())[:MOST_POOL_STATUS]",
        world="workers",
        test=f"{REGISTRY}::test_last_lines_that_are_too_long_are_cut_in_front",
    ),
    Mutant(
        name="an interrupted import of Ray leaves its processes",
        module="sluice.cluster.launch.launch",
        old="    except Exception:  # an interrupt that meets",
        new="    except SluiceError:  # an interrupt that meets",
        world="workers",
        test=f"{LAUNCH}::test_an_interrupt_that_breaks_rays_import_leaves_nothing",
    ),
]
