"""The configuration of a cluster, and where each value came from.

A value is looked for in four places, and the first that has it wins: flags of the command, environment variables
(`SLUICE_DATA_DIR`, and `SLUICE_TOPIC__ACK_QUORUM` for a section), a TOML file, the default. The file is the one named
by `--config` or `SLUICE_CONFIG`, else `sluice.toml` in the present folder, else `sluice/config.toml` in the user's
configuration folder. A key that is not known is an error with a suggestion, never ignored: a misspelt limit that does
nothing is found when it is too late.

The sections `topic` and `subscription` hold the defaults of new topics and subscriptions, `bookie` the sizes of the
bookies. Their keys are the fields of `TopicSettings`, `SubscriptionSettings` and `BookieSettings` themselves, which
carry Pulsar's names in snake_case; there is no second list. The end of a name gives the unit: `_ms` and `_millis` are
milliseconds, `_seconds` seconds, `_bytes` bytes. Where a unit is known, `10s`, `1h30m` or `64MB` may be written in
place of the bare number.

Secrets have no place here: S3 credentials come from boto3's own chain, tokens from files with mode 0600.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo, create_model
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from sluice.actors.bookie.settings import BookieSettings
from sluice.actors.controller.bookie_failure_detector import LOST_AFTER_MS
from sluice.actors.controller.idle_owners import CLOSE_IDLE_AFTER_MS
from sluice.actors.messages import SubscriptionSettings, TopicSettings
from sluice.actors.messages.settings import check_subscription, check_topic
from sluice.actors.policies.limits import MOST
from sluice.cluster.host.metadata_quota import METADATA_QUOTA_BYTES
from sluice.cluster.settings.connection_limits import MOST_CONNECTIONS, MOST_HTTP_CONNECTIONS, MOST_PER_ADDRESS
from sluice.cluster.settings.options import RECORDER_BYTES, ClusterOptions
from sluice.storage.errors import Invalid
from sluice.storage.format.batch import MAX_MESSAGE_BYTES

S = TypeVar("S", bound=msgspec.Struct)

PREFIX = "SLUICE_"

LEAST_MESSAGE_BYTES = 64 * 1024
MOST_OPEN = 100_000
"""The least that can be set as the largest message: what clients say of a thousand messages at once has to fit."""

MAX_DIGITS = 40
"""Longest text that is read as a duration or a size."""

OTHER_VARIABLES = ("SLUICE_CONFIG", "SLUICE_DEBUG", "SLUICE_TOKEN", "SLUICE_TOKEN_FILE")
"""Environment variables that begin like ours and are no configuration keys. SLUICE_INTERNAL_* is left alone too."""

_SERVICE_LINKS = re.compile(r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT(_\d+_(TCP|UDP)(_\w+)?)?$")
"""What Kubernetes puts into every pod for a service whose name begins with "sluice"."""

_DURATIONS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZES = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+")
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)


def parse_duration(text: str) -> int:
    """Milliseconds of `250ms`, `10s`, `1h30m`; a bare number is milliseconds. Raises ValueError."""
    text = text.strip()
    if len(text) > MAX_DIGITS or not (text.isdecimal() or _DURATION.fullmatch(text)):
        raise ValueError(f"{text[:MAX_DIGITS]!r} is not a duration; write 250ms, 10s, 5m, 1h or 2d")
    if text.isdecimal():
        return int(text)
    return round(sum(float(number) * _DURATIONS[unit] for number, unit in _DURATION_PART.findall(text)))


def parse_size(text: str) -> int:
    """Bytes of `64MB`, `1GiB`, `512k` (all by powers of 1024); a bare number is bytes. Raises ValueError."""
    found = _SIZE.fullmatch(text.strip())
    if not found or len(text) > MAX_DIGITS:
        raise ValueError(f"{text[:MAX_DIGITS]!r} is not a size; write 512KB, 64MB or 1GB")
    return round(float(found[1]) * _SIZES[f"{found[2].upper()}B"])


def with_unit(name: str, value: object) -> object:
    """Turn a text with a unit into a number, by the unit that the end of the key's name gives. A part of a second is a
    whole one where seconds are meant, because 0 has a meaning of its own. So has -1, which needs no unit.
    """
    if not isinstance(value, str):
        return value
    if value.strip() == "-1":
        return -1
    if name.endswith(("_ms", "_millis")):
        return parse_duration(value)
    if name.endswith("_seconds"):
        seconds = value.strip()
        return int(seconds) if seconds.isdecimal() and len(seconds) <= MAX_DIGITS else -(-parse_duration(value) // 1000)
    return parse_size(value) if name.endswith("_bytes") else value


def _unit(value: object, info: ValidationInfo) -> object:
    return with_unit(info.field_name or "", value)


def _named(value: object) -> object:
    """A variable that is set to nothing names no folder; a path would make the current one of it."""
    if value == "":
        raise ValueError("name a folder; `.` is the current one")
    return value


def _section(name: str, settings: type[msgspec.Struct]) -> type[BaseModel]:
    fields: dict[str, Any] = {
        field.name: (Annotated[field.type, BeforeValidator(_unit)], field.default)
        for field in msgspec.structs.fields(settings)
    }
    return create_model(name, __config__=ConfigDict(extra="forbid"), **fields)


TopicSection = _section("TopicSection", TopicSettings)
SubscriptionSection = _section("SubscriptionSection", SubscriptionSettings)
BookieSection = _section("BookieSection", BookieSettings)
SECTIONS = {"topic": TopicSection, "subscription": SubscriptionSection, "bookie": BookieSection}
"""The tables of the file, and the models of what may stand in them."""


class Configuration(BaseSettings):
    """The settings of a cluster. Make them with `load`."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", nested_model_default_partial_update=True
    )

    address: str | None = Field(None, description="address of a running Ray cluster to join; none starts one here")
    data_dir: Annotated[Path, BeforeValidator(_named)] = Field(
        Path("sluice-data"), description="where bookies, metadata and objects live on this machine"
    )
    bookies: int = Field(3, ge=1, le=1000, description="bookies to start")
    bookie_lost_after_ms: Annotated[int, BeforeValidator(_unit)] = Field(
        LOST_AFTER_MS, ge=1000, description="how long a bookie may be away before its copies are made again elsewhere"
    )
    close_idle_after_ms: Annotated[int, BeforeValidator(_unit)] = Field(
        CLOSE_IDLE_AFTER_MS,
        ge=0,
        description="how long nobody uses a topic before it is closed; 0 is never",
    )
    brokers: int = Field(2, ge=1, le=1000, description="processes that run topics and dispatchers")
    standby: bool = Field(True, description="keep broker processes ready, for a faster failover")
    cpus: int | None = Field(None, ge=1, description="processors that Ray may use; none means all")
    object_store_bytes: Annotated[int, BeforeValidator(_unit)] = Field(
        1 << 30, ge=80 << 20, description="shared memory for payloads on each node"
    )
    recorder_bytes: Annotated[int, BeforeValidator(_unit)] = Field(
        RECORDER_BYTES, ge=0, description="what the flight recorder of each process keeps on disk; 0 is off"
    )
    metadata: str = Field("", description="where metadata lives: empty for data_dir, or s3://bucket/prefix")
    metadata_quota_bytes: Annotated[int, BeforeValidator(_unit)] = Field(
        METADATA_QUOTA_BYTES,
        ge=0,
        description="bytes of metadata above which no topics, schemas, policies and rights are added; 0 is any number",
    )
    objects: str = Field("", description="where snapshots go: empty for data_dir, or s3://bucket/prefix")
    s3_endpoint_url: str | None = Field(None, description="S3 server to use in place of AWS, for example MinIO's")
    iceberg_catalog: str = Field(
        "", description="catalog in which what leaves for the object store is a table: sqlite:///FILE or http://HOST"
    )
    iceberg_warehouse: str = Field(
        "", description="where tables of iceberg_catalog keep what is theirs: a URL; empty is beside objects"
    )
    bind_address: str = Field(
        "127.0.0.1", description='where processes listen for others; "node" for several machines: the address Ray uses'
    )
    tls_trust_certs_file: str = Field(
        "", description="certificates of the authority whose certificates processes of other machines must show"
    )
    tls_certificate_file: str = Field("", description="certificate that processes show to those of other machines")
    tls_key_file: str = Field("", description="key of tls_certificate_file")
    admin_port: int = Field(
        0, ge=0, le=65535, description="where the live page and /metrics are, beside pulsar_web_port; 0 chooses"
    )
    pulsar_port: int = Field(
        6650, ge=-1, le=65535, description="where clients of Apache Pulsar connect; 0 chooses a free port, -1 is none"
    )
    pulsar_web_port: int = Field(
        8080,
        ge=-1,
        le=65535,
        description="where pulsar-admin connects; 0 chooses, -1 is none, as where pulsar_port is -1",
    )
    pulsar_web_tls_port: int = Field(
        8443, ge=-1, le=65535, description="the same with TLS, beside pulsar_tls_port and with its certificate"
    )
    pulsar_bind_address: Literal["127.0.0.1", "node", "0.0.0.0"] = Field(
        "127.0.0.1",
        description="where gateways listen for clients of Apache Pulsar;"
        ' "node" adds the address by which Ray knows the machine',
    )
    pulsar_advertised_address: str = Field(
        "",
        description="host that clients of Apache Pulsar are told to connect to; empty is 127.0.0.1, or with"
        ' pulsar_bind_address "node" the address of each gateway\'s machine',
    )
    pulsar_token_key_file: str = Field(
        "", description="file with the secret or public key of the tokens that clients of Apache Pulsar must present"
    )
    pulsar_max_message_bytes: Annotated[int, BeforeValidator(_unit)] = Field(
        MAX_MESSAGE_BYTES,
        ge=LEAST_MESSAGE_BYTES,
        le=MAX_MESSAGE_BYTES,
        description="what clients of Apache Pulsar are told that one message may have; they send larger ones in chunks",
    )
    pulsar_max_connections: int = Field(
        MOST_CONNECTIONS,
        ge=1,
        le=MOST_OPEN,
        description="clients of Apache Pulsar that one gateway may have connected",
    )
    pulsar_max_connections_per_address: int = Field(
        MOST_PER_ADDRESS, ge=1, le=MOST_OPEN, description="how many of them may come from one address"
    )
    pulsar_max_connections_per_role: int = Field(
        0, ge=0, le=MOST_OPEN, description="how many of them may have one role; 0 is any number"
    )
    pulsar_publish_rate_per_role_messages: int = Field(
        0, ge=0, le=MOST, description="messages that one role may publish in a second; 0 is any number"
    )
    pulsar_publish_rate_per_role_bytes: Annotated[int, BeforeValidator(_unit)] = Field(
        0, ge=0, le=MOST, description="the same in bytes"
    )
    pulsar_dispatch_rate_per_role_messages: int = Field(
        0, ge=0, le=MOST, description="messages that clients of one role may be sent in a second; 0 is any number"
    )
    pulsar_dispatch_rate_per_role_bytes: Annotated[int, BeforeValidator(_unit)] = Field(
        0, ge=0, le=MOST, description="the same in bytes"
    )
    pulsar_web_max_connections: int = Field(
        MOST_HTTP_CONNECTIONS, ge=1, le=MOST_OPEN, description="the same for HTTP, whatever address they come from"
    )
    pulsar_password_file: str = Field(
        "", description="file with names and passwords of clients of Apache Pulsar, as `htpasswd -B` writes it"
    )
    pulsar_token_auth_claim: str = Field(
        "sub", description="claim of a token that names its role, or a list of its roles"
    )
    pulsar_token_audience: str = Field("", description="audience that tokens must be for; empty is any")
    pulsar_token_audience_claim: str = Field("aud", description="claim of a token that names its audience")
    pulsar_token_issuer: str = Field("", description="issuer that tokens must be from; empty is any")
    pulsar_anonymous_role: str = Field(
        "", description="role of clients of Apache Pulsar that present nothing; empty: they are refused, if others are"
    )
    authorization_enabled: bool = Field(
        False, description="whether roles may do only what was granted to them, as with Apache Pulsar"
    )
    super_user_roles: str = Field("", description="roles that may do everything, divided by commas")
    viewer_roles: str = Field("", description="roles that may look at everything but messages, divided by commas")
    pulsar_tls_port: int = Field(
        6651, ge=-1, le=65535, description="the same with TLS, if pulsar_tls_certificate_file names a certificate"
    )
    pulsar_tls_certificate_file: str = Field("", description="certificate that clients of Apache Pulsar are shown")
    pulsar_tls_key_file: str = Field("", description="key of pulsar_tls_certificate_file")
    pulsar_tls_trust_certs_file: str = Field(
        "", description="certificates of the authority whose certificates clients of Apache Pulsar must show"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "warning", description="what the processes of the cluster write to Ray's log files"
    )
    topic: TopicSection = Field(default_factory=TopicSection, description="defaults of new topics")  # type: ignore[valid-type]
    subscription: SubscriptionSection = Field(  # type: ignore[valid-type]
        default_factory=SubscriptionSection, description="defaults of new subscriptions"
    )
    bookie: BookieSection = Field(default_factory=BookieSection, description="settings of the bookies")  # type: ignore[valid-type]

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, then the environment, then the TOML file; .env files and secret folders are not read."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

    def cluster_options(self) -> ClusterOptions:
        """The options of a cluster that this process starts."""
        same = {field.name for field in fields(ClusterOptions)} & set(type(self).model_fields)
        bookie = _settings(BookieSettings, "bookie", self.bookie, {})
        return ClusterOptions(
            **{name: getattr(self, name) for name in sorted(same)}, bookie_settings=msgspec.structs.asdict(bookie)
        )

    def topic_settings(self, **changes: object) -> TopicSettings:
        """Settings for a new topic: these defaults, then the changes. Raises Invalid on an unknown key."""
        settings = _settings(TopicSettings, "topic", self.topic, changes)
        check_topic(settings)
        return settings

    def subscription_settings(self, **changes: object) -> SubscriptionSettings:
        """Settings for a new subscription: these defaults, then the changes. Raises Invalid on an unknown key."""
        settings = _settings(SubscriptionSettings, "subscription", self.subscription, changes)
        check_subscription(settings)
        return settings


