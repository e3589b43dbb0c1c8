"""Pulsar's own command line, unchanged. It runs where Java is and PULSAR_HOME names Pulsar's distribution."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from sluice.cluster.gateway.ports import WEB, port_of, service_url
from sluice.cluster.gateway.tokens import make_key, make_token
from sluice.cluster.launch.embedded import running
from sluice.cluster.settings.options import ClusterOptions
from tests.cluster.admin.asking import Tool

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SHELL = Path(os.environ.get("PULSAR_HOME", "nowhere")) / "bin" / "pulsar-shell"
OFFERED = """
client produce -m one,two,three -k customer-7 -p a=b orders
client consume -s billing -p Earliest -n 3 -t Key_Shared orders
client read -m earliest -n 1 orders
admin topics create-subscription orders -s late -m earliest
admin topics peek-messages orders -s late -n 2
admin topics examine-messages orders -i latest -m 1
admin topics get-message-by-id orders -l 1 -e 0
admin topics skip orders -s late -n 1
admin topics reset-cursor orders -s late -t 1h
admin topics expire-messages orders -s late -t 3600
admin topics set-retention orders -s 10M -t 1h
admin topics get-retention orders
admin topics set-message-ttl orders -t 3600
admin topics get-message-ttl orders
admin topics get-schema-validation-enforce orders
admin topics get-shadow-topics orders
admin topics get-subscription-properties orders -s late
admin topics update-subscription-properties orders -s late -p a=b
admin topics create-subscription orders -s named -m earliest -p a=b
admin topics compact orders
admin topics compaction-status orders
admin topics permissions orders
admin topics stats orders
admin topics stats-internal orders
admin topics create-missed-partitions orders
admin namespaces set-retention public/default --size -1 --time -1
admin namespaces get-retention public/default
admin namespaces set-message-ttl public/default -ttl 3600
admin namespaces get-max-topics-per-namespace public/default
admin namespaces get-dispatcher-pause-on-ack-state-persistent public/default
admin namespaces clear-backlog public/default --force
admin namespaces unload public/default -b 0x00000000_0xffffffff
admin namespaces set-offload-threshold public/default -s 10G
admin namespaces get-offload-threshold public/default
admin namespaces set-offload-deletion-lag public/default -l 1h
admin namespaces get-offload-deletion-lag public/default
admin namespaces clear-offload-deletion-lag public/default
admin namespaces set-compaction-threshold public/default -t 100M
admin namespaces get-compaction-threshold public/default
admin namespaces remove-compaction-threshold public/default
admin namespaces policies public/default
"""
REFUSED = """
admin topics create-subscription orders -s other -m earliest -r
admin topics create non-persistent://public/default/x
admin topics grant-permission orders --role r --actions produce
admin namespaces grant-permission public/default --role r --actions produce
admin namespaces set-persistence public/default -e 1 -w 1 -a 1 -r 0
admin brokers shutdown -m 10
admin broker-stats topics
admin proxy-stats connections
admin functions list --tenant public --namespace default
admin transactions coordinators-list
"""
WORDS = re.compile(r"Sluice does not offer|is not enabled|is there while clients use it|Not Found: GET|compaction")


RIGHTS = """
admin tenants create sales -r chief -c sluice
admin tenants update sales -r chief,other -c sluice
admin tenants get sales
admin namespaces create sales/eu
admin namespaces grant-permission sales/eu --role till --actions produce,consume
admin namespaces permissions sales/eu
admin namespaces grant-subscription-permission sales/eu --subscription billing --roles clerk,till
admin namespaces subscription-permission sales/eu
admin namespaces policies sales/eu
admin topics grant-permission persistent://sales/eu/orders --role guest --actions produce
admin topics permissions persistent://sales/eu/orders
admin topics revoke-permission persistent://sales/eu/orders --role guest
client produce -m one persistent://sales/eu/orders
admin namespaces set-publish-rate sales/eu -m 1000 -b 1000000
admin namespaces get-publish-rate sales/eu
admin namespaces set-dispatch-rate sales/eu -md 1000 -bd 1000000 -dt 2
admin namespaces get-dispatch-rate sales/eu
admin namespaces set-max-producers-per-topic sales/eu -p 7
admin namespaces get-max-producers-per-topic sales/eu
admin namespaces set-max-consumers-per-topic sales/eu -c 8
admin namespaces set-max-consumers-per-subscription sales/eu -c 9
admin topics set-publish-rate persistent://sales/eu/orders -m 11 -b 12
admin topics get-publish-rate persistent://sales/eu/orders
admin topics set-max-producers persistent://sales/eu/orders -p 3
admin topics get-max-producers persistent://sales/eu/orders
admin topics remove-publish-rate persistent://sales/eu/orders
admin namespaces remove-publish-rate sales/eu
admin namespaces revoke-subscription-permission sales/eu --subscription billing --role clerk
admin namespaces revoke-permission sales/eu --role till
"""
WITHOUT_RIGHTS = """
client produce -m one persistent://sales/eu/orders
admin namespaces permissions sales/eu
admin topics stats persistent://sales/eu/orders
admin tenants list
"""


def said(tool: Tool, folder: Path, commands: str, more: str = "") -> dict[str, str]:
    """Return the tool's output by command. more: further lines of its settings."""
    if shutil.which("java") is None or not SHELL.exists():
        pytest.skip("no Java, or PULSAR_HOME does not name Pulsar's distribution")
    script, settings = folder / "commands", folder / "client.conf"
    script.write_text(commands.lstrip())
    settings.write_text(f"webServiceUrl=http://127.0.0.1:{tool.port}/\nbrokerServiceUrl={tool.service_url}/\n{more}")
    environment = {**os.environ, "PULSAR_CLIENT_CONF": str(settings), "HOME": str(folder)}
    done = subprocess.run(  # errors in their places: what is refused is told there, and nowhere else for a question
        [str(SHELL), "-f", str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=500,
        check=False,
        env=environment,
    )
    text = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)
    parts = re.split(r"^\[\d+/\d+\] Executing (.*)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_offered_commands_work_and_print_no_stack(tool: Tool, tmp_path: Path) -> None:
    told = said(tool, tmp_path, OFFERED)
    assert list(told) == OFFERED.strip().splitlines()
    ugly = {
        command: text
        for command, text in told.items()
        if re.search(r"^\s+at |^Reason:|HTTP \d\d\d|Usage:", text, re.MULTILINE)
    }
    assert not ugly
    assert told["client consume -s billing -p Earliest -n 3 -t Key_Shared orders"].count("got message") == 3
    assert '"retentionTimeInMinutes" : 60' in told["admin topics get-retention orders"]


def test_missing_commands_are_refused_in_one_line(tool: Tool, tmp_path: Path) -> None:
    told = said(tool, tmp_path, "client produce -m one orders\n" + REFUSED.lstrip())
    unclear = {command: text for command, text in told.items() if command in REFUSED and not WORDS.search(text)}
    assert not unclear
    assert not {command: text for command, text in told.items() if re.search(r"^\s+at ", text, re.MULTILINE)}


def test_permissions_and_limits_are_set_with_them(tmp_path: Path) -> None:
    key = tmp_path / "token.key"
    make_key(key)
    options = ClusterOptions(
        tmp_path / "data",
        pulsar_port=0,
        pulsar_web_port=0,
        pulsar_token_key_file=str(key),
        authorization_enabled=True,
        super_user_roles="root",
    )

    def settings(role: str) -> str:
        plugin = "org.apache.pulsar.client.impl.auth.AuthenticationToken"
        return f"authPlugin={plugin}\nauthParams=token:{make_token(key, {'sub': role})}\n"

    with running(options):
        tool = Tool(port_of(options.data_dir, WEB), service_url(options.data_dir, 0))
        told = said(tool, tmp_path, RIGHTS, settings("root"))
        assert list(told) == RIGHTS.strip().splitlines()
        ugly = {
            command: text
            for command, text in told.items()
            if re.search(r"^\s+at |^Reason:|HTTP \d\d\d|Usage:|Unauthorized", text, re.MULTILINE)
        }
        assert not ugly
        # the tool prints a set of Java, in whichever order that has
        assert re.search(r"till\W+(produce\W+consume|consume\W+produce)", told["admin namespaces permissions sales/eu"])
        assert "guest" in told["admin topics permissions persistent://sales/eu/orders"]
        assert "clerk" in told["admin namespaces subscription-permission sales/eu"]
        assert re.search(r"chief\W+other", told["admin tenants get sales"])
        assert '"publishThrottlingRateInMsg" : 1000' in told["admin namespaces get-publish-rate sales/eu"]
        assert '"ratePeriodInSecond" : 2' in told["admin namespaces get-dispatch-rate sales/eu"]
        assert "7" in told["admin namespaces get-max-producers-per-topic sales/eu"]
        assert '"publishThrottlingRateInMsg" : 11' in told["admin topics get-publish-rate persistent://sales/eu/orders"]
        told = said(tool, tmp_path, WITHOUT_RIGHTS, settings("till"))
        wrong = {command: text for command, text in told.items() if "not authorized" not in text}
        assert not wrong
