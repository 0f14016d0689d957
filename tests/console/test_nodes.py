"""The nodes of a log: what each uses, and one that has stopped answering."""

import socket
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from console_page import ConsolePage
from held_address import held_address

from wings_server.testing import RunningServer, metadata_process, server_process

if TYPE_CHECKING:
    from selenium.webdriver import Chrome


def test_a_node_shows_its_version_and_what_it_uses(
    page: ConsolePage, server: RunningServer
) -> None:
    for _ in range(2):
        server.server.log.history.look()
    page.open("nodes")
    page.expect(version("wings-flight"), "answers", "1 process", "iB free")
    page.expect_that("its use of processors", lambda: page.script(CPU) == 1)


CPU = """
return [...document.querySelectorAll('td')]
    .filter((each) => /^\\d+\\.\\d\\d of \\d+$/.test(each.innerText)).length
"""


def test_a_node_that_has_stopped_answering_needs_a_person(
    browser: "Chrome", tmp_path: Path
) -> None:
    environment = {"WINGS_NODE_LEASE_SECONDS": "1.5"}
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        http = f"127.0.0.1:{taken.getsockname()[1]}"
    with held_address() as listen, metadata_process(tmp_path / "metadata", listen=listen) as known:
        flags = ["--metadata", known.address]
        lives = server_process(
            tmp_path / "pages", flags=[*flags, "--http", http], environment=environment
        )
        with lives:
            with server_process(tmp_path / "pages", flags=flags, environment=environment) as dies:
                dies.kill()
            page = ConsolePage(browser, f"http://{http}")
            page.reset()
            page.open("overview")
            page.expect("1 thing needs you", f"the node {dies.flight} has stopped answering")
            page.click(".notice a")
            page.expect("2 processes", "stopped answering", dies.flight)
            assert page.faults() == []
