"""Mutants of parked and blocked keys, and of dead letters: what waits for somebody's decision, and what must not."""

from __future__ import annotations

from tools.mutants import Mutant

PARKING = "parking"
_UNITS = "tests/actors/key_shared/state/test_parking.py"
_CLIENT = "tests/cluster/test_parking.py"
_CLIENTS = "tests/cluster/gateway/test_more_of_the_client.py"

SETTING_ASIDE: list[Mutant] = [
    Mutant(
        name="what clients of Pulsar sent is refused as a dead letter",
        module="sluice.actors.dispatcher.delivery.dead_letters",
        old="                accepted=GIVEN_BY_CLIENTS,\n",
        new="",
        world="dead_letters",
        test=f"{_CLIENTS}::test_message_that_fails_too_often_is_moved",
    ),
    Mutant(
        name="a dead letter is still of its client's batch",
        module="sluice.actors.dispatcher.delivery.dead_letters",
        old='("properties", "batch_index")',
        new='("properties",)',
        world="dead_letters",
        test=f"{_CLIENTS}::test_message_that_fails_too_often_is_moved",
    ),
    Mutant(
        name="later messages of a parked key go on",
        module="sluice.actors.key_shared.state.parking",
        old="    if window.count[FRESH]:\n",
        new="    if False:\n",
        world=PARKING,
        seed=7,
    ),
    Mutant(
        name="what lies behind a parked message that was done does not wait for that",
        module="sluice.actors.key_shared.state.parking",
        old="    if len(taken):\n        core.note_done_unsent()\n",
        new="",
        world=PARKING,
        test="tests/actors/dispatcher/delivery/test_dispatch_loop.py::test_nothing_goes_out_behind_what_is_done_and_was_parked",
    ),
    Mutant(
        name="what is redriven does not ask back what follows it",
        module="sluice.actors.key_shared.state.parking",
        old="    nacks.revoke(core)\n",
        new="",
        world=PARKING,
        test=f"{_UNITS}::test_redriven_key_asks_back_its_later_messages",
    ),
    Mutant(
        name="what comes back does not go past the lot",
        module="sluice.actors.key_shared.state.parking",
        old="        _put_aside(core, window.rows_in(REPLAY, UNORDERED, WAITING))\n",
        new="        pass\n",
        world=PARKING,
        seed=0,
    ),
    Mutant(
        name="a key goes on before a discard of it is durable",
        module="sluice.actors.dispatcher.operator.parked_keys",
        old="        self.discarded += len(gone)\n        await self._store.barrier()\n",
        new="        self.discarded += len(gone)\n",
        world=PARKING,
        seed=20,
    ),
    Mutant(
        name="a key is parked for another of its hash",
        module="sluice.actors.key_shared.state.parking",
        old="found.fill_null(len(named))",
        new="found.fill_null(0)",
        world=PARKING,
        test=f"{_UNITS}::test_a_key_of_the_same_hash_goes_on",
    ),
    Mutant(
        name="a key that was another one's twin fails unseen",
        module="sluice.actors.key_shared.state.nacks",
        old="        if core.parked.examined:  #",
        new="        if False:  #",
        world=PARKING,
        test=f"{_UNITS}::test_a_key_of_the_same_hash_goes_on",
    ),
    Mutant(
        name="parked keys are in no record",
        module="sluice.actors.dispatcher.operator.parked_keys",
        old="        return self._core.parking.record() or None\n",
        new="        return None\n",
        world=PARKING,
        test=f"{_CLIENT}::test_the_next_start_keeps_them",
    ),
    Mutant(
        name="consumers keep what they hold behind a failed message",
        module="sluice.actors.key_shared.state.nacks",
        old="    if core.parked.stale:\n",
        new="    if False:\n",
        world=PARKING,
        test=f"{_UNITS}::test_the_key_waits_and_others_go_on",
    ),
    Mutant(
        name="a key stays parked although its failed message is done",
        module="sluice.actors.key_shared.state.window_ends",
        old="    parking.forget(core, positions)\n    window = core.window\n",
        new="    window = core.window\n",
        world=PARKING,
        test=f"{_UNITS}::test_a_key_whose_failed_message_is_done_goes_on",
    ),
    Mutant(
        name="room that came free in the lot is not used",
        module="sluice.actors.key_shared.state.parking",
        old="    back(core, *parked.pop(mine))\n    parked.settle()\n",
        new="    back(core, *parked.pop(mine))\n",
        world=PARKING,
        test=f"{_UNITS}::test_above_the_bytes_the_key_blocks_until_there_is_room",
    ),
    Mutant(
        name="what a consumer brings back is parked as well",
        module="sluice.actors.key_shared.state.hash_assignments",
        old="        parking.bring_back(core, np.unique(holding))\n",
        new="",
        world=PARKING,
        test=f"{_UNITS}::test_a_consumer_that_comes_back_has_what_it_holds",
    ),
    Mutant(
        name="what is parked uses up the look-ahead",
        module="sluice.actors.key_shared.state.parked_messages",
        old="        return self.table.count[UNKNOWN] + self.table.count[BLOCKED]\n",
        new="        return self.table.live\n",
        world=PARKING,
        test=f"{_UNITS}::test_blocked_keys_count_as_waiting_and_parked_ones_do_not",
    ),
]
