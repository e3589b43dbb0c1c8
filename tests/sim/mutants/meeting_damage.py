"""Mutants of what meets a damaged record: one that cannot be read is no answer for the others. Tests find them."""

from __future__ import annotations

from tests.sim.mutants import Mutant

BROKER = "broker"
CLOSED = "tests/actors/test_closed_owners.py::test_a_damaged_subscription_hides_no_other"
DAMAGED = "tests/actors/test_damaged_records.py"
DECODERS = "tests/sim/test_decoders.py"
PAGE = "tests/cluster/pulsar/admin/test_broker.py"
POLICIES = "tests/actors/policies"
ODD = f"{DECODERS}::test_a_sealed_body_of_another_form_is_read_or_refused"
ANY = f"{DECODERS}::test_any_bytes_are_read_or_refused"

MEETING_DAMAGE: list[Mutant] = [
    Mutant(
        name="settings that are no text end who looks at them",
        module="actors.dispatcher.subscription",
        old="    if not isinstance(stored, bytes):\n",
        new="    if False:\n",
        world=BROKER,
        test=ODD,
    ),
    Mutant(
        name="a record without members ends its next owner",
        module="actors.dispatcher.subscription",
        old="        except DAMAGE as error:\n",
        new="        except OverflowError as error:\n",
        world=BROKER,
        test=ODD,
    ),
    Mutant(
        name="an odd field is no damage, and its owner is started for ever",
        module="actors.dispatcher.takeover",
        old="    except DAMAGE as error:\n",
        new="    except OverflowError as error:\n",
        world=BROKER,
        test="tests/actors/dispatcher/test_takeover.py::test_a_field_of_another_kind_is_damage",
    ),
    Mutant(
        name="a record of an odd epoch ends its next owner",
        module="actors.fenced_record",
        old="        msgspec.convert(found, _Head)\n",
        new="",
        world=BROKER,
        test=ODD,
    ),
    Mutant(
        name="a policy that is no text ends every gateway",
        module="actors.policies.policy_records",
        old="    except (msgspec.DecodeError, ValueError) as error:",
        new="    except msgspec.DecodeError as error:",
        world=BROKER,
        test=ANY,
    ),
    Mutant(
        name="a list of released ledgers that is none ends the controller",
        module="actors.ledger.garbage_collection",
        old="    except (ValueError, LookupError) as error:\n",
        new="    except OverflowError as error:\n",
        world=BROKER,
        test=ANY,
    ),
    Mutant(
        name="a base that is no number ends who wants a ledger",
        module="actors.ids",
        old='    if not isinstance(base := said.get("base"), int):\n',
        new='    if (base := int(said["base"])) is None:\n',
        world=BROKER,
        test=ODD,
    ),
    Mutant(
        name="a cookie of another form ends who looks at a disk",
        module="actors.bookie.cookie",
        old="    except (ValueError, TypeError, msgpack.UnpackException) as error:\n",
        new="    except OverflowError as error:\n",
        world=BROKER,
        test=ODD,
    ),
    Mutant(
        name="a damaged subscription hides those behind it",
        module="actors.closed_owners",
        old="        with contextlib.suppress(NotFound, Corrupt):  # as above",
        new="        with contextlib.suppress(NotFound):  # as above",
        world=BROKER,
        test=CLOSED,
    ),
    Mutant(
        name="a damaged lifetime keeps topics from their copies",
        module="actors.topic.upkeep",
        old="            self._begin_to_replicate(now)\n            raise\n",
        new="            raise\n",
        world=BROKER,
        test="tests/actors/topic/test_replacement.py::test_a_damaged_lifetime_keeps_no_topic_from_its_copies",
    ),
    Mutant(
        name="nobody is told that nothing is deleted any more",
        module="actors.topic.topic",
        old='                self._neglected = str(error) if isinstance(error, Corrupt) else ""\n',
        new="",
        world=BROKER,
        test="tests/actors/topic/test_replacement.py::test_a_damaged_lifetime_keeps_no_topic_from_its_copies",
    ),
    Mutant(
        name="a damaged pool hides the others",
        module="actors.worker_pools",
        old="            except Corrupt as error:\n",
        new="            except Fenced as error:\n",
        world=BROKER,
        test="tests/actors/test_worker_pools.py::test_a_damaged_record_concerns_its_own_pool_only",
    ),
    Mutant(
        name="a damaged pool cannot be forgotten",
        module="actors.worker_pools",
        old="            with contextlib.suppress(Corrupt):",
        new="            with contextlib.suppress(Fenced):",
        world=BROKER,
        test="tests/actors/test_worker_pools.py::test_a_damaged_record_concerns_its_own_pool_only",
    ),
    Mutant(
        name="a damaged node keeps the others from being drained",
        module="actors.draining",
        old="            except Corrupt as error:",
        new="            except Conflict as error:",
        world="placement",
        test="tests/actors/test_draining.py::test_a_damaged_record_concerns_its_own_node_only",
    ),
    Mutant(
        name="a damaged policy keeps the others from holding",
        module="actors.policies.policy_records",
        old="            damage.append(error)\n",
        new="            raise\n",
        world="gateway",
        test=f"{POLICIES}/test_policy_records.py::test_a_damaged_quota_is_no_answer_for_the_others",
    ),
    Mutant(
        name="a limit that cannot be read any more holds no longer",
        module="actors.policies.policy_records",
        old="            if name in known:\n",
        new="            if False:\n",
        world="gateway",
        test=f"{POLICIES}/test_limits.py::test_a_damaged_record_is_no_answer_for_the_others",
    ),
    Mutant(
        name="a damaged list of changes keeps everybody out",
        module="actors.policies.policy_records",
        old="    except Corrupt:\n        return []\n",
        new="    except OverflowError:\n        return []\n",
        world="gateway",
        test=f"{POLICIES}/test_permissions.py::test_a_damaged_record_of_changes_keeps_nobody_out",
    ),
    Mutant(
        name="a damaged topic hides the others",
        module="actors.topic_catalog",
        old="                except Corrupt:\n",
        new="                except Conflict:\n",
        world=BROKER,
        test=f"{DAMAGED}::test_the_other_topics_are_listed",
    ),
    Mutant(
        name="a damaged topic keeps the others from their copies",
        module="actors.controller",
        old="            except (NotFound, Corrupt):\n",
        new="            except NotFound:\n",
        world=BROKER,
        test=f"{DAMAGED}::test_the_other_topics_get_their_copies",
    ),
    Mutant(
        name="a damaged topic is short of no copies",
        module="actors.controller",
        old='        return [*known, *((topic, "") for topic in self._catalog.damaged)]\n',
        new="        return known\n",
        world=BROKER,
        test=f"{DAMAGED}::test_the_other_topics_get_their_copies",
    ),
    Mutant(
        name="a partition that cannot be started hides the others",
        module="cluster.pulsar.admin.broker",
        old="            except (Unavailable, Fenced, Corrupt):\n",
        new="            except (Unavailable, Fenced):\n",
        world=BROKER,
        test=f"{PAGE}::test_the_live_page_shows_the_other_partitions",
    ),
    Mutant(
        name="a damaged topic hides what others have on the live page",
        module="cluster.http.admin",
        old="            with contextlib.suppress(NotFound, Corrupt):\n",
        new="            with contextlib.suppress(NotFound):\n",
        world=BROKER,
        test=f"{PAGE}::test_the_live_page_lists_what_other_topics_have",
    ),
    Mutant(
        name="a subscription without an epoch hides the others from inspect",
        module="cluster.inspect",
        old='            Cursor.decode(record_in(key, raw)["cursor"])\n',
        new='            Cursor.decode(msgpack.unpackb(raw)["cursor"])\n',
        world=BROKER,
        test="tests/cluster/test_inspect.py::test_a_subscription_that_cannot_be_read_is_a_row_like_others",
    ),
    Mutant(
        name="who has closed asks on where a batch ends",
        module="actors.pulsar.conversation.batch_reassembly",
        old="        self._handling.end()\n",
        new="",
        world="gateway",
        test="tests/actors/pulsar/test_whole_batches.py::test_what_is_others_is_not_asked_for_any_more",
    ),
]
