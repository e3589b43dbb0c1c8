"""The made pages: each from the table, the class or the command that the code itself uses."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import msgspec
import typer.main
import yaml
from pydantic.fields import FieldInfo
from sphinx.pycode import ModuleAnalyzer
from typer.cli import get_docs_for_click

import sluice
from sluice.actors import messages
from sluice.actors.bookie import settings as bookie
from sluice.actors.messages import settings
from sluice.cli.app import app
from sluice.cluster.base.extras import EXTRAS
from sluice.cluster.client import typed_settings
from sluice.cluster.host import metrics
from sluice.cluster.settings.config import SECTIONS, Configuration
from sluice.cluster.workers.options import WorkersOptions
from sluice.storage import errors


class VersionedFormat(NamedTuple):
    """A format that carries a version: its name, its module, and the module's constants that are written, and read.

    A number among those that are read has no constant.
    """

    name: str
    module: str
    written: tuple[str, ...]
    read: tuple[str | int, ...]

    def values(self, constants: Iterable[str | int]) -> str:
        """Return constants as text, the oldest first."""
        module = import_module(f"sluice.{self.module}")
        found = [getattr(module, one) if isinstance(one, str) else one for one in constants]
        return ", ".join(f"`{one.decode()}`" if isinstance(one, bytes) else str(one) for one in sorted(found))


FORMATS = (
    VersionedFormat("data folder as a whole", "cluster.node.identity", ("FORMAT",), ("FORMAT",)),
    VersionedFormat("metadata file", "storage.stores.metadata_sqlite", ("SCHEMA",), (1, "SCHEMA")),
    VersionedFormat("metadata record in an object store", "storage.stores.metadata_objects", ("MAGIC",), ("MAGIC",)),
    VersionedFormat(
        "record of a partition", "actors.ledger.record", ("FORMAT", "WITH_HISTORY"), ("FORMAT", "WITH_HISTORY")
    ),
    VersionedFormat("run of messages", "storage.format.frame", ("MAGIC", "WITH_SEGMENTS"), ("MAGIC", "WITH_SEGMENTS")),
    VersionedFormat(
        "journal of a bookie", "storage.format.journal", ("HEAD", "FOOT", "MARK"), ("HEAD", "FOOT", "MARK")
    ),
    VersionedFormat("index table of a bookie", "actors.bookie.index_table", ("MAGIC",), ("MAGIC",)),
    VersionedFormat("cursor of a subscription", "storage.format.cursor", ("FORMAT",), ("FORMAT",)),
    VersionedFormat("table of redeliveries", "storage.format.redeliveries", ("FORMAT",), (1, "FORMAT")),
    VersionedFormat("table of changed delays", "storage.delayed.changes", ("FORMAT",), ("FORMAT",)),
    VersionedFormat("bucket of the delayed index", "storage.delayed.bucket", ("VERSION",), ("VERSION",)),
    VersionedFormat("manifest of the delayed index", "storage.delayed.manifest", ("VERSION",), ("VERSION",)),
    VersionedFormat(
        "history of a topic", "storage.history.checked_parquet", ("FORMAT",), ("IN_MILLISECONDS", "FORMAT")
    ),
    VersionedFormat("recording of decisions", "actors.recorder.flight_file", ("VERSION",), ("VERSION",)),
    VersionedFormat("wire between processes", "cluster.wire.frames", ("VERSION",), ("VERSION",)),
)
"""Each format that has a version of its own. docs/versions.md shows the same table."""

COLLECTIONS = (typed_settings.TopicOptions, typed_settings.ProducerSettings, typed_settings.ConsumerSettings)
"""Keywords that public methods take together, as one class."""
ANSWERS = (messages.OffloadStatus, messages.CompactionStatus, messages.EraseStatus)
"""Classes whose fields are the keys of what a method returns."""


def made_pages(root: Path) -> dict[str, str]:
    """Return the text of every made page, as Markdown, by its path below the root of the site."""
    pages = {
        "reference/settings.md": settings_page(),
        "reference/metrics.md": metrics_page(root),
        "reference/errors.md": errors_page(),
        "reference/formats.md": formats_page(),
        "reference/glossary.md": glossary_page(root),
    }
    return pages | dict(python_pages()) | dict(command_pages())


# -- the Python client ------------------------------------------------------------------------------------------------


def python_pages() -> Iterator[tuple[str, str]]:
    """Yield a page for each public name that is no error, and one that lists them."""
    rows = []
    for name in sluice.__all__:
        of = getattr(sluice, name)
        if _is_error(of):
            continue
        yield f"reference/python/{name}.md", f"# {name}\n\n{_auto(name, inspect.isclass(of))}"
        rows.append((f"[`{name}`]({name}.md)", _first_line(inspect.getdoc(of))))
    keywords = "\n".join(_auto(f"{one.__module__}.{one.__name__}", True) for one in (*COLLECTIONS, WorkersOptions))
    answers = "\n".join(f"## {one.__name__}\n\n{inspect.getdoc(one)}\n\n{_keys(one)}" for one in ANSWERS)
    yield (
        "reference/python/keywords.md",
        f"# Keywords of methods\n\nMethods with many keywords name these classes.\n\n{keywords}",
    )
    yield (
        "reference/python/answers.md",
        f"# Keys of answers\n\nMethods that return a dictionary for each partition use these names.\n\n{answers}",
    )
    rows.append(("[answers](answers.md)", "Keys of what `offload_status` and its like return."))
    rows.append(("[keywords](keywords.md)", "Keywords that `create_topic`, `create_producer` and `subscribe` take."))
    names = [row[0].partition("](")[2].removesuffix(".md)") for row in rows]
    head = "# Python\n\nEvery name of `import sluice`; [errors](../errors.md) have a page of their own.\n\n"
    text = head + _table(("name", "meaning"), rows)
    yield "reference/python/index.md", text + _contents(names)


def _auto(name: str, is_class: bool) -> str:
    """Return a directive of Sphinx that documents this class or function from its docstrings."""
    name = name if "." in name else f"sluice.{name}"
    options = "\n:members:\n:undoc-members:\n:inherited-members: object,dict,tuple" if is_class else ""
    kind = "autoclass" if is_class else "autofunction"
    return f"```{{eval-rst}}\n.. {kind}:: {name}" + options.replace("\n", "\n   ") + "\n```\n"


def _keys(of: type[msgspec.Struct]) -> str:
    """Return the table of a class's fields."""
    return _table(
        ("key", "type"),
        [(f"`{one.name}`", str(getattr(one.type, "__name__", one.type))) for one in msgspec.structs.fields(of)],
    )


