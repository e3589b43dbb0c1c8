"""The reference site: no broken link, and a place for every public name, setting, command and series."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import msgspec
import pytest
import typer.main
import yaml
from sphinx.util.inventory import InventoryFile

import sluice
from sluice.actors.bookie.settings import BookieSettings
from sluice.actors.messages.settings import SubscriptionSettings, TopicSettings
from sluice.cli.app import app
from sluice.cluster.host.metrics import LATENCIES, OPERATIONS, SUBSCRIPTION, TOPIC
from sluice.cluster.settings.config import SECTIONS, Configuration
from sluice.storage import errors
from tools.site.pages import field_meanings
from tools.site.staging import ROOT, build, stage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The site, and Sphinx's warnings: one page has two broken links more than the project's."""

    def with_broken_links(staged: Path, root: Path = ROOT) -> None:
        stage(staged, root)
        with (staged / "docs/order.md").open("a") as page:
            page.write("\n[away](away.md) [nowhere](history.md#nowhere-at-all)\n")

    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tools.site.staging.stage", with_broken_links)
        return folder, build(folder)


@pytest.fixture(scope="module")
def site(built: tuple[Path, list[str]]) -> Path:
    return built[0]


def test_only_the_planted_broken_links_are_warnings(built: tuple[Path, list[str]]) -> None:
    _, warnings = built
    assert len(warnings) == 2, warnings
    assert all("docs/order.md" in line for line in warnings)
    assert [name for name in ("away.md", "nowhere-at-all") if name not in "".join(warnings)] == []


def test_every_public_name_has_a_place(site: Path) -> None:
    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="")
    known = {name for kind in inventory.data.values() for name in kind}
    wanted = {f"sluice.{name}" for name in sluice.__all__}
    for name in sluice.__all__:
        of = getattr(sluice, name)
        if inspect.isclass(of) and not issubclass(of, Exception):
            inner = getattr(of, "inner", ())
            wanted |= {f"sluice.{name}.{one}" for one in dir(of) if not one.startswith("_") and one not in inner}
    assert len(wanted) > 200
    assert sorted(wanted - known) == []


def test_every_setting_command_and_series_is_shown(site: Path) -> None:
    settings = (site / "reference/settings.html").read_text()
    kinds = (TopicSettings, SubscriptionSettings, BookieSettings)
    names = {field.name for kind in kinds for field in msgspec.structs.fields(kind)}
    names |= set(Configuration.model_fields) - set(SECTIONS)
    assert sorted(name for name in names if f">{name}</span>" not in settings) == []
    unexplained = [
        (kind, field) for kind in kinds for field in kind.__struct_fields__ if field not in field_meanings(kind)
    ]
    assert unexplained == []
    series = (site / "reference/metrics.html").read_text()
    assert [one.name for one in (*SUBSCRIPTION, *TOPIC, OPERATIONS, LATENCIES) if one.name not in series] == []
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert [name for name in commands if not (site / f"reference/commands/{name}.html").exists()] == []


def test_every_error_and_alarm_says_what_to_do(site: Path) -> None:
    """The tree has a line for each error but the base and one that handlers raise; the page one for each rule."""
    tree = inspect.cleandoc(errors.__doc__ or "").partition("\nThe detail")[0]
    kinds = {name: getattr(sluice, name) for name in sluice.__all__ if inspect.isclass(getattr(sluice, name))}
    names = [name for name, kind in kinds.items() if issubclass(kind, Exception)]
    names = [name for name in names if name not in ("SluiceError", "FailedRows")]
    assert [name for name in names if not re.search(rf"\b{name}\b[^\n]{{12,}}", tree)] == []
    rules = yaml.safe_load((ROOT / "deploy/prometheus-rules.yml").read_text())
    alarms = [rule["alert"] for group in rules["groups"] for rule in group["rules"]]
    page = (site / "reference/metrics.html").read_text()
    assert len(alarms) > 10
    advice = r"<h3>{}<.*?</h3>\s*<p>(?:Critical|Warning)[^.]*\. +[^ ]"
    assert [name for name in alarms if not re.search(advice.format(name), page)] == []


def test_constructors_of_the_project_itself_are_not_shown(site: Path) -> None:
    assert "LoopThread" not in (site / "reference/python/Client.html").read_text()
    assert "maxsize" in (site / "reference/python/KeyedQueue.html").read_text()
