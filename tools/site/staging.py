"""Staging and building: the documents with the files that they link to, the made pages, and one run of Sphinx."""

from __future__ import annotations

import io
import re
import shutil
import tempfile
from pathlib import Path, PurePosixPath

from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace, patch_docutils

from tools.site.pages import made_pages

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = ("*.md", "docs/*.md", "docs/decisions/*.md", "deploy/README.md", "deploy/s3/README.md")
"""Patterns of the documents that are pages."""

_LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")


def build(folder: Path, root: Path = ROOT) -> list[str]:
    """Build the site of a checkout in this folder, which is emptied; return the warnings, a line each."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    heard = io.StringIO()
    with tempfile.TemporaryDirectory() as kept:
        staged = Path(kept) / "source"
        stage(staged, root)
        conf = Path(__file__).parent
        with patch_docutils(conf), docutils_namespace():
            Sphinx(staged, conf, folder, Path(kept) / "trees", "html", status=None, warning=heard).build()
    shutil.rmtree(folder / "_sources", ignore_errors=True)
    (folder / "index.html").write_text('<meta http-equiv="refresh" content="0; url=README.html">\n', encoding="utf-8")
    lines = re.sub(r"\x1b\[[0-9;]*m", "", heard.getvalue()).splitlines()
    return [line.replace(f"{staged}/", "") for line in lines if line.strip()]


def stage(staged: Path, root: Path = ROOT) -> None:
    """Write everything that Sphinx reads: the documents, whatever they link to, the made pages and the front page."""
    for document in sorted({path for pattern in DOCUMENTS for path in root.glob(pattern)}):
        name = document.relative_to(root).as_posix()
        text = document.read_text(encoding="utf-8")
        for target in _LINK.findall(text):
            linked = (document.parent / target).resolve()
            if linked.is_file() and linked.suffix != ".md":
                _write(staged, linked.relative_to(root).as_posix(), linked.read_bytes())
        _write(staged, name, _with_pages_for_folders(text, document).encode())
    for name, text in made_pages(root).items():
        _write(staged, name, text.encode())
    if not (staged / "docs/decisions/index.md").exists():
        _write(staged, "docs/decisions/index.md", _DECISIONS.encode())
    front = (staged / "README.md").read_text(encoding="utf-8")
    (staged / "README.md").write_text(front + _CONTENTS, encoding="utf-8")


def _with_pages_for_folders(text: str, document: Path) -> str:
    """The text, with each link to a folder as a link to its first page."""

    def first_page(found: re.Match[str]) -> str:
        target = document.parent / found[1]
        if not target.is_dir():
            return found[0]
        page = "README.md" if (target / "README.md").exists() else "index.md"
        return f"]({PurePosixPath(found[1]) / page}"

    return _LINK.sub(first_page, text)


def _write(staged: Path, name: str, data: bytes) -> None:
    path = staged / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


_DECISIONS = """# Decisions

```{toctree}
:glob:

0*
```
"""

_CONTENTS = """
```{toctree}
:hidden:
:caption: Use it

docs/README
docs/in-your-project
docs/python-client
docs/workers
docs/order
docs/delayed-messages
docs/history
docs/pulsar-clients
docs/two-teams
```

```{toctree}
:hidden:
:caption: Run it

docs/running-a-cluster
deploy/README
deploy/s3/README
docs/many-topics
docs/measured
docs/load-test
docs/incidents
SECURITY
```

```{toctree}
:hidden:
:caption: Look it up

reference/python/index
reference/commands/index
reference/settings
reference/metrics
reference/errors
reference/formats
docs/versions
reference/glossary
docs/semantics
CHANGELOG
```

```{toctree}
:hidden:
:caption: Change it

ARCHITECTURE
CONTRIBUTING
docs/changing
docs/scenarios
docs/simulation
docs/decisions/index
```
"""
"""The order of the pages at the side. A document that is missing here is a warning of Sphinx."""