def _is_error(of: object) -> bool:
    return isinstance(of, type) and issubclass(of, Exception)


def errors_page() -> str:
    """Return the page of errors: the tree with what to do, each class, exit codes of the command."""
    tree = inspect.cleandoc(errors.__doc__ or "")
    kinds = [name for name in sluice.__all__ if _is_error(getattr(sluice, name))]
    directives = "\n".join(
        f"```{{eval-rst}}\n.. autoexception:: sluice.{name}\n   :show-inheritance:\n```\n" for name in kinds
    )
    before, drawn, after = re.split(r"(?m)^((?:    .*\n|\n)+)", tree, maxsplit=1)
    extras: dict[str, list[str]] = {}
    for module, extra in EXTRAS.items():
        extras.setdefault(extra, []).append(f"`{module}`")
    rows = [(f"`{extra}`", ", ".join(names), f"`pip install 'sluice[{extra}]'`") for extra, names in extras.items()]
    return (
        f"# Errors\n\n{before}\n```text\n{inspect.cleandoc(drawn)}\n```\n\n{after}\n\n## Each error\n\n{directives}\n"
        f"## Exit codes\n\n{typer.main.get_command(app).help}\n\n"
        "## Missing extras\n\nAn error names the extra that installs a library which is missing.\n\n"
        f"{_table(('extra', 'libraries', 'install'), rows)}"
    )


# -- commands ---------------------------------------------------------------------------------------------------------


def command_pages() -> Iterator[tuple[str, str]]:
    """Yield a page for each command, or group of commands, of `sluice`, and one that lists them."""
    top = typer.main.get_command(app)
    context = typer.Context(top, info_name="sluice", obj={"TYPER_RICH_MARKUP_MODE": "rich"})
    rows = []
    commands = getattr(top, "commands", {})
    for name, command in commands.items():
        text = get_docs_for_click(obj=command, ctx=context, call_prefix="sluice", name=name)
        yield f"reference/commands/{name}.md", text
        rows.append((f"[`{name}`]({name}.md)", command.get_short_help_str(limit=200)))
    text = f"# Commands\n\n{top.help}\n\n{_table(('command', 'meaning'), rows)}"
    yield "reference/commands/index.md", text + _contents(commands)


# -- settings ---------------------------------------------------------------------------------------------------------


def settings_page() -> str:
    """Return the page of all settings, of clusters, topics, subscriptions and bookies."""
    head = ("setting", "type", "default", "limits", "meaning")
    cluster = [_cluster_row(name, field) for name, field in Configuration.model_fields.items() if name not in SECTIONS]
    kinds = (
        ("Topics", "topic", settings.TopicSettings, settings.LIMITS),
        ("Subscriptions", "subscription", settings.SubscriptionSettings, settings.LIMITS),
        ("Bookies", "bookie", bookie.BookieSettings, bookie.LIMITS),
    )
    text = f"# Settings\n\n{_SETTINGS}\n\n## Clusters\n\n{_table(head, cluster)}"
    for title, section, kind, limits in kinds:
        text += f"\n## {title}\n\nSection `{section}` of the file has their defaults.\n\n"
        text += _table(head, setting_rows(kind, limits))
    return text


_SETTINGS = (
    "A value comes from a flag of the command, an environment variable (`SLUICE_DATA_DIR`, "
    "`SLUICE_TOPIC__ACK_QUORUM`), the file `sluice.toml`, or its default, in this order. The end of a name gives the "
    "unit: `_ms` and `_millis` are milliseconds, `_seconds` seconds, `_bytes` bytes. `10s`, `1h30m` and `64MB` may "
    "stand for the bare number."
)


