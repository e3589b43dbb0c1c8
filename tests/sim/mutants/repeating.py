"""Mutants of what comes twice, late, or out of order: requests sent again, and names that are used again."""

from __future__ import annotations

from tests.sim.mutants import Mutant

BROKER, PLACEMENT = "broker", "placement"
DRAINING = "tests/actors/test_draining.py"
DELETING = "tests/actors/dispatcher/test_deletion.py"

REPEATING: list[Mutant] = [
    Mutant(
        name="a subscription that is made again counts its statements from the beginning",
        module="actors.dispatcher.takeover",
        old="record.begin_after(max(indexed or 0, epoch_of(ends.heard)))",
        new="record.begin_after(indexed or 0)",
        world=BROKER,
        test=f"{DELETING}::test_one_that_is_made_again_is_heard_by_its_topic",
    ),
    Mutant(
        name="a late statement brings a deleted subscription back",
        module="actors.topic.upkeep",
        old="        if request.number and request.number <= self._numbers.get(name, 0):\n",
        new="        if False:\n",
        world=BROKER,
        test=f"{DELETING}::test_one_that_is_made_again_is_heard_by_its_topic",
    ),
    Mutant(
        name="who looks how far a node is drained drains it",
        module="actors.draining",
        old="                if request.look:\n",
        new="                if False:\n",
        world=PLACEMENT,
        test=f"{DRAINING}::test_who_waits_does_not_undo_a_withdrawal",
    ),
    Mutant(
        name="who withdraws a drain overtakes who began it",
        module="actors.draining",
        old="        async with self._asking:\n",
        new="        if True:\n",
        world=PLACEMENT,
        test=f"{DRAINING}::test_a_withdrawal_holds_for_what_was_asked_before",
    ),
    Mutant(
        name="a drain of a pool that was done is not found when it is asked for again",
        module="actors.messages.workers",
        old="    removes: ClassVar[bool] = True\n",
        new="",
        world=BROKER,
        test="tests/actors/test_directory.py::test_a_drain_whose_answer_is_lost_is_done",
    ),
    Mutant(
        name="what a silent controller has removed is not found by the next one",
        module="cluster.controller_search",
        old="                if not before:\n",
        new="                if True:\n",
        world=BROKER,
        test="tests/cluster/test_controller_search.py",
    ),
    Mutant(
        name="a topic that is made while it is deleted is the old one",
        module="actors.controller",
        old='        if request.topic in self._deleting:\n            raise Unavailable(f"topic {request.topic!r} is',
        new='        if False:\n            raise Unavailable(f"topic {request.topic!r} is',
        world=BROKER,
        test="tests/actors/test_deletion.py::test_a_topic_that_is_made_while_it_is_deleted_is_there",
    ),
    Mutant(
        name="a second deletion of a subscription goes beside the first",
        module="actors.dispatcher.deletion",
        old="        if self._outcome is None:\n",
        new="        if True:\n",
        world=BROKER,
        test=f"{DELETING}::test_who_deletes_it_at_the_same_time_hears_the_same",
    ),
    Mutant(
        name="a subscription that another controller has deleted is made anew",
        module="actors.dispatcher.takeover",
        old="    if settings is None and value is None:\n",
        new="    if False:\n",
        world=BROKER,
        test=f"{DELETING}::test_who_takes_the_place_of_a_deleted_one_makes_none",
    ),
    Mutant(
        name="what was deleted is started again and again",
        module="actors.supervisor",
        old='            if isinstance(error, NotFound) and entry.kind == "dispatcher":\n',
        new="            if False:\n",
        world=BROKER,
        test="tests/actors/test_deletion.py::test_what_another_controller_deletes_is_not_started_again",
    ),
    Mutant(
        name="a clear or a skip that waited takes what came behind a later clear",
        module="actors.dispatcher.seek",
        old="            if number < self._cleared[0]:\n",
        new="            if False:\n",
        world=BROKER,
        test="tests/actors/dispatcher/test_seek.py::test_what_comes_behind_a_clear_stays",
    ),
    Mutant(
        name="a claim of a pool that comes twice replaces its keeper",
        module="actors.worker_pools",
        old="            if known is not None and request.keeper and known.keeper == request.keeper:\n",
        new="            if False:\n",
        world=BROKER,
        test="tests/actors/test_worker_pools.py",
    ),
    Mutant(
        name="a keeper that was replaced claims its pool again",
        module="actors.worker_pools",
        old="            if known is not None and request.keeper in known.replaced:\n",
        new="            if False:\n",
        world=BROKER,
        test="tests/actors/test_worker_pools.py",
    ),
    Mutant(
        name="a pool that was forgotten counts its keepers from the beginning",
        module="actors.worker_pools",
        old="known is not None else self.ports.clock.now(),",
        new="known is not None else 1,",
        world=BROKER,
        test="tests/actors/test_worker_pools.py",
    ),
    Mutant(
        name="who slept writes on in a record that was removed and made again",
        module="actors.fenced_record",
        old="                if self._owns and not tried and asked - self.proven > DOUBT_MS:\n",
        new="                if False:\n",
        world=BROKER,
        test="tests/actors/test_fenced_record.py",
    ),
    Mutant(
        name="who slept takes another one's version of his number for his own",
        module="actors.fenced_record",
        old=" or not self._is_mine(newest.value):",
        new=":",
        world=BROKER,
        test="tests/actors/test_fenced_record.py",
    ),
]
