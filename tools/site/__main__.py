"""Builds the reference site or serves it: `python -m tools.site build`, `python -m tools.site serve`."""

from __future__ import annotations

import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from sluice.cluster.base.arguments import ArgumentParser
from tools.site.staging import ROOT, build


def main(words: list[str]) -> int:
    """Build the site, and serve it if that is asked for; return 1 after a warning of Sphinx, such as a broken link."""
    parser = ArgumentParser(prog="./sluice site", description=__doc__)
    parser.add_argument("action", choices=("build", "serve"), nargs="?", default="build")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "site", help="where the pages go")
    parser.add_argument("--port", type=int, default=8000, help="where they are served on 127.0.0.1; 0 chooses a port")
    asked = parser.parse_args(words)
    warnings = build(asked.folder)
    print(f"{len([*asked.folder.rglob('*.html')])} pages in {asked.folder}, {len(warnings)} warnings")
    for line in warnings:
        print(line, file=sys.stderr)
    if asked.action == "serve":
        handler = partial(SimpleHTTPRequestHandler, directory=str(asked.folder))
        with ThreadingHTTPServer(("127.0.0.1", asked.port), handler) as server:
            print(f"http://127.0.0.1:{server.server_port}/ (end with Ctrl-C)", flush=True)
            server.serve_forever()
    return int(bool(warnings))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
