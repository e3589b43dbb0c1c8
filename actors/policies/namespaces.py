"""The namespaces: `public/default`, and those that an operator has made.

Each namespace has a record, `namespace/<tenant>/<namespace>`, with its policies; a tenant that was made by itself has
`tenant/<tenant>`. Clients cannot make topics in a namespace that does not exist, so a mistake in a name is noticed, as
with Pulsar. `public/default` has a record as soon as it has policies.
"""

from __future__ import annotations

import msgspec

from actors.names import TENANT_NAMESPACE, check_space, namespace_of
from actors.policies.policy_records import decoded, revise, value_of
from actors.policies.schema_compatibility import DEFAULT, STRATEGIES
from actors.ports import Meta
from storage.errors import Conflict, Invalid, NotFound

_SPACES, _TENANTS = "namespace/", "tenant/"


class NamespacePolicies(msgspec.Struct, frozen=True, omit_defaults=True):
    """Policies for the topics of a namespace.

    deduplication: topics that clients make from now on drop what a producer sends again. compatibility: the strategy
    by which a schema must go with those before it. enforced: who produces to a topic that has a schema must have one.
    """

    deduplication: bool = False
    compatibility: str = DEFAULT
    enforced: bool = False

    def __post_init__(self) -> None:
        if self.compatibility not in STRATEGIES:
            raise Invalid(f"there is no strategy {self.compatibility[:40]!r}: use one of {', '.join(STRATEGIES)}")


class Namespaces:
    """The records. Every method may raise Unavailable."""

    def __init__(self, meta: Meta) -> None:
        self._meta = meta

    async def policies(self, space: str) -> NamespacePolicies:
        """Those of a namespace. Raises NotFound if there is none."""
        return _policies_in(space, await value_of(self._meta, _SPACES + space))

    async def check_exists(self, space: str) -> None:
        """Raises NotFound if there is no such namespace."""
        if space != TENANT_NAMESPACE:
            await self.policies(space)

    async def of_topic(self, topic: str) -> NamespacePolicies:
        """Those that hold for a topic, whoever made it. Raises Unavailable."""
        space, _ = namespace_of(topic)
        try:
            return await self.policies(space)
        except NotFound:
            return NamespacePolicies()

    async def change(self, space: str, **values: bool | str) -> None:
        """Set policies of a namespace. Raises NotFound, Invalid."""

        def changed(value: bytes | None) -> bytes:
            return msgspec.json.encode(msgspec.structs.replace(_policies_in(space, value), **values))

        await revise(self._meta, _SPACES + space, changed, f"the policies of {space} are")

    async def all_of(self, tenant: str = "") -> list[str]:
        """Every namespace, or those of a tenant."""
        known = [key.removeprefix(_SPACES) for key in await self._meta.keys(_SPACES)]
        return [space for space in sorted({TENANT_NAMESPACE, *known}) if not tenant or space.startswith(f"{tenant}/")]

    async def tenants(self) -> list[str]:
        known = [key.removeprefix(_TENANTS) for key in await self._meta.keys(_TENANTS)]
        return sorted({*known, *(space.partition("/")[0] for space in await self.all_of())})

    async def create(self, space: str) -> None:
        """Make a namespace, which stands like `sales/eu`. Raises Invalid, Conflict if it is there."""
        await self._create(space, _SPACES, "namespace")

    async def create_tenant(self, tenant: str) -> None:
        """Make a tenant. Raises Invalid, Conflict if it is there."""
        await self._create(tenant, _TENANTS, "tenant")

    async def _create(self, name: str, prefix: str, kind: str) -> None:
        check_space(kind, name)
        there = await (self.tenants() if prefix == _TENANTS else self.all_of())
        if name in there or not await self._meta.create(prefix + name, 1, b"{}"):
            raise Conflict(f"{kind} {name} exists already")

    async def remove(self, space: str) -> None:
        """Forget a namespace, whose topics are gone. Raises NotFound, Conflict."""
        await self._remove(space, _SPACES, "namespace")

    async def remove_tenant(self, tenant: str) -> None:
        """Forget a tenant. Raises NotFound, Conflict while it has namespaces."""
        if await self.all_of(tenant):
            raise Conflict(f"tenant {tenant} has namespaces")
        await self._remove(tenant, _TENANTS, "tenant")

    async def _remove(self, name: str, prefix: str, kind: str) -> None:
        if name == TENANT_NAMESPACE:
            raise Conflict(f"{name} is always there")
        if prefix + name not in await self._meta.keys(prefix):
            raise NotFound(f"{kind} {name} does not exist")
        await self._meta.remove(prefix + name)


def _policies_in(space: str, value: bytes | None) -> NamespacePolicies:
    """The policies in a namespace's record. Raises NotFound, Corrupt."""
    if value is not None:
        return decoded(value, NamespacePolicies, f"the policies of {space}")
    if space != TENANT_NAMESPACE:
        raise NotFound(f"Namespace {space[:80]} does not exist: see `pulsar-admin namespaces create`")
    return NamespacePolicies()
