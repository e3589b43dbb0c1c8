"""Mutants of what hosts do for their actors, and of the connections between them. Tests find them, not seeds."""

from __future__ import annotations

from tools.mutants import Mutant

BROKER = "broker"

HOST, WIRE = "tests/cluster/launch/test_ray_host.py", "tests/cluster/wire"
FRAMES, HANDSHAKE = f"{WIRE}/test_frames.py", f"{WIRE}/test_handshake.py"
PEERS, PAYLOADS = f"{WIRE}/test_peers.py", f"{WIRE}/test_payloads.py"

TALKING: list[Mutant] = [
    Mutant(
        name="requests reach an actor before it has started",
        module="sluice.actors.runtime.host",
        old="            if not self.born.done():\n                await self.born\n",
        new="",
        world=BROKER,
        test=HOST,
    ),
    Mutant(
        name="who waits for an actor that ended is told nothing",
        module="sluice.actors.runtime.host",
        old="            call.cancel()\n",
        new="            pass\n",
        world=BROKER,
        test=HOST,
    ),
    Mutant(
        name="a local call hands over the caller's own columns",
        module="sluice.cluster.wire.net",
        old="pack(request).copied()",
        new="pack(request)",
        world=BROKER,
        test=HOST,
    ),
    Mutant(
        name="a local time-out ends the handler",
        module="sluice.cluster.wire.net",
        old="            return _no_answer(to, request, timeout)\n        finally:\n",
        new="            return _no_answer(to, request, timeout)\n        finally:\n            "
        "self._tasks.get(answered, timer).cancel()\n",
        world=BROKER,
        test=HOST,
    ),
    Mutant(
        name="the proof of a caller is not looked at",
        module="sluice.cluster.wire.handshake",
        old="""                raise HandshakeRefused("the caller does not have this cluster's token")""",
        new="                pass",
        world=BROKER,
        test=HANDSHAKE,
    ),
    Mutant(
        name="the proof of a listener is not looked at",
        module="sluice.cluster.wire.handshake",
        old="""                raise HandshakeRefused(f"what answers for {self._wanted} does not have this cluster's token")""",  # noqa: E501
        new="                pass",
        world=BROKER,
        test=HANDSHAKE,
    ),
    Mutant(
        name="a proof says nothing of its role",
        module="sluice.cluster.wire.handshake",
        old='parts = (b"sluice", role, name.encode(), callers, listeners, ',
        new='parts = (b"sluice", name.encode(), callers, listeners, ',
        world=BROKER,
        test=HANDSHAKE,
    ),
    Mutant(
        name="a proof says nothing of the listener's nonce",
        module="sluice.cluster.wire.handshake",
        old='parts = (b"sluice", role, name.encode(), callers, listeners, ',
        new='parts = (b"sluice", role, name.encode(), callers, ',
        world=BROKER,
        test=HANDSHAKE,
    ),
    Mutant(
        name="frames of any size are waited for",
        module="sluice.cluster.wire.frames",
        old="    if HEADER.size + body > limit:",
        new="    if HEADER.size + body > MAX_FRAME:",
        world=BROKER,
        test=FRAMES,
    ),
    Mutant(
        name="attachments are read where they were not written",
        module="sluice.cluster.wire.frames",
        old="        at += -at % _ALIGNMENT\n",
        new="",
        world=BROKER,
        test=FRAMES,
    ),
    Mutant(
        name="the beginning of a large frame is lost",
        module="sluice.cluster.wire.frames",
        old="        self._body[: len(begun)] = begun\n",
        new="",
        world=BROKER,
        test=FRAMES,
    ),
    Mutant(
        name="what waits to be sent is not safe from who sent it",
        module="sluice.cluster.wire.carrier",
        old="view if view.readonly else memoryview(bytes(view))",
        new="view",
        world=BROKER,
        test=PEERS,
    ),
    Mutant(
        name="a lost connection is taken for the end of the process",
        module="sluice.cluster.wire.peers",
        old='outcome = Unknown(f"the connection to {peer.host} was lost: {error}")',
        new='outcome = Unknown(f"the connection to {peer.host} was lost: {error}", gone=True)',
        world=BROKER,
        test=PEERS,
    ),
    Mutant(
        name="a process that cannot be reached is tried without a pause",
        module="sluice.cluster.wire.peers",
        old="        self.rest_until = asyncio.get_running_loop().time() + self.pause\n",
        new="",
        world=BROKER,
        test=PEERS,
    ),
    Mutant(
        name="strangers stay as long as they like",
        module="sluice.cluster.wire.listener",
        old="        self._late = self._loop.call_later(GREETING_S, self.close)",
        new="        self._late = self._loop.call_later(1000 * GREETING_S, self.close)",
        world=BROKER,
        test=PEERS,
    ),
    Mutant(
        name="whatever is asked is read",
        module="sluice.cluster.wire.listener",
        old="        if self._answering > MAX_ANSWERING:\n            self._carrier.pause()\n",
        new="",
        world=BROKER,
        test=PEERS,
    ),
    Mutant(
        name="a payload that its author can change is taken",
        module="sluice.cluster.wire.payloads",
        old="            if seals & _SEALS != _SEALS:",
        new="            if seals < 0:",
        world=BROKER,
        test=PAYLOADS,
    ),
    Mutant(
        name="a payload is not let go",
        module="sluice.cluster.wire.payloads",
        old="            _libc.munmap(self._address, self.size)\n",
        new="",
        world=BROKER,
        test=PAYLOADS,
    ),
    Mutant(
        name="descriptors of a frame that is refused stay open",
        module="sluice.cluster.wire.payloads",
        old="    finally:\n        frame.close()\n",
        new="    finally:\n        pass\n",
        world=BROKER,
        test=PAYLOADS,
    ),
    Mutant(
        name="a producer that was replaced opens its session again and again",
        module="sluice.actors.producer.producer",
        old="            except ProducerFenced:\n                raise\n",
        new="",
        world=BROKER,
        test="tests/actors/producer/test_fencing.py",
    ),
    Mutant(
        name="a producer sends beside its joint frames",
        module="sluice.actors.pulsar.conversation.producing.wire_producer",
        old="        self.part.send_jointly()\n",
        new="",
        world="gateway",
        test="tests/actors/pulsar/conversation/producing/test_joint_sends.py::test_later_frames_wait_behind_the_joint_ones",
    ),
    Mutant(
        name="refused joint frames of all but the first producer are given up",
        module="sluice.actors.pulsar.conversation.producing.joint_sends",
        old="            producer.send_alone(self, own, first, outcome)\n",
        new="            producer.send_alone(self, own, first, outcome)\n            return\n",
        world="gateway",
        test="tests/actors/pulsar/conversation/producing/test_joint_sends.py::test_later_frames_wait_behind_the_joint_ones",
    ),
]