def setting_rows(kind: type[msgspec.Struct], limits: dict[str, tuple[int, int]]) -> list[Sequence[str]]:
    """Return (name, type, default, limits, meaning) of each field; the meaning is the docstring below the field."""
    meanings = field_meanings(kind)
    rows: list[Sequence[str]] = []
    for field in msgspec.structs.fields(kind):
        bounds = f"{limits[field.name][0]} to {limits[field.name][1]}" if field.name in limits else ""
        chosen = ", ".join(f"`{word}`" for word in settings.CHOICES.get(field.name, ()))
        kind_name = getattr(field.type, "__name__", str(field.type))
        default = f"`{field.default}`" if field.default != "" else "empty"
        rows.append((f"`{field.name}`", kind_name, default, bounds or chosen, meanings.get(field.name, "")))
    return rows


def field_meanings(kind: type) -> dict[str, str]:
    """Return the docstrings of a class's fields, each as one line."""
    found = ModuleAnalyzer.for_module(kind.__module__).find_attr_docs()
    return {name: " ".join(" ".join(lines).split()) for (owner, name), lines in found.items() if owner == kind.__name__}


def _cluster_row(name: str, field: FieldInfo) -> Sequence[str]:
    low, high = (next((getattr(one, end) for one in field.metadata if hasattr(one, end)), None) for end in ("ge", "le"))
    bounds = f"{low} to {high}" if high is not None else f"at least {low}" if low is not None else ""
    kind = re.sub(r"[\w.]+\.(\w+)", r"\1", getattr(field.annotation, "__name__", str(field.annotation)))
    if kind == "Literal":
        kind, bounds = "str", ", ".join(f"`{word}`" for word in field.annotation.__args__)  # type: ignore[union-attr]
    default = "empty" if field.default in ("", None) else f"`{field.default}`"
    return f"`{name}`", kind, default, bounds, field.description or ""


# -- metrics, formats, glossary ---------------------------------------------------------------------------------------


def metrics_page(root: Path) -> str:
    """Return the page of metrics: each series with its meaning, and each rule of alarms."""
    head = ("series", "meaning")
    groups = (
        ("Of every subscription on every partition", metrics.SUBSCRIPTION),
        ("Of every partition", metrics.TOPIC),
        ("Of delayed delivery's buckets, where there are any", (metrics.OPERATIONS, metrics.LATENCIES)),
    )
    text = f"# Metrics and alarms\n\n{_METRICS}\n"
    for title, series in groups:
        text += f"\n## {title}\n\n" + _table(head, [(f"`{one.name}`", f"{one.help}.") for one in series])
    rules = yaml.safe_load((root / "deploy/prometheus-rules.yml").read_text(encoding="utf-8"))
    text += "\n## Rules of alarms\n"
    todo = dict(
        re.findall(r"(?m)^\| `(Sluice\w+)` \| .* \| (.*) \|$", (root / "docs/running-a-cluster.md").read_text())
    )
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        lasting = f", for {rule['for']}" if "for" in rule else ""
        advice = re.sub(r"\]\((?=[\w-]+\.md)", "](../docs/", todo[rule["alert"]])
        text += f"\n### {rule['alert']}\n\n{rule['labels']['severity'].capitalize()}{lasting}. {advice}\n\n"
        text += f"```text\n{rule['expr'].strip()}\n```\n"
    return text


_METRICS = (
    "The port of Pulsar's tools and the admin port serve these series at `/metrics`. Ray's agents put `ray_` before "
    "a name. [Running a cluster](../docs/running-a-cluster.md#metrics-and-alarms) says how to collect them."
)


def formats_page() -> str:
    """Return the page of formats: what each is, its version, its theory."""
    text = "# Formats and their versions\n\n[Promises about versions](../docs/versions.md) says how long each is read. "
    text += "Each section is the theory that the module itself begins with.\n"
    for one in FORMATS:
        theory = inspect.cleandoc(import_module(f"sluice.{one.module}").__doc__ or "")
        text += f"\n## {one.name.capitalize()}\n\nWritten: {one.values(one.written)}. Read: {one.values(one.read)}. "
        text += f"Module: `{one.module.replace('.', '/')}.py`.\n\n```text\n{theory}\n```\n"
    return text


def glossary_page(root: Path) -> str:
    """Return the glossary, which is a section of ARCHITECTURE.md."""
    found = re.search(r"(?ms)^## Glossary\n(.*?)^## ", (root / "ARCHITECTURE.md").read_text(encoding="utf-8"))
    if not found:
        raise ValueError("ARCHITECTURE.md has no section Glossary")
    return "# Glossary\n" + re.sub(r"\]\((?!https?:)", "](../", found[1])


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def _contents(names: Iterable[str]) -> str:
    listed = "\n".join(names)
    return f"\n```{{toctree}}\n:hidden:\n\n{listed}\n```\n"


def _first_line(text: str | None) -> str:
    return (text or "").partition("\n")[0]