def _settings(kind: type[S], section: str, base: BaseModel, changes: Mapping[str, object]) -> S:
    values = base.model_dump()
    for name, value in changes.items():
        if name not in values:
            raise Invalid(_unknown(name, values, f"a setting of a {section}"))
        try:
            values[name] = with_unit(name, value)
        except ValueError as error:
            raise Invalid(f"{name}: {error}") from None
    try:
        # Not strict: on the command line every value is a text.
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Invalid(f"settings of the {section}: {error}") from None


def known_keys() -> list[str]:
    """Every configuration key, sections with a dot, in the order in which they are declared."""
    keys: list[str] = []
    for name in Configuration.model_fields:
        section = SECTIONS.get(name)
        keys += [f"{name}.{key}" for key in section.model_fields] if section else [name]
    return keys


def find_file(named: Path | None = None) -> Path | None:
    """The configuration file that applies, or None. Raises Invalid if the named one is not there."""
    chosen = named or (Path(os.environ["SLUICE_CONFIG"]) if os.environ.get("SLUICE_CONFIG") else None)
    if chosen:
        if not chosen.is_file():
            raise Invalid(f"there is no configuration file {chosen}")
        return chosen
    candidates = [Path("sluice.toml")]
    with contextlib.suppress(RuntimeError):  # a user without a home, as in containers
        home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        candidates.append(home / "sluice" / "config.toml")
    return next((path for path in candidates if path.is_file()), None)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration and, for each key that is not at its default, where its value came from."""

    values: Configuration
    sources: dict[str, str]


def load(file: Path | None = None, **flags: object) -> Loaded:
    """Read the configuration that applies here and now. A flag that is None was not given.

    Raises Invalid with one line for an unknown key or a bad value.
    """
    path = find_file(file)
    given = {name: value for name, value in flags.items() if value is not None}
    _check_variables()
    layers = {"flag": _flat(given), "environment": _flat(_variables())}
    if path:
        layers[str(path)] = _flat(_read_toml(path))
    for source, layer in layers.items():
        for key in layer:
            if key not in known_keys():
                raise Invalid(_unknown(key, known_keys(), f"a configuration key ({source})"))

    class WithFile(Configuration):
        model_config = SettingsConfigDict(toml_file=path)

    try:
        values = WithFile(**given)  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        source = next((name for name, layer in layers.items() if key in layer), "default")
        raise Invalid(f"{key} = {first['input']!r} ({source}): {first['msg'].removeprefix('Value error, ')}") from None
    sources = {key: source for source, layer in reversed(layers.items()) for key in layer}
    return Loaded(values, sources)


def to_toml(loaded: Loaded) -> str:
    """The effective configuration as TOML that `load` reads back; values that are not defaults name their source."""
    flat = _flat(loaded.values.model_dump(mode="json"))
    lines: list[str] = []
    section = ""
    for key in known_keys():
        where, _, name = key.rpartition(".")
        if where != section:
            section = where
            lines += ["", f"[{section}]"]
        value = flat.get(key)
        text = f"# {name} =" if value is None else f"{name} = {_toml(value)}"
        lines.append(f"{text}  # from {loaded.sources[key]}" if key in loaded.sources else text)
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    """Return a value as TOML has it: like JSON, but with one escape for a character that JSON writes as two."""
    return re.sub("[^ -~]", lambda found: f"\\U{ord(found[0]):08x}", json.dumps(value, ensure_ascii=False))


def _variables() -> dict[str, Any]:
    """The values that environment variables give. Raises Invalid if one of a whole section is no JSON."""
    try:
        return EnvSettingsSource(Configuration)()
    except SettingsError as error:
        raise Invalid(f"{error}: a whole section is JSON; {PREFIX}TOPIC__ACK_QUORUM is one key of it") from None


def _flat(tree: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{key}": inner for key, inner in value.items()}
        else:
            flat[name] = value
    return flat


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise Invalid(f"cannot read the configuration file {path}: {error}") from None


def _check_variables() -> None:
    known = [PREFIX + key.replace(".", "__").upper() for key in known_keys()]
    known += [*OTHER_VARIABLES, *(PREFIX + section.upper() for section in SECTIONS)]
    for name in sorted(os.environ):
        excused = name in known or name.startswith(PREFIX + "INTERNAL_") or _SERVICE_LINKS.search(name)
        if name.startswith(PREFIX) and not excused:
            raise Invalid(_unknown(name, known, "an environment variable of Sluice"))


def _unknown(name: str, known: Iterable[str], what: str) -> str:
    """One line about an unknown name; Pulsar's camelCase is understood well enough to suggest ours."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    snake = snake if name.isupper() else snake.lower()
    candidates = list(known)
    close = difflib.get_close_matches(snake, candidates, n=1) or [
        key for key in candidates if key.rpartition(".")[2] == snake
    ]
    return f"{name!r} is not {what}" + (f"; did you mean {close[0]!r}?" if close else "")
