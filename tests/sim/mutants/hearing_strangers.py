"""Mutants of what holds for commands and messages that no ordinary client says. Tests find them, not seeds."""

from __future__ import annotations

from tests.sim.mutants import Mutant

GATEWAY = "gateway"

ODD = "tests/actors/pulsar/test_odd_commands.py"
AMOUNTS = "tests/actors/pulsar/conversation/test_large_amounts.py"
MESSAGES = "tests/actors/pulsar/test_messages.py"
LIMITS = "tests/actors/pulsar/test_limits.py"
SCHEMAS = "tests/actors/pulsar/test_invalid_schemas.py"
LARGEST = "tests/cluster/pulsar/test_largest_message.py"
WEB = "tests/cluster/pulsar/admin"
CONNECTION = "actors.pulsar.conversation.client_connection"
DECODER = "actors.pulsar.codec.send_decoder"

HEARING_STRANGERS: list[Mutant] = [
    Mutant(
        name="each message of a batch gets whatever its metadata say",
        module=DECODER,
        old="    if count > 1 and len(send.body.metadata) > MOST_REST and",
        new="    if False and",
        world=GATEWAY,
        test=f"{MESSAGES}::test_what_is_malformed_is_refused_alone",
    ),
    Mutant(
        name="read together each message gets whatever the metadata say",
        module="actors.pulsar.codec.vectorized_decoder",
        old="(rest > _PLAIN_REST) | grows)",
        new="False)",
        world=GATEWAY,
        test=f"{ODD}::test_a_batch_that_would_grow_a_thousandfold_is_refused",
    ),
    Mutant(
        name="small messages that grow are taken for plain ones",
        module="actors.pulsar.codec.vectorized_decoder",
        old=" | grows)",
        new=")",
        world=GATEWAY,
        test="tests/actors/pulsar/codec/test_vectorized_decoder.py::test_what_would_grow_is_looked_at_alone",
    ),
    Mutant(
        name="a chunk is one of as many as its client says",
        module="actors.pulsar.codec.metadata_checks",
        old="0 <= chunk < chunks <= MOST_CHUNKS:",
        new="0 <= chunk < chunks:",
        world=GATEWAY,
        test=f"{MESSAGES}::test_what_is_malformed_is_refused_alone",
    ),
    Mutant(
        name="metadata may have a group",
        module="actors.pulsar.codec.metadata_checks",
        old="    if any(field.wire_type == _GROUP for field in UnknownFieldSet(metadata)):",
        new="    if False:",
        world=GATEWAY,
        test=f"{MESSAGES}::test_what_is_malformed_is_refused_alone",
    ),
    Mutant(
        name="an encryption key is any bytes",
        module="actors.pulsar.codec.metadata_checks",
        old="    for encoded in metadata.encryption_keys:",
        new="    for encoded in ():",
        world=GATEWAY,
        test=f"{MESSAGES}::test_what_is_malformed_is_refused_alone",
    ),
    Mutant(
        name="a payload becomes as much as is said",
        module="actors.pulsar.codec.metadata_checks",
        old="    _check_inflated(metadata, payload)\n\n",
        new="\n",
        world=GATEWAY,
        test=f"{MESSAGES}::test_what_is_malformed_is_refused_alone",
    ),
    Mutant(
        name="what passes as it came in LZ4 is not tried",
        module=DECODER,
        old="            check_lz4(payload, metadata.uncompressed_size)\n",
        new="            pass\n",
        world=GATEWAY,
        test=f"{MESSAGES}::test_what_is_malformed_is_refused_alone",
    ),
    Mutant(
        name="chunks make a message of any size",
        module="actors.pulsar.codec.metadata_checks",
        old="    if not 0 <= size <= chunks * MAX_MESSAGE_BYTES:",
        new="    if False:",
        world=GATEWAY,
        test=f"{MESSAGES}::test_what_is_malformed_is_refused_alone",
    ),
    Mutant(
        name="what is sent counts as it came",
        module=DECODER,
        old="    return max(send.size, inflated) + int(metadata.num_messages) * each",
        new="    return send.size",
        world=GATEWAY,
        test=f"{AMOUNTS}::test_what_is_sent_counts_as_what_it_becomes",
    ),
    Mutant(
        name="all that was read is taken up, whatever it becomes",
        module=CONNECTION,
        old="        if self._taken_up > GROUP_BYTES:",
        new="        if False:",
        world=GATEWAY,
        test=f"{AMOUNTS}::test_what_is_sent_counts_as_what_it_becomes",
    ),
    Mutant(
        name="a rate counts the messages that a client claims",
        module=CONNECTION,
        old="sum(frame.messages for frame in frames)",
        new="sum(frame.command.num_messages for frame in frames)",
        world=GATEWAY,
        test=f"{LIMITS}::test_a_rate_counts_what_is_sent_and_not_what_is_said",
    ),
    Mutant(
        name="a seek without a place goes to the beginning",
        module="actors.pulsar.conversation.commands",
        old='        elif asked.HasField("message_id"):',
        new="        elif True:",
        world=GATEWAY,
        test=f"{ODD}::test_a_seek_to_nowhere_leaves_everything_as_it_is",
    ),
    Mutant(
        name="who shares a subscription acknowledges for all before",
        module=CONNECTION,
        old="consumer.asked.settings.type not in ONE_HAS_ALL:",
        new="False:",
        world=GATEWAY,
        test=f"{ODD}::test_who_shares_a_subscription_cannot_acknowledge_up_to",
    ),
    Mutant(
        name="a client says of itself what it likes",
        module="actors.pulsar.conversation.clients",
        old="    if said > MOST_SAID:",
        new="    if False:",
        world=GATEWAY,
        test=f"{ODD}::test_what_a_client_says_of_itself_is_bounded",
    ),
    Mutant(
        name="an acknowledgement is taken up at once, however long",
        module=CONNECTION,
        old="        elif len(asked.message_id) > MOST_IDS:",
        new="        elif False:",
        world=GATEWAY,
        test=f"{AMOUNTS}::test_acknowledgements_of_many_ids_are_taken_up_in_turns",
    ),
    Mutant(
        name="an acknowledgement of many ids is one command of a turn",
        module=CONNECTION,
        old="        return 1 + (len(body.message_id) // IDS_OF_A_COMMAND",
        new="        return 1 + (0",
        world=GATEWAY,
        test=f"{AMOUNTS}::test_acknowledgements_of_many_ids_are_taken_up_in_turns",
    ),
    Mutant(
        name="long acknowledgements of a connection are taken up together",
        module=CONNECTION,
        old="        async with self._many:",
        new="        if True:",
        world=GATEWAY,
        test=f"{AMOUNTS}::test_acknowledgements_of_many_ids_are_taken_up_in_turns",
    ),
    Mutant(
        name="schemas are compared for as long as it takes",
        module="actors.policies.schema_compatibility",
        old="        if self.left < 0:",
        new="        if False:",
        world=GATEWAY,
        test=f"{SCHEMAS}::test_what_takes_too_long_to_compare_is_refused",
    ),
    Mutant(
        name="schemas are compared while everybody waits",
        module="actors.pulsar.conversation.schemas",
        old="        await self._ports.work(partial(_check, topic, strategy, schema, await self._earlier(",
        new="        (lambda call: call())(partial(_check, topic, strategy, schema, await self._earlier(",
        world=GATEWAY,
        test=f"{SCHEMAS}::test_schemas_are_compared_beside_other_work",
    ),
    Mutant(
        name="what clients are told of sizes is not looked at",
        module="actors.pulsar.conversation.wire_producer",
        old="first_sequence=self._next, largest=largest)",
        new="first_sequence=self._next)",
        world=GATEWAY,
        test=f"{LARGEST}::test_what_is_small_as_it_is_compressed_stays_small",
    ),
    Mutant(
        name="what stands around a message has no size",
        module=DECODER,
        old="size + max(around, 0) > largest",
        new="size > largest",
        world=GATEWAY,
        test=f"{LARGEST}::test_what_is_small_as_it_is_compressed_stays_small",
    ),
    Mutant(
        name="a property without value is a defect",
        module="actors.pulsar.codec.delivery_encoder",
        old='value or ""',
        new="value",
        world=GATEWAY,
        test=f"{MESSAGES}::test_a_property_without_value_has_an_empty_one",
    ),
    Mutant(
        name="a property without value is sent without one",
        module="actors.pulsar.codec.properties",
        old='column.items.fill_null("")',
        new="column.items",
        world=GATEWAY,
        test=f"{MESSAGES}::test_a_property_without_value_has_an_empty_one",
    ),
    Mutant(
        name="half of a letter is JSON",
        module="cluster.http.server",
        old="        json.dumps(found, ensure_ascii=False).encode()\n",
        new="",
        world=GATEWAY,
        test=f"{WEB}/test_web_port.py::test_half_of_a_letter_in_json_is_refused",
    ),
    Mutant(
        name="a producer's name is written into the head of an answer",
        module="cluster.pulsar.admin.messages",
        old="_line(said.producer_name)",
        new='said.producer_name.decode("utf-8", "replace")',
        world=GATEWAY,
        test=f"{WEB}/test_messages.py::test_what_clients_say_of_a_message_is_shown",
    ),
    Mutant(
        name="clients may have all files that a process may open",
        module="cluster.pulsar.connection_limits",
        old="    most = at_most(wanted, CLIENTS)",
        new="    most = wanted",
        world=GATEWAY,
        test="tests/cluster/pulsar/test_few_files.py::test_connections_are_fewer_where_files_are",
    ),
]
