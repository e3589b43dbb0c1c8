"""Mutants of permissions: who is let in, and what becomes of those whose rights are revoked."""

from __future__ import annotations

from tools.mutants import Mutant

GATEWAY = "gateway"
CACHE, DOOR = "sluice.actors.policies.permission_cache", "sluice.actors.pulsar.conversation.gateway.access_control"
RIGHTS = "tests/actors/pulsar/test_rights.py"
KNOWN = "tests/actors/policies/test_permissions.py"

PERMITTING: list[Mutant] = [
    Mutant(
        name="a revoked right lives on in a cache",
        module=CACHE,
        old="            self._forget(names[:missed] if named else list(self._known))\n",
        new="            pass\n",
        world=GATEWAY,
        test=f"{RIGHTS}::test_a_revoked_right_ends_who_lives_by_it",
    ),
    Mutant(
        name="who missed many changes learns of the last ones alone",
        module=CACHE,
        old="names[:missed] if named else list(self._known)",
        new="names[:missed]",
        world=GATEWAY,
        test=f"{KNOWN}::test_a_change_is_seen_at_the_next_look",
    ),
    Mutant(
        name="of more changes than are named only what is known is looked at",
        module=CACHE,
        old="            self._any_changed = self._any_changed or not named\n",
        new="",
        world=GATEWAY,
        test=f"{RIGHTS}::test_a_right_is_revoked_among_very_many_changes",
    ),
    Mutant(
        name="nobody has a turn while rights are checked",
        module=DOOR,
        old="            if number % TURN == 0:\n",
        new="            if False:\n",
        world=GATEWAY,
        test=f"{RIGHTS}::test_others_have_their_turn_while_many_are_checked",
    ),
    Mutant(
        name="old knowledge lets newcomers in",
        module=CACHE,
        old="self._looked is None or self._ports.clock.monotonic() - self._looked > FRESH_MS",
        new="self._looked is None",
        world=GATEWAY,
        test=f"{KNOWN}::test_stale_cache_admits_no_client",
    ),
    Mutant(
        name="who could not be judged is judged no more",
        module=CACHE,
        old="= {**keys, **self._changed}, every or self._any_changed",
        new="= self._changed, self._any_changed",
        world=GATEWAY,
        test=f"{KNOWN}::test_unreadable_rights_are_judged_later",
    ),
    Mutant(
        name="a right that goes while a producer opens is not looked at again",
        module="sluice.actors.pulsar.conversation.commands",
        old="            await self._session.check(*wishes)\n            await self._produce",
        new="            await self._produce",
        world=GATEWAY,
        test=f"{RIGHTS}::test_a_right_that_goes_while_something_opens",
    ),
    Mutant(
        name="the live page of a topic names those of others",
        module="sluice.cluster.watch.story",
        old='    return of == topic and (row["kind"] == "topic" or rest[-1:] == [subscription])',
        new="    return True",
        world=GATEWAY,
        test="tests/cluster/watch/test_feed.py::test_owners_of_other_topics_are_not_told",
    ),
    Mutant(
        name="a proxy's clients have the rights of the proxy",
        module=DOOR,
        old="        if original and",
        new="        if False and",
        world=GATEWAY,
        test="tests/actors/pulsar/conversation/test_greeting.py::test_a_proxy_that_asks_for_somebody_else_is_refused",
    ),
    Mutant(
        name="by HTTP a certificate counts whatever its client presents",
        module="sluice.cluster.admin.gateway_http",
        old="(authenticate is None or not method)",
        new="True",
        world=GATEWAY,
        test="tests/cluster/gateway/test_tls.py::test_by_http_a_token_counts_before_a_certificate",
    ),
    Mutant(
        name="who hangs up leaves no trace",
        module="sluice.cluster.http.guard",
        old="                carried.add_done_callback(",
        new="                (lambda _: None)(",
        world=GATEWAY,
        test="tests/cluster/admin/test_roles.py::test_change_for_a_lost_caller_is_written_to_the_audit",
    ),
    Mutant(
        name="grants for topics outlive their namespace",
        module="sluice.actors.policies.permissions",
        old="                await forget_rights(self._meta, key)\n",
        new="                pass\n",
        world=GATEWAY,
        test="tests/actors/policies/test_permissions.py::test_deleting_a_namespace_removes_grants_for_its_topics",
    ),
    Mutant(
        name="a public key that others can replace is believed",
        module="sluice.cluster.gateway.tokens",
        old="            check_own(SETTING, key_file)\n",
        new="",
        world=GATEWAY,
        test="tests/cluster/gateway/test_token_keys.py::test_a_key_that_others_can_replace_is_refused",
    ),
    Mutant(
        name="any number may be at the handshake of TLS",
        module="sluice.cluster.gateway.handshakes",
        old="if context is not None and self._open.admit(one):",
        new="if context is not None:",
        world=GATEWAY,
        test="tests/cluster/gateway/test_handshakes.py::test_silent_connection_makes_room_for_others",
    ),
    Mutant(
        name="who makes a topic and hangs up leaves no trace",
        module="sluice.actors.pulsar.conversation.client_session",
        old='        "partition_metadata",\n',
        new='        "partition_metadata",\n        "lookup",\n',
        world=GATEWAY,
        test="tests/actors/pulsar/conversation/test_lookups.py::test_topic_made_by_a_client_that_left_is_audited",
    ),
    Mutant(
        name="who only connects keeps every tool out",
        module="sluice.cluster.http.server",
        old="        for connection in (*idle, *waiting)[:1]:\n            _end(connection)\n"
        "        return bool(idle or waiting)",
        new="        return False",
        world=GATEWAY,
        test="tests/cluster/http/test_connections.py::test_a_silent_connection_makes_room_for_a_request",
    ),
]
