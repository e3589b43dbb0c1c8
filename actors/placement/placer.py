"""The controller's `Places`: does what `Placement` decides, through the `Processes` port.

Here are the waits: which slot is being given a process, who waits for whom, and what is done when a process does not
answer. The decision is always taken again after a wait, because several slots are looked after at the same time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from sluice.actors.controller.running import key_of
from sluice.actors.messages import WhoLeads
from sluice.actors.placement.candidates import keep_candidates
from sluice.actors.placement.placement import Placed, Placement
from sluice.actors.placement.slots import STANDBY, HostProcess, is_broker, is_gateway, stem
from sluice.actors.ports import Address, Introduction, Node, Ports, Processes, Unknown
from sluice.actors.runtime.waiting import Signal
from sluice.storage.errors import Corrupt, SluiceError, Unavailable


class Placer:
    """Starts host processes, and actors in them. Implements actors.ports.Places.

    candidate: who says whether this controller may act (actors.controller.candidate); empty if it always may.
    """

    def __init__(self, ports: Ports, processes: Processes, placement: Placement, candidate: Address = "") -> None:
        self._ports = ports
        self._candidate = candidate
        self._processes = processes
        self._placement = placement
        self._times = placement.times
        self._making: dict[str, asyncio.Lock] = {}
        self._replacing = asyncio.Lock()
        self._meeting: dict[str, Signal] = {}
        """By name, the processes that another controller made and that have not introduced themselves yet."""
        self._unmet: dict[str, None] = {}
        """Processes that did not answer, and whose machine may have been away."""
        self._all_met = Signal()
        self._own: dict[str, None] = {}
        """Names of the processes that this controller is making, or telling whom they serve."""
        self._vacated: dict[str, HostProcess] = {}
        """Processes that serve nothing any more, until what runs in them has been started elsewhere."""
        self._filling = self._settling = self._begun = False
        self._sooner, self._tried = Signal(), Signal()

    # -- Places ----------------------------------------------------------------------------------------------------

    async def machines(self) -> list[str]:
        nodes = [*await self._processes.nodes(), *self._processes.away()]
        return sorted({node.address for node in nodes})

    async def acts(self) -> bool:
        if not self._candidate:
            return True
        told = await self._ports.net.call(self._candidate, WhoLeads(), self._times.serve)
        return not isinstance(told, Unknown) and told.acts

    async def is_away(self, address: Address) -> bool:
        process = self._placement.named(address.partition("/")[0])
        if process is None:
            return False
        await self._processes.nodes()
        return any(node.id == process.node for node in self._processes.away())

    async def start(self, kind: str, name: str, settings: dict[str, Any]) -> Address:
        slot = self._placement.slot_for(kind, settings)
        if not is_broker(slot) and slot not in self._placement.serving:
            await self._refuse_while_away(slot, settings.get("machine"))
        if (known := await self._found_late(slot, key_of(kind, settings))) is not None:
            return known
        if not is_broker(slot) and any(stem(name) == slot for name in self._unmet):
            raise Unavailable(f"{slot} may be on a machine that was away until now")
        if is_broker(slot) or is_gateway(slot):
            process = await self._process_of(slot, settings.get("machine"))
            return await self._start_in(process, slot, kind, name, settings)
        tried: list[str] = []
        while True:
            nodes = await self._processes.nodes()
            machine = self._placement.machine_for(slot, nodes, tried)
            self._placement.goes(slot, next(node.id for node in nodes if node.address == machine))
            process = await self._process_of(slot, machine)
            try:
                return await self._start_in(process, slot, kind, name, settings)
            except Corrupt:
                tried.append(machine)
                if any(node.address not in tried for node in await self._processes.nodes()):
                    continue
                if self._placement.is_away(slot, tried, self._processes.away()):
                    raise Unavailable(f"the machine where {slot} ran is away") from None
                raise

    async def _refuse_while_away(self, slot: str, machine: str | None) -> None:
        """Raises Unavailable while the machine to which a slot belongs is away, or may be. What runs on one that was
        away until now is there to be found.
        """
        await self._processes.nodes()
        away = [node.address for node in self._processes.away()]
        if machine in away or (machine is None and self._placement.waits_for(slot, away)):
            raise Unavailable(f"{slot} may be on a machine that is away ({', '.join(away)})")
        await self._look_around()

    async def stop(self, address: Address, *, frozen: bool = False) -> None:
        name, _, actor = address.partition("/")
        if name in self._vacated:
            if isinstance(await self._processes.stop(name, actor, self._times.stop), Unknown):
                self._end_vacated(name)
            return
        process = self._placement.named(name)
        if process is None:
            return
        if frozen and await self.is_away(address):
            self._leave(process)
        elif (
            frozen
            or not is_broker(process.slot)
            or isinstance(await self._processes.stop(name, actor, self._times.stop), Unknown)
        ):
            self._end(process)

    async def inventory(self) -> list[Placed]:
        """See actors.ports.Places; also finds the processes that an earlier controller made, and ends those that hang.

        One that is slow to answer keeps waiting those only who want something of its slot.
        """
        await self._processes.nodes()  # who is away is not waited for
        await self._look_around()
        if self._meeting:
            self._all_met.clear()
            await self._all_met.wait(self._ports, self._times.prompt)
        self._placement.note_machines(await self._processes.nodes())
        self._placement.start(self._now())
        self._begun = True
        self._refill_known()
        self._tend()
        self._ports.spawn(self._discover(), "discover")
        if self._placement.candidates:
            self._ports.spawn(keep_candidates(self._ports, self._processes, self._placement), "candidates")
        return self._placement.tell_found()

    async def nodes(self) -> list[Node]:
        return await self._processes.nodes()

    async def node_of(self, address: Address) -> str:
        name = address.partition("/")[0]
        process = self._vacated.get(name) or self._placement.named(name)
        return process.node if process is not None else ""

    # -- nodes that are to be left ---------------------------------------------------------------------------------

    def cordon(self, nodes: Sequence[str]) -> None:
        self._placement.cordoned = dict.fromkeys(nodes)

    async def vacate(self, node: str) -> list[str]:
        standby = self._placement.standby
        for waiting in [each for each in standby.waiting if each.node in self._placement.cordoned]:
            self._dismiss(waiting)
            self._refill_known()
        leaving = self._placement.on_node(node)
        if leaving and all(each.id in self._placement.cordoned for each in await self._processes.nodes()):
            raise Unavailable(f"{node[:12]} is the last node that can be used")
        for process in leaving:
            for slot in self._placement.served_by(process):
                async with self._making.setdefault(slot, asyncio.Lock()):
                    if self._placement.serving.get(slot) == process:
                        await self._get_process(slot, None, moves=process)
                self._placement.moved_out(slot, process)
            if not self._placement.served_by(process) and process.name not in self._vacated:
                self._ports.log("process_vacated", host=process.name)
                self._vacated[process.name] = process
        return [name for name, process in self._vacated.items() if process.node == node]

    async def dismiss(self, name: str) -> bool:
        known = await self._processes.introduce(name, self._times.introduce)
        if not isinstance(known, Unknown) and known.running:
            return False
        self._end_vacated(name)
        return True

    def _end_vacated(self, name: str) -> None:
        if self._vacated.pop(name, None) is not None:
            self._processes.kill(name)

    # -- what another controller made ------------------------------------------------------------------------------

    async def _discover(self) -> None:
        """Look around now and then: a controller that was frozen may have worked beside this one for a while, and what
        ran on a machine that was away is there again.
        """
        last, was_away = self._now(), False
        while True:
            await self._ports.clock.sleep(self._times.back)
            is_away = bool(self._processes.away())
            if is_away or was_away or self._now() - last >= self._times.discover:
                last, was_away = self._now(), is_away
                with contextlib.suppress(Unavailable):
                    await self._look_around()

    async def _look_around(self) -> None:
        """Let every process introduce itself that this controller neither knows nor makes. Raises Unavailable."""
        names = await self._processes.names()
        self._unmet = {name: None for name in self._unmet if name in names}
        for name in names:
            mine = name in self._own or name in self._vacated
            if name not in self._meeting and not mine and not self._placement.knows(name):
                self._meeting[name] = Signal()
                self._ports.spawn(self._introduce(name), "meet")

    @contextlib.contextmanager
    def _in_hand(self, name: str) -> Iterator[None]:
        """A process of this controller that neither serves nor waits for the moment."""
        self._own[name] = None
        try:
            yield
        finally:
            del self._own[name]

    async def _introduce(self, name: str) -> None:
        """Get to know a process that another controller made, and what runs in it. Never raises."""
        self._unmet.pop(name, None)
        try:
            known = await self._known(name)
            if isinstance(known, Unknown):
                if not known.gone:
                    self._ports.log("process_unknown", host=name, error=known.reason)
                    self._processes.kill(name)
            elif known is None:
                self._ports.log("process_away", host=name)
                self._unmet[name] = None
            elif not self._placement.introduced(name, known := await self._without_replaced(name, known)):
                self._processes.kill(name)
        finally:
            self._meeting.pop(name).set()
            if not self._meeting:
                self._all_met.set()
        self._refill_known()
        self._tend()

    async def _without_replaced(self, name: str, known: Introduction) -> Introduction:
        """End the actors of a process that others have replaced, as when its machine was away; return the rest.

        The process does not know that yet, and its callers would wait until it does.
        """
        if not self._begun:
            return known  # at the start of a controller it is not known which of two is the one that was replaced
        replaced = self._placement.replaced(name, known)
        for _, address, _ in replaced:
            self._ports.log("replaced_ends", address=address)
            await self._processes.stop(name, address.partition("/")[2], self._times.stop)
        return replace(known, running=[placed for placed in known.running if placed not in replaced])

    async def _known(self, name: str) -> Introduction | Unknown | None:
        """Ask a process for its introduction; None if it does not answer and may be on a machine that is away.

        A process is asked twice: a request that was lost while the machine was away proves nothing once it is back.
        """
        for _ in range(2):
            was_away = bool(self._processes.away())
            patience = self._times.prompt if was_away else self._times.introduce // 2
            known = await self._processes.introduce(name, patience)
            if not isinstance(known, Unknown) or known.gone:
                return known
            with contextlib.suppress(Unavailable):
                await self._processes.nodes()
            if was_away or self._processes.away():
                return None
        return known

    async def _found_late(self, slot: str, key: str) -> Address | None:
        """Return the address of a running actor of this key that the controller does not know yet, or None.

        Waits until the processes of its slot have been introduced.
        """
        for done in [done for name, done in self._meeting.items() if stem(name) == slot]:
            await done.wait(self._ports)
        for placed in self._placement.found():
            if key_of(placed[0], placed[2]) == key:
                self._placement.mark_returned(placed)
                return placed[1]
        return None

    # -- actors in processes ---------------------------------------------------------------------------------------

    async def _start_in(
        self, process: HostProcess, slot: str, kind: str, name: str, settings: dict[str, Any]
    ) -> Address:
        """A bookie that cannot start leaves nothing behind in its process, such as the lock of its disk."""
        alone = not is_broker(slot)
        try:
            answer = await self._started(process, kind, name, settings)
        except SluiceError:
            if alone:
                self._end(process)
                await self._look_around()  # another controller's process may hold the disk
            raise
        if not isinstance(answer, Unknown):
            self._placement.started(slot, process)
            if alone:
                self._placement.note_machines(await self._processes.nodes())
            self._tend()
            return answer
        if not answer.gone and not alone and await self._answers(process, name):
            raise Unavailable(f"{kind} did not start: {answer.reason}; its process lives")
        self._end(process)
        raise Unavailable(f"the process for {kind} did not answer: {answer.reason}")

    async def _started(self, process: HostProcess, kind: str, name: str, settings: dict[str, Any]) -> Address | Unknown:
        """Ask a process to start an actor until it answers, is gone, or has had its time.

        A repeated request waits for the first one, so a request that a cut has swallowed is sent again when the machine
        is back. An owner does not wait for that, because other processes can serve it.
        """
        deadline, waits = self._now() + self._times.start, not is_broker(process.slot)
        while True:
            patience = min(self._times.ask, deadline - self._now())
            answer = await self._processes.start(process.name, kind, name, settings, patience)
            if not isinstance(answer, Unknown) or answer.gone:
                return answer
            if (not waits and await self.is_away(process.name)) or self._now() >= deadline:
                return answer
            await self._ports.clock.sleep(min(self._times.back, deadline - self._now()))

    async def _answers(self, process: HostProcess, actor: str) -> bool:
        """Give one actor's slow start up; True if its process answered, and so serves its other actors well."""
        if isinstance(await self._processes.stop(process.name, actor, self._times.stop), Unknown):
            return False
        self._ports.log("start_given_up", host=process.name, actor=actor)
        return True

    def _leave(self, process: HostProcess) -> None:
        """A process is on a machine that is away: others serve its slots. It is met again if that comes back."""
        slots = self._placement.mark_lost(process, self._now())
        self._ports.log("process_left", slots=slots, host=process.name)

    def _end(self, process: HostProcess) -> None:
        """End a process that does not answer, or is of no use."""
        slots = self._placement.mark_lost(process, self._now())
        if slots:  # else an earlier failure has ended it
            self._ports.log("process_ended", slots=slots, host=process.name)
            self._processes.kill(process.name)

    # -- a process for a slot --------------------------------------------------------------------------------------

    async def _process_of(self, slot: str, machine: str | None) -> HostProcess:
        """The process of a slot, made if need be (on that machine, if one is given). Raises Unavailable."""
        async with self._making.setdefault(slot, asyncio.Lock()):
            if slot not in self._placement.serving:
                await self._get_process(slot, machine)
            self._placement.arrived(slot)
            return self._placement.serving[slot]

    async def _get_process(self, slot: str, machine: str | None, *, moves: HostProcess | None = None) -> None:
        """Give a slot a process: a standby one, or a shared one, or a new one.

        moves: the process that the slot leaves; then the new one runs nothing yet. Several brokers' slots lost at the
        same time are replaced in turn: the first one's process can take the others in, and their starts do not slow it
        down.
        """
        placement = self._placement
        replaced = moves is None and placement.is_replaced(slot)
        if is_broker(slot) or is_gateway(slot):
            placement.goes(slot, "")
        try:
            async with self._replacing if replaced else contextlib.nullcontext():
                every = await self._processes.nodes()
                nodes = placement.usable(every)
                here = [node for node in nodes if node.address == machine]
                if not here and is_gateway(slot):
                    raise Unavailable(f"the machine {machine} is away, or is being left")
                if not is_broker(slot):  # a bookie stays with its disk
                    here = here or [node for node in every if node.address == machine]
                here = here or nodes
                node = placement.node_for(slot, here)
                placement.goes(slot, node.id)
                process = await self._stand_in(slot, node, nodes)
                if process is None and replaced:
                    if self._fall_back(slot, nodes):
                        return
                    process = await self._soonest(slot, node, nodes)
                if process is None:
                    if placement.serving.get(slot) != moves:
                        return  # one was found meanwhile
                    process = await self._make(slot, node.id if len(every) > 1 else None)
                if not placement.serve(slot, process, instead=moves):
                    self._processes.kill(process.name)
        finally:
            placement.arrived(slot)
            if is_broker(slot):
                self._refill(self._times.again if replaced else self._times.first)

    def _fall_back(self, slot: str, nodes: list[Node]) -> bool:
        """Let a slot fall back to another one's process, or be served by one that was found; False if it cannot."""
        if slot in self._placement.serving:
            return True
        host = self._placement.fallback(nodes)
        if host is None or not self._placement.use_fallback(slot, host):
            return False
        self._ports.log("process_falls_back", slot=slot, host=host.name)
        self._tend()
        return True

    async def _soonest(self, slot: str, node: Node, nodes: list[Node]) -> HostProcess | None:
        """A process that waits. If there is none, one is made, which takes less time if it was on its way already."""
        if not self._placement.wanted():
            return None
        if not self._placement.standby.waiting:
            self._tried.clear()
            self._refill(0)
            await self._tried.wait(self._ports, self._times.soon)
        return await self._stand_in(slot, node, nodes)

    async def _stand_in(self, slot: str, node: Node, nodes: list[Node]) -> HostProcess | None:
        """A waiting process that is as well placed as one on `node` would be, told whom it serves; None without one."""
        if not is_broker(slot) and not is_gateway(slot):
            return None
        standby = self._placement.standby
        for process in standby.elsewhere([each.id for each in nodes]):
            self._dismiss(process)
        for process in self._placement.stand_ins(slot, node, nodes):
            if not standby.remove(process):
                continue
            try:
                with self._in_hand(process.name):
                    served = await self._processes.serve(process.name, slot, self._times.serve)
                if isinstance(served, Unknown):
                    self._processes.kill(process.name)
                    continue
            except Unavailable:
                continue  # another controller uses it
            self._ports.log("process_stands_in", slot=slot, host=process.name)
            if is_gateway(slot):
                self._refill(self._times.again)
            return process
        return None

    def _dismiss(self, process: HostProcess) -> None:
        """End a process that waits."""
        if self._placement.standby.remove(process):
            self._processes.kill(process.name)

    async def _make(self, slot: str, node: str | None) -> HostProcess:
        name = f"{slot}-{self._ports.rng.randrange(1 << 32):08x}"
        self._ports.log("process_starts", host=name, node=node or "")
        try:
            with self._in_hand(name):
                return HostProcess(name, await self._processes.make(name, node, self._times.start), slot)
        except Unavailable as error:
            self._ports.log("process_failed", host=name, error=str(error))
            raise Unavailable(f"no process could be started for {slot}: {error}") from error

    # -- processes that wait ---------------------------------------------------------------------------------------

    def _refill(self, after: int) -> None:
        """Let a standby process be made if there are too few, after a time (ms) at the latest."""
        if not self._placement.standby.refill(self._now(), after, self._placement.wanted()):
            return
        if self._filling:
            self._sooner.set()
        else:
            self._filling = True
            self._ports.spawn(self._fill(), "standby")

    def _refill_known(self) -> None:
        """After processes of another controller were met: what they do is over the start of a cluster."""
        if self._placement.serves_brokers():
            self._refill(self._times.again)

    async def _fill(self) -> None:
        """Make the standby processes, one at a time."""
        standby = self._placement.standby
        try:
            while (due := standby.due(self._placement.wanted())) is not None:
                if (left := due - self._now()) > 0:
                    self._sooner.clear()
                    await self._sooner.wait(self._ports, left)
                    continue
                await self._make_standby()
                self._tried.set()
        finally:
            self._filling = False
            standby.settled()

    async def _make_standby(self) -> None:
        placement = self._placement
        try:
            every = await self._processes.nodes()
            node = placement.node_for(STANDBY, placement.usable(every))
            if placement.standby.due(placement.wanted()) is not None:
                process = await self._make(STANDBY, node.id if len(every) > 1 else None)
                placement.standby.made(process, self._now(), placement.wanted())
                self._tend()
        except Unavailable:
            placement.standby.failed(self._now())

    # -- when all is calm ------------------------------------------------------------------------------------------

    def _tend(self) -> None:
        """See to it that no slot stays in a fallback for good, and that no more processes wait than are wanted."""
        if not self._settling and self._unsettled():
            self._settling = True
            self._ports.spawn(self._settle(), "settle")

    def _unsettled(self) -> bool:
        return self._placement.co_located() is not None or self._placement.surplus() is not None

    async def _settle(self) -> None:
        """When all is calm, give slots in a fallback processes of their own, one by one; end what is idle."""
        try:
            while self._unsettled():
                if (left := self._placement.calm_in(self._now())) > 0:
                    await self._ports.clock.sleep(left)
                elif (co_located := self._placement.co_located()) is not None:
                    await self._move_back(*co_located)
                elif (surplus := self._placement.surplus()) is not None:
                    self._ports.log("process_not_needed", host=surplus.name)
                    self._dismiss(surplus)
        finally:
            self._settling = False

    async def _move_back(self, slot: str, host: HostProcess) -> None:
        """Let a slot leave its fallback; if that fails it stays for a while."""
        try:
            await self._move(slot, host)
        except Unavailable as error:
            self._ports.log("process_stays", slot=slot, error=str(error))
            await self._ports.clock.sleep(self._times.calm)

    async def _move(self, slot: str, host: HostProcess) -> None:
        """Give a slot a process of its own. What it ran in that one is ended there, and started by who misses it.

        Raises Unavailable.
        """
        async with self._making.setdefault(slot, asyncio.Lock()):
            if self._placement.serving.get(slot, host) == host:
                await self._get_process(slot, None, moves=host)
        self._placement.moved_out(slot, host)  # what is started there from now on counts anew
        try:
            known = await self._processes.introduce(host.name, self._times.introduce)
            for kind, address, settings in [] if isinstance(known, Unknown) else known.running:
                if self._placement.slot_for(kind, settings) == slot:
                    known = await self._processes.stop(host.name, address.partition("/")[2], self._times.stop) or known
            if isinstance(known, Unknown) and known.gone:
                self._end(host)
            elif isinstance(known, Unknown):
                raise Unavailable(known.reason)
        except SluiceError as error:
            self._placement.falls_back(slot, host)
            raise Unavailable(f"{host.name} does not let {slot} go: {error}") from error

    def _now(self) -> int:
        return self._ports.clock.monotonic()
