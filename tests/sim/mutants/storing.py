"""Mutants of the bookie, the ledger protocol and the topic."""

from __future__ import annotations

from tests.sim.mutants import Mutant

BOOKIE, LEDGER = "bookie", "ledger"

STORING: list[Mutant] = [
    Mutant(
        name="ack before sync",
        module="actors.bookie.commit",
        old="offset = await self._disk.append(segment_name(segment), parts, sync=True)",
        new="offset = await self._disk.append(segment_name(segment), parts, sync=False)",
        world=BOOKIE,
        seed=19,
    ),
    Mutant(
        name="epoch checked before an await",
        module="actors.bookie.bookie",
        old="""\
        known = await self._known(header)
        if known is None:
            await self._check_writable(header.ledger)
        # From here to the end of `submit` there is no await: the epoch is checked and the run queued in one step.
        self.store.ledgers.admit(header.ledger, request.epoch, recovery=request.recovery)
""",
        new="""\
        self.store.ledgers.admit(header.ledger, request.epoch, recovery=request.recovery)
        known = await self._known(header)
        if known is None:
            await self._check_writable(header.ledger)
        await self.ports.clock.sleep(2)
""",
        also=("        busy = self._busy.get((request.ledger, request.run))", "        busy = None"),
        world=BOOKIE,
        seed=135,
    ),
    Mutant(
        name="fence not durable",
        module="actors.bookie.bookie",
        old="        if state.durable_epoch < epoch:",
        new="        if state.durable_epoch < 0:",
        world=BOOKIE,
        seed=3,
    ),
    Mutant(
        name="recovery reads do not fence (BK1)",
        module="actors.bookie.bookie",
        old="        if request.fence_epoch is not None:",
        new="        if request.fence_epoch is not None and request.fence_epoch < 0:",
        world=BOOKIE,
        seed=3,
    ),
    Mutant(
        name="old epochs admitted, off by one",
        module="actors.bookie.ledgers",
        old="        if epoch < state.epoch:",
        new="        if epoch + 1 < state.epoch:",
        world=BOOKIE,
        seed=0,
    ),
    Mutant(
        name="fences forgotten by a restart",
        module="actors.bookie.ledgers",
        old="        elif record.kind in (Kind.RUN, Kind.FENCE) and record.ledger not in self.deleted:",
        new="        elif record.kind is Kind.RUN and record.ledger not in self.deleted:",
        world=BOOKIE,
        seed=76,
    ),
    Mutant(
        name="damage answered as absent (BK3)",
        module="actors.bookie.store",
        old='                raise Corrupt(f"run {run} of ledger {ledger} is damaged here")',
        new="                return None",
        world=BOOKIE,
        seed=21,
    ),
    Mutant(
        name="limbo answered as absent (BK3)",
        module="actors.bookie.bookie",
        old="            if self.store.ledgers.peek(request.ledger).limbo:",
        new="            if False:",
        world=BOOKIE,
        seed=0,
    ),
    Mutant(
        name="what is lost without a name is not noticed",
        module="actors.bookie.replay",
        old='    lost = size < witness or any(finding.verdict == "unknown" for finding in kept)',
        new="    lost = False",
        world=BOOKIE,
        seed=0,
    ),
    Mutant(
        name="ack quorum off by one",
        module="actors.ledger.writing",
        old="for bookie in self.write_set(pending.run)) >= self.quorum.ack",
        new="for bookie in self.write_set(pending.run)) >= max(1, self.quorum.ack - 1)",
        world=LEDGER,
        seed=0,
    ),
    Mutant(
        name="confirmed while an ensemble change is under way",
        module="actors.ledger.writing",
        old="        while self._change is None and self._pending and self._enough(self._pending[0]):",
        new="        while self._pending and self._enough(self._pending[0]):",
        world=LEDGER,
        seed=0,
    ),
    Mutant(
        name="fragment begins behind unconfirmed runs",
        module="actors.ledger.writing",
        old="Fragment(self.confirmed_run + 1, self.last_confirmed + 1, tuple(changed))",
        new="Fragment(self.next_run, self.next_entry, tuple(changed))",
        world=LEDGER,
        seed=0,
    ),
    Mutant(
        name="new bookies of an ensemble get no old runs",
        module="actors.ledger.writing",
        old="            if bookie not in pending.acked and bookie not in self.quorum.write_set(pending.run, before)",
        new="            if bookie not in bookie",
        world=LEDGER,
        seed=0,
    ),
    Mutant(
        name="fence answers off by one",
        module="actors.ledger.quorum",
        old="        return self.ensemble - self.ack + 1",
        new="        return max(1, self.ensemble - self.ack)",
        world=LEDGER,
        seed=0,
    ),
    Mutant(
        name="missing answers off by one",
        module="actors.ledger.quorum",
        old="        return self.write - self.ack + 1",
        new="        return max(1, self.write - self.ack)",
        world=LEDGER,
        seed=0,
    ),
    Mutant(
        name="silence counts as no such run (BK3)",
        module="actors.ledger.recovery",
        old='        """No answer, or damage."""\n        self._answered += 1',
        new='        """No answer, or damage."""\n        self._answered += 1\n        self.missing.append("nobody")',
        world=LEDGER,
        seed=0,
    ),
    Mutant(
        name="recovery starts in the first fragment (BK2)",
        module="actors.ledger.recovery",
        old="        fragment = ledger.fragments[-1]\n",
        new="        fragment = ledger.fragments[0]\n",
        world=LEDGER,
        seed=0,
    ),
    Mutant(
        name="recovery does not write back",
        module="actors.ledger.recover",
        old="        await work.write_back(recovery, frame)\n",
        new="",
        world=LEDGER,
        seed=0,
    ),
    Mutant(
        name="a lost metadata race is written over",
        module="actors.owned",
        old="                self.lost = True\n",
        new="                self._number = newest.number if newest else 0\n",
        world=LEDGER,
        seed=0,
    ),
    Mutant(
        name="repeated publish stored again",
        module="actors.topic.producers",
        old="        if last <= producer.stored:",
        new="        if last <= producer.stored - 3:",
        world=LEDGER,
        seed=0,
    ),
    Mutant(
        name="a new owner does not learn what producers stored",
        module="actors.topic.producers",
        old="        self.confirm(name, first, count, ledger, first_entry)\n        self._known[name].seen = now",
        new="        self._known.setdefault(name, Producer()).seen = now",
        world=LEDGER,
        seed=0,
    ),
    Mutant(
        name="readers are shown what is not confirmed",
        module="actors.topic.log",
        old="        return writer.state.last_confirmed if writer is not None",
        new="        return writer.state.next_entry - 1 if writer is not None",
        world=LEDGER,
        seed=0,
    ),
]
