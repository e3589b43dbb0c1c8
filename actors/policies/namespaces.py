"""The namespaces: `public/default`, and those that an operator has made.

Each namespace has a record, `namespace/<tenant>/<namespace>`, with its policies; a tenant that was made by itself has
`tenant/<tenant>`. Clients cannot make topics in a namespace that does not exist, so a mistake in a name is noticed, as
with Pulsar. `public/default` has a record as soon as it has policies. The record of a tenant names the roles that may
administer it (actors.policies.authorization).
"""

from __future__ import annotations

import msgspec

from sluice.actors.ownership.names import TENANT_NAMESPACE, check_space, namespace_of
from sluice.actors.policies.policy_records import TENANTS, decoded, forget_rights, revise, tell_changed, value_of
from sluice.actors.ports import Meta
from sluice.storage.errors import Conflict, Invalid, NotFound

_SPACES = "namespace/"
ALWAYS, NEVER = "ALWAYS_COMPATIBLE", "ALWAYS_INCOMPATIBLE"
DEFAULT = "FULL"
STRATEGIES = (
    ALWAYS, NEVER, "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE",
)  # fmt: skip
"""The strategies by which a schema must go with those before it (actors.policies.schema_compatibility)."""
MOST_ROLES = 1_000
"""Of one tenant, and of what else has a list of roles."""
MOST_ROLE_LETTERS = 256


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


class Tenant(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """admin_roles: who may do everything with the topics and namespaces of a tenant."""

    admin_roles: tuple[str, ...] = ()


def check_roles(roles: object) -> tuple[str, ...]:
    """A list of roles that somebody gave, each once, in order. Raises Invalid."""
    if not isinstance(roles, list | tuple) or len(roles) > MOST_ROLES or not all(isinstance(one, str) for one in roles):
        raise Invalid(f"roles are a list of at most {MOST_ROLES} names")
    return tuple(sorted({check_role(one) for one in roles if one}))


def check_role(role: str) -> str:
    """Raises Invalid for what is no name of a role."""
    if not role.strip() or len(role) > MOST_ROLE_LETTERS or not role.isprintable():
        raise Invalid(f"a role is a name of at most {MOST_ROLE_LETTERS} printable letters, not {role[:40]!r}")
    return role


class Namespaces:
    """The records. Every method may raise Unavailable."""

    def __init__(self, meta: Meta) -> None:
        self._meta = meta

    async def policies(self, space: str) -> NamespacePolicies:
        """Return the policies of a namespace. Raises NotFound if there is no such namespace."""
        return _policies_in(space, await value_of(self._meta, _SPACES + space))

    async def check_exists(self, space: str) -> None:
        """Raises NotFound if there is no such namespace."""
        if space != TENANT_NAMESPACE:
            await self.policies(space)

    async def of_topic(self, topic: str) -> NamespacePolicies:
        """Return the policies of a topic's namespace, or the defaults if it has none. Raises Unavailable."""
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
        known = [key.removeprefix(TENANTS) for key in await self._meta.keys(TENANTS)]
        return sorted({*known, *(space.partition("/")[0] for space in await self.all_of())})

    async def create(self, space: str) -> None:
        """Make a namespace, which stands like `sales/eu`. Raises Invalid, Conflict if it is there."""
        await self._create(space, _SPACES, "namespace", b"{}")

    async def create_tenant(self, tenant: str, roles: tuple[str, ...] = ()) -> None:
        """Make a tenant, which these roles administer. Raises Invalid, Conflict if it is there."""
        await self._create(tenant, TENANTS, "tenant", msgspec.json.encode(Tenant(roles)))
        await tell_changed(self._meta, TENANTS + tenant)

    async def tenant(self, tenant: str) -> Tenant:
        """Return the record of a tenant, or an empty one if there is none. Raises Corrupt."""
        return tenant_in(tenant, await value_of(self._meta, TENANTS + tenant))

    async def change_tenant(self, tenant: str, roles: tuple[str, ...]) -> None:
        """From now on these roles administer it. Raises NotFound."""
        if tenant not in await self.tenants():
            raise NotFound(f"Tenant {tenant[:80]} does not exist")
        value = msgspec.json.encode(Tenant(roles))
        await revise(self._meta, TENANTS + tenant, lambda _: value, f"the tenant {tenant} is")
        await tell_changed(self._meta, TENANTS + tenant)

    async def _create(self, name: str, prefix: str, kind: str, value: bytes) -> None:
        check_space(kind, name)
        there = await (self.tenants() if prefix == TENANTS else self.all_of())
        if name in there or not await self._meta.create(prefix + name, 1, value):
            raise Conflict(f"{kind} {name} exists already")

    async def remove(self, space: str) -> None:
        """Forget a namespace, whose topics are gone. Raises NotFound, Conflict."""
        await self._check_goes(space, _SPACES, "namespace")
        await self._meta.remove(_SPACES + space)

    async def remove_tenant(self, tenant: str) -> None:
        """Forget a tenant. Raises NotFound, Conflict while it has namespaces."""
        if await self.all_of(tenant):
            raise Conflict(f"tenant {tenant} has namespaces")
        await self._check_goes(tenant, TENANTS, "tenant")
        await forget_rights(self._meta, TENANTS + tenant)

    async def _check_goes(self, name: str, prefix: str, kind: str) -> None:
        if name == TENANT_NAMESPACE:
            raise Conflict(f"{name} is always there")
        if prefix + name not in await self._meta.keys(prefix):
            raise NotFound(f"{kind} {name} does not exist")


def tenant_in(tenant: str, value: bytes | None) -> Tenant:
    """Decode the record of a tenant; no record is a tenant without administrators. Raises Corrupt."""
    return Tenant() if value is None else decoded(value, Tenant, f"the tenant {tenant}")


def _policies_in(space: str, value: bytes | None) -> NamespacePolicies:
    """The policies in a namespace's record. Raises NotFound, Corrupt."""
    if value is not None:
        return decoded(value, NamespacePolicies, f"the policies of {space}")
    if space != TENANT_NAMESPACE:
        raise NotFound(f"Namespace {space[:80]} does not exist: see `pulsar-admin namespaces create`")
    return NamespacePolicies()
