"""The configuration of Sphinx, which executes this file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

import sluice
from sluice.cluster.base.version import described

project = "Sluice"
version = release = described().removeprefix("sluice ")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinxcontrib.mermaid"]
root_doc = "README"
exclude_patterns: list[str] = []
html_theme = "furo"
html_title = f"Sluice {release.split()[0]}"
html_static_path = [str(Path(__file__).parent / "static")]
html_css_files = ["site.css"]
html_show_copyright = False
html_copy_source = False
html_show_sphinx = False
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
python_maximum_signature_line_length = 100
add_module_names = False
default_role = "code"
suppress_warnings = ["misc.highlighting_failure"]  # a conversation as text is no Python

toc_object_entries_show_parents = "hide"

MADE_BY_PROGRAMS = {"KeyedQueue", "MessageId", "Result", "SluiceSink", "Workers"}
"""The classes whose objects a program makes itself. Others come from a method, and their constructors are not shown."""
_SPAN = re.compile(r"(``?[^`]+``?)")


def _as_text(_app: Sphinx, _kind: str, _name: str, _of: object, _options: object, lines: list[str]) -> None:
    """Turn a docstring, which is prose with code in backquotes, into reStructuredText of the same look."""
    told: list[str] = []
    for line in "\n".join(lines).split("\n"):
        if line.startswith("    "):
            told.append(line)
            continue
        parts = _SPAN.split(line)
        spans = (f"``{part.strip('`')}``" if place % 2 else _linked(_plain(part)) for place, part in enumerate(parts))
        told.append("".join(spans))
    lines[:] = told


def _linked(text: str) -> str:
    """Return a line in which names of settings and of answers are links."""
    text = re.sub(r"actors\.messages\.(?:Topic|Subscription)Settings", ":doc:`their page </reference/settings>`", text)
    text = re.sub(r"actors\.messages\.([A-Z]\w+)", r":doc:`\1 </reference/python/answers>`", text)
    return re.sub(r"(cluster\.workers\.options\.[A-Z]\w+)", r":class:`~sluice.\1`", text)


def _plain(text: str) -> str:
    bullet = "* " if text.startswith("* ") else ""
    return bullet + re.sub(r"([\\*|])|(?<=\w)_(?=\W|$)", r"\\\g<0>", text.removeprefix(bullet))


def _skip(_app: Sphinx, kind: str, name: str, _of: object, skip: bool, options: Any) -> bool | None:
    """Leave out the names that `dir` leaves out as well: those that other parts of the project alone use."""
    inner = {"elsewhere", "inner"}
    for public in sluice.__all__:
        inner |= set(getattr(getattr(sluice, public), "inner", ()))
    return True if kind == "class" and name in inner else None


def _signature(_app: Sphinx, kind: str, name: str, *_: object) -> tuple[str, None] | None:
    """Leave out how the project itself makes objects that a program gets from a method."""
    module, _dot, public = name.rpartition(".")
    inner = kind == "class" and module == "sluice" and public not in MADE_BY_PROGRAMS
    return ("", None) if inner else None


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", _as_text)
    app.connect("autodoc-skip-member", _skip)
    app.connect("autodoc-process-signature", _signature)
