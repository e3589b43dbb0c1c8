"""Mutants of large messages: their chunks are joined, given back together, and dropped when the rest cannot come."""

from __future__ import annotations

from tools.mutants import Mutant

WORLD = "chunks"
CHUNKS, JOINER = "sluice.actors.consumer.chunks", "sluice.cluster.client.chunk_joiner"
RULES = "tests/actors/consumer/test_chunks.py"
LARGE = "tests/cluster/client/test_chunks.py"

JOINING_CHUNKS: list[Mutant] = [
    Mutant(
        name="chunks are joined as they came",
        module=CHUNKS,
        old="            decision.whole = [message.chunks[number] for number in range(chunk.of.count)]",
        new="            decision.whole = [*message.chunks.values()]",
        world=WORLD,
        test=f"{RULES}::test_chunks_that_come_in_another_order_make_a_message",
    ),
    Mutant(
        name="two messages of one key take each other's place",
        module=CHUNKS,
        old="        others = [at for at in begun if key is None or",
        new="        others = [at for at in begun if True or",
        world=WORLD,
        test=f"{RULES}::test_messages_of_one_key_do_not_take_each_others_place",
    ),
    Mutant(
        name="a chunk without the first one takes a place",
        module=CHUNKS,
        old="if 0 in one.chunks and not self._is_overdue",
        new="if not self._is_overdue",
        also=("_key_of(self._messages[at].chunks[0])", "_key_of(next(iter(self._messages[at].chunks.values())))"),
        world=WORLD,
        test=f"{RULES}::test_a_chunk_without_its_first_one_takes_no_place",
    ),
    Mutant(
        name="a message that lost a chunk keeps the others",
        module=CHUNKS,
        old="                self.whole.give_rest_back()",
        new="                pass",
        world=WORLD,
        test=f"{RULES}::test_a_message_that_loses_a_chunk_gives_the_others_back",
    ),
    Mutant(
        name="a part of a message is done alone",
        module=CHUNKS,
        old="            return NO_POSITIONS  # a part",
        new="            pass  # a part",
        world=WORLD,
        test=f"{RULES}::test_a_message_that_loses_a_chunk_gives_the_others_back",
    ),
    Mutant(
        name="chunks of an earlier beginning stay beside the later ones",
        module=CHUNKS,
        old="            decision.done += message.keep(lambda each: each.positions[0] > place)",
        new="            pass",
        world=WORLD,
        test=f"{RULES}::test_a_message_that_begins_again_replaces_the_earlier_chunks",
    ),
    Mutant(
        name="an incomplete message that comes again is new",
        module=CHUNKS,
        old="self._messages.get(at) or self._away.pop(at, None) or",
        new="self._messages.get(at) or",
        world=WORLD,
        test=f"{RULES}::test_messages_that_take_each_others_place_grow_old",
    ),
    Mutant(
        name="a message that is overdue takes a place",
        module=CHUNKS,
        old="if 0 in one.chunks and not self._is_overdue(one, now)]",
        new="if 0 in one.chunks]",
        world=WORLD,
        test=f"{RULES}::test_messages_that_take_each_others_place_grow_old",
    ),
    Mutant(
        name="a message is dropped though its next chunk came",
        module=CHUNKS,
        old="        return self._take_out(at) if one is not None and self._is_overdue(one, now) else []",
        new="        return self._take_out(at) if one is not None else []",
        world=WORLD,
        test=f"{RULES}::test_a_message_whose_next_chunk_came_is_not_overdue",
    ),
    Mutant(
        name="a message is dropped while others of its partition wait",
        module=JOINER,
        old='        if row["msgBacklog"] > row["unackedMessages"] or',
        new="        if",
        world=WORLD,
        seed=21,
    ),
    Mutant(
        name="chunks are dropped whose rest waits in front of a full queue",
        module=JOINER,
        old=" or not consumer.has_come(row):",
        new=":",
        world=WORLD,
        test=f"{LARGE}::test_chunks_stay_while_their_last_one_waits_for_a_full_queue",
    ),
    Mutant(
        name="chunks that are stored late are confirmed",
        module="sluice.cluster.client.receipts",
        old="if self.until.get(row, now) < now] if self.until else None:",
        new="if False] if self.until else None:",
        world=WORLD,
        test=f"{LARGE}::test_chunks_that_are_stored_late_are_not_confirmed",
    ),
    Mutant(
        name="a consumer waits for chunks for less than they may take",
        module="sluice.cluster.client.options",
        old='_chunked_message_ms", CHUNKS_MS, MOST_QUEUED)',
        new='_chunked_message_ms", 1, MOST_QUEUED)',
        world=WORLD,
        test=f"{LARGE}::test_a_consumer_waits_for_chunks_as_long_as_producers_take",
    ),
]
