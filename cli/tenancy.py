"""`sluice tenants`, `namespaces` and `permissions`: who shares a cluster, under which policies, with which rights.

The commands ask by HTTP, on Pulsar's paths. Without --role-token they ask as the operator of the data folder.
"""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from sluice.cli.options import DryRunOption
from sluice.cli.output import say, show, show_json
from sluice.cli.target import Target, takes, topic_path
from sluice.cluster.admin.policy_words import POLICIES, shown

TENANTS = "/admin/v2/tenants"
NAMESPACES = "/admin/v2/namespaces"
CLUSTER = "sluice"

tenants = typer.Typer(no_args_is_help=True, help="Make, show and delete tenants: teams that share a cluster.")
namespaces = typer.Typer(no_args_is_help=True, help="Make, show and delete namespaces, and set their policies.")
permissions = typer.Typer(no_args_is_help=True, help="Grant rights of a namespace or topic to roles, and revoke them.")


def _tenant(text: str) -> str:
    from sluice.actors.ownership.names import check_space

    check_space("tenant", text)
    return text


def _namespace(text: str) -> str:
    from sluice.actors.ownership.names import check_space

    check_space("namespace", text)
    return text


def _policy(text: str | None) -> str | None:
    if text is not None and text not in POLICIES:
        raise typer.BadParameter(f"there is no policy {text[:40]!r}; there are: {', '.join(POLICIES)}")
    return text


TenantArgument = Annotated[str, typer.Argument(metavar="TENANT", callback=_tenant, help="Name of the tenant.")]
NamespaceArgument = Annotated[str, typer.Argument(metavar="TENANT/NAMESPACE", callback=_namespace, help="As red/work.")]
PolicyArgument = Annotated[
    str, typer.Argument(metavar="POLICY", callback=_policy, help="As retention; `get` lists all.")
]
AdminRolesOption = Annotated[
    list[str], typer.Option("--admin-role", metavar="ROLE", help="A role that administers it; can be repeated.")
]
PlaceArgument = Annotated[
    str, typer.Argument(metavar="PLACE", help="A namespace, red/work, or a topic, red/work/orders.")
]
RoleArgument = Annotated[str, typer.Argument(metavar="ROLE", help="As a token names it.")]


# -- tenants ----------------------------------------------------------------------------------------------------------


@tenants.command("list")
@takes("json", "role_token")
def list_tenants(target: Target) -> None:
    """List the tenants, with the roles that administer each."""
    asking = target.http()
    rows = [{"tenant": name, **asking.ask("GET", f"{TENANTS}/{name}")} for name in asking.ask("GET", TENANTS)]
    _show_tenants(rows, target.json)


@tenants.command("get")
@takes("json", "role_token")
def get_tenant(target: Target, tenant: TenantArgument) -> None:
    """Show a tenant: its administrators and its namespaces."""
    asking = target.http()
    row = {"tenant": tenant, **asking.ask("GET", f"{TENANTS}/{tenant}")}
    row["namespaces"] = asking.ask("GET", f"{NAMESPACES}/{tenant}")
    _show_tenants([row], target.json)


def _show_tenants(rows: list[dict[str, Any]], as_json: bool) -> None:
    if not as_json:
        rows = [{name: ", ".join(value) if isinstance(value, list) else value for name, value in row.items()}
                for row in rows]  # fmt: skip
    show(rows, as_json, {"tenant": "tenant", "adminRoles": "administrators", "namespaces": "namespaces"})


@tenants.command("create")
@takes("role_token")
def create_tenant(target: Target, tenant: TenantArgument, admin_role: AdminRolesOption = []) -> None:  # noqa: B006
    """Create a tenant."""
    target.http().ask("PUT", f"{TENANTS}/{tenant}", _body_of(admin_role))
    say(f"created tenant {tenant}")


@tenants.command("set")
@takes("role_token")
def set_tenant(target: Target, tenant: TenantArgument, admin_role: AdminRolesOption = []) -> None:  # noqa: B006
    """Give a tenant these administrators in place of its earlier ones."""
    target.http().ask("POST", f"{TENANTS}/{tenant}", _body_of(admin_role))
    say(f"tenant {tenant} is administered by {', '.join(sorted(admin_role)) or 'superusers alone'}")


@tenants.command("delete")
@takes("role_token")
def delete_tenant(target: Target, tenant: TenantArgument, dry_run: DryRunOption = False) -> None:
    """Delete a tenant that has no namespaces."""
    _delete(target, f"tenant {tenant}", f"{TENANTS}/{tenant}", dry_run)


def _body_of(administrators: list[str]) -> dict[str, list[str]]:
    """Return a tenant as the body of a request."""
    return {"adminRoles": administrators, "allowedClusters": [CLUSTER]}


def _delete(target: Target, what: str, path: str, dry_run: bool) -> None:
    """Delete what lies at a path, or say that it would be. what: in words."""
    if dry_run:
        say(f"would delete {what}")
        return
    target.http().ask("DELETE", path)
    say(f"deleted {what}")


# -- namespaces -------------------------------------------------------------------------------------------------------


@namespaces.command("list")
@takes("json", "role_token")
def list_namespaces(target: Target, tenant: TenantArgument) -> None:
    """List the namespaces of a tenant, with the number of topics in each."""
    asking = target.http()
    rows = [
        {"namespace": name, "topics": len(asking.ask("GET", f"{NAMESPACES}/{name}/topics"))}
        for name in asking.ask("GET", f"{NAMESPACES}/{tenant}")
    ]
    show(rows, target.json)


