"""Mutants of the checks of what strangers say: numbers, names, credentials, schemas. Tests find them, not seeds."""

from __future__ import annotations

from tools.mutants import Mutant

GATEWAY = "gateway"

AT_ONCE = "tests/actors/pulsar/test_at_once.py"
ACCESS = "tests/actors/pulsar/conversation/producing/test_access_modes.py"
ADMISSION = "tests/actors/topic/partition/test_admission.py"
KEEP_ALIVE = "tests/actors/pulsar/test_keep_alive.py"
STRANGERS = "tests/cluster/gateway/test_strangers.py"
TOKEN_KEYS = "tests/cluster/gateway/test_token_keys.py"
ENDS = "tests/actors/controller/test_crash_loop_detector.py"
SCHEMAS = "tests/actors/pulsar/test_invalid_schemas.py"

CHECKING_INPUT: list[Mutant] = [
    Mutant(
        name="an epoch that was never given is what counting goes on from",
        module="sluice.actors.topic.partition.access",
        old="request.topic_epoch > self.epoch:",
        new="False:",
        world=GATEWAY,
        test=ACCESS,
    ),
    Mutant(
        name="a repetition is told an epoch that is still being written",
        module="sluice.actors.topic.partition.admission",
        old="        if self._log.record.exclusivity != self._access.durable:",
        new="        if ended:",
        world=GATEWAY,
        test=ADMISSION,
    ),
    Mutant(
        name="a schema of any type is kept",
        module="sluice.actors.policies.schema_compatibility",
        old="    if kind not in KINDS:",
        new="    if False:",
        world=GATEWAY,
        test=SCHEMAS,
    ),
    Mutant(
        name="a definition that is none of Avro's is kept",
        module="sluice.actors.policies.schema_compatibility",
        old='schema.get("type") == "object"):',
        new='schema.get("type") == "object") and False:',
        world=GATEWAY,
        test=SCHEMAS,
    ),
    Mutant(
        name="ends with other numbers are other reasons",
        module="sluice.actors.controller.crash_loop_detector",
        old='        kind = _NUMBER.sub("#", reason)\n',
        new="        kind = reason\n",
        world=GATEWAY,
        test=ENDS,
    ),
    Mutant(
        name="what is not there is acknowledged, and done when it comes",
        module="sluice.actors.pulsar.conversation.consuming.wire_consumer",
        old="            if end < at:",
        new="            if False:",
        world=GATEWAY,
        test=STRANGERS,
    ),
    Mutant(
        name="a cumulative acknowledgement reaches beyond the end of the log",
        module="sluice.actors.pulsar.conversation.consuming.wire_consumer",
        old="                self._cumulative = min(self._cumulative, self._extent.last)\n",
        new="",
        world=GATEWAY,
        test=STRANGERS,
    ),
    Mutant(
        name="a connection outlives its token",
        module="sluice.actors.pulsar.conversation.client_session",
        old="            if ends <= now:",
        new="            if False:",
        world=GATEWAY,
        test=KEEP_ALIVE,
    ),
    Mutant(
        name="a key in DER is a secret",
        module="sluice.cluster.gateway.tokens",
        old="        _check_secret(key_file, content)\n",
        new="",
        world=GATEWAY,
        test=TOKEN_KEYS,
    ),
    Mutant(
        name="a seek begins while another is under way",
        module="sluice.actors.pulsar.conversation.commands",
        old="        await self._moved(tp, subscription)\n        done",
        new="        done",
        world=GATEWAY,
        test=AT_ONCE,
    ),
    Mutant(
        name="a subscription waits for one seek only",
        module="sluice.actors.pulsar.conversation.commands",
        old="        while (moving := self._gateway.moving",
        new="        if (moving := self._gateway.moving",
        world=GATEWAY,
        test=AT_ONCE,
    ),
    Mutant(
        name="a producer takes an id from one that opens",
        module="sluice.actors.pulsar.conversation.commands",
        old="        self._check_free(asked.producer_id)\n        self._session.openings",
        new="        self._session.openings",
        world=GATEWAY,
        test=AT_ONCE,
    ),
    Mutant(
        name="a consumer takes an id from one that opens",
        module="sluice.actors.pulsar.conversation.commands",
        old="        if asked.consumer_id in here.consumers:\n",
        new="        if False:\n",
        world=GATEWAY,
        test=AT_ONCE,
    ),
]
