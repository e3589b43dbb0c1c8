"""The reference site: the documents, and pages that are made from the code.

Sphinx reads a staged copy of the project: its Markdown files at their own places, and `reference/`, whose pages come
from the tables that the code itself reads (`tools.site.pages`).
No made page lies in the repository, so none can be stale.
"""