@namespaces.command("create")
@takes("role_token")
def create_namespace(target: Target, namespace: NamespaceArgument) -> None:
    """Create a namespace of a tenant that exists."""
    target.http().ask("PUT", f"{NAMESPACES}/{namespace}")
    say(f"created namespace {namespace}")


@namespaces.command("delete")
@takes("role_token")
def delete_namespace(target: Target, namespace: NamespaceArgument, dry_run: DryRunOption = False) -> None:
    """Delete a namespace that has no topics."""
    _delete(target, f"namespace {namespace}", f"{NAMESPACES}/{namespace}", dry_run)


@namespaces.command("get")
@takes("json", "role_token")
def get_policies(
    target: Target,
    namespace: NamespaceArgument,
    policy: Annotated[
        str | None, typer.Argument(metavar="[POLICY]", callback=_policy, help="One policy. Default: all.")
    ] = None,
) -> None:
    """Show the policies of a namespace as `set` takes them. --json has Pulsar's documents."""
    asking, documents = target.http(), {}
    asking.ask("GET", f"{NAMESPACES}/{namespace}")  # one that does not exist has no policies either
    for name in POLICIES if policy is None else [policy]:
        documents[name] = POLICIES[name].found(asking.ask("GET", f"{NAMESPACES}/{namespace}/{POLICIES[name].path}"))
    if target.json:
        show_json(documents)
        return
    show([{"policy": name, "value": shown(name, document)} for name, document in documents.items()], False)


@namespaces.command("set")
@takes("role_token")
def set_policy(
    target: Target,
    namespace: NamespaceArgument,
    policy: PolicyArgument,
    value: Annotated[list[str], typer.Argument(metavar="VALUE...", help="As retention 7d 10GB, or message-ttl 1h.")],
) -> None:
    """Set a policy of a namespace. Its topics follow within seconds, unless they have one of their own."""
    chosen = POLICIES[policy]
    body = chosen.body(policy, value)
    target.http().ask(chosen.method, f"{NAMESPACES}/{namespace}/{chosen.to_set}", body)
    say(f"{policy} of {namespace} is {' '.join(value)}")


@namespaces.command("unset")
@takes("role_token")
def unset_policy(target: Target, namespace: NamespaceArgument, policy: PolicyArgument) -> None:
    """Take a policy of a namespace back: its topics are as if it had never been set."""
    target.http().ask("DELETE", f"{NAMESPACES}/{namespace}/{POLICIES[policy].to_set}")
    say(f"{policy} of {namespace} is not set")


# -- permissions ------------------------------------------------------------------------------------------------------


@permissions.command("list")
@takes("json", "role_token")
def list_permissions(target: Target, place: PlaceArgument) -> None:
    """List who may do what there: roles with their actions, and subscriptions that are for some roles alone."""
    asking, path = target.http(), _path(place)
    rows = [{"role": role, "actions": actions} for role, actions in asking.ask("GET", path).items()]
    only = asking.ask("GET", f"{path}/subscription") if path.startswith(NAMESPACES) else {}
    rows += [
        {"role": role, "actions": ["consume"], "subscription": name} for name, roles in only.items() for role in roles
    ]
    if not target.json:
        rows = [{**row, "actions": ", ".join(row["actions"])} for row in rows]
    show(rows, target.json, {"role": "role", "actions": "actions", "subscription": "only subscription"})


@permissions.command()
@takes("role_token")
def grant(
    target: Target,
    place: PlaceArgument,
    role: RoleArgument,
    actions: Annotated[list[str], typer.Argument(metavar="ACTION...", help="produce, consume, or both.")],
) -> None:
    """Let a role produce or consume there, and nothing else of what was granted to it there before."""
    target.http().ask("POST", f"{_path(place)}/{quote(role, safe='')}", actions)
    say(f"{role} may {' and '.join(sorted(set(actions)))} in {place}")


@permissions.command()
@takes("role_token")
def revoke(target: Target, place: PlaceArgument, role: RoleArgument) -> None:
    """Take back what was granted to a role there."""
    target.http().ask("DELETE", f"{_path(place)}/{quote(role, safe='')}")
    say(f"nothing is granted to {role} in {place}")


SubscriptionOfNamespace = Annotated[
    str, typer.Argument(metavar="SUBSCRIPTION", help="Every subscription of this name in the namespace.")
]


@permissions.command("grant-subscription")
@takes("role_token")
def grant_subscription(
    target: Target,
    namespace: NamespaceArgument,
    subscription: SubscriptionOfNamespace,
    roles: Annotated[list[str], typer.Argument(metavar="ROLE...", help="The only roles that may use it.")],
) -> None:
    """Let these roles alone use subscriptions of a name. They need `consume` there as well."""
    target.http().ask("POST", f"{_path(namespace)}/subscription/{quote(subscription, safe='')}", roles)
    say(f"{subscription} in {namespace} is for {', '.join(sorted(set(roles)))} alone")


@permissions.command("revoke-subscription")
@takes("role_token")
def revoke_subscription(
    target: Target, namespace: NamespaceArgument, subscription: SubscriptionOfNamespace, role: RoleArgument
) -> None:
    """Take a subscription from a role. After its last role every role that may consume there may use it."""
    target.http().ask("DELETE", f"{_path(namespace)}/{quote(subscription, safe='')}/{quote(role, safe='')}")
    say(f"{subscription} in {namespace} is not for {role}")


def _path(place: str) -> str:
    """The path of the permissions of a namespace or a topic. Raises Invalid."""
    if place.count("/") == 1:
        return f"{NAMESPACES}/{_namespace(place)}/permissions"
    return f"/admin/v2/persistent/{topic_path(place)}/permissions"
