"""What goes wrong is told in plain words: no token, a missing right, a server that is gone."""

import socket
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import httpx
from console_page import ConsolePage
from console_seed import NAMESPACE, act, push
from token_calls import ROOT, bearer

from wings_server.testing import running_server, server_process

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

FIELDS = {"fields": [{"name": "n", "type": "int64"}]}


def test_a_token_is_asked_for_and_kept_in_the_tab_alone(browser: "Chrome") -> None:
    with running_server(root_token=ROOT) as server:
        with httpx.Client(base_url=server.http, headers=bearer(ROOT)) as http:
            act(http, "create-topic", topic="secret", schema=FIELDS)
            grants = ["read=other*"]
            token = act(http, "token-create", name="reports", grants=grants)["token"]
        page = ConsolePage(browser, server.http)
        page.reset()
        page.open("topics")
        page.expect("A token, please", within="dialog")
        page.picture("token")
        page.type("dialog input", "wings_wrong")
        page.click("dialog button.primary")
        page.expect("The last one was refused", within="dialog")
        page.type("dialog input", ROOT)
        page.click("dialog button.primary")
        page.expect("secret", within="table")
        assert ROOT not in browser.current_url
        assert page.script("return sessionStorage.getItem('wings-token')") == ROOT
        assert ROOT not in page.script("return JSON.stringify(localStorage) + document.cookie")
        _the_right_that_is_missing_is_named(page, token)


def test_what_was_typed_stays_where_a_token_ends_meanwhile(browser: "Chrome") -> None:
    with (
        running_server(root_token=ROOT) as server,
        httpx.Client(base_url=server.http, headers=bearer(ROOT)) as http,
    ):
        act(http, "create-topic", topic="typed", schema=FIELDS)
        tokens = [
            act(http, "token-create", name=name, grants=["read=typed", "write=typed"])["token"]
            for name in ("first", "next")
        ]
        page = ConsolePage(browser, server.http)
        page.reset()
        page.script("sessionStorage.setItem('wings-token', arguments[0])", tokens[0])
        page.open(f"topic/{quote(f'{NAMESPACE}/topics/typed', safe='')}/produce")
        page.type("input[aria-label='n']", "4711")
        act(http, "token-revoke", name="first")
        page.expect("The last one was refused", within="dialog")
        page.type("dialog input", tokens[1])
        page.click("dialog button.primary")
        page.click("form button.primary")
        page.expect("1 row is committed")
        page.go(f"topic/{quote(f'{NAMESPACE}/topics/typed', safe='')}")
        page.expect("4711", within="tbody")


def _the_right_that_is_missing_is_named(page: ConsolePage, token: str) -> None:
    page.script("sessionStorage.setItem('wings-token', arguments[0])", token)
    page.open("nodes")
    page.expect("The right admin is missing", "reports has no right to admin on the server")
    page.expect("--grant 'admin=*'")
    page.open(f"topic/{quote(NAMESPACE + '/topics/secret', safe='')}")
    page.expect("The right read or write or share is missing", "--grant 'read=tenants/")
    page.picture("right")


def test_a_server_that_is_gone_is_told_of_until_it_is_back(
    browser: "Chrome", tmp_path: Path
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    data, flags = tmp_path / "data", ["--http", address]
    page = ConsolePage(browser, f"http://{address}")
    with server_process(data, flags=flags) as server:
        with httpx.Client(base_url=f"http://{address}", timeout=60) as http:
            act(http, "create-topic", topic="kept", schema=FIELDS)
            push(http, "kept", [{"n": 4711}])
        page.reset()
        page.open(f"topic/{quote(NAMESPACE + '/topics/kept', safe='')}")
        page.expect("4711", within="tbody")
        server.kill()
    page.expect("does not answer. Trying again in", within="#banner")
    page.expect("not connected", within="#foot")
    assert "4711" in page.text("tbody"), "what was there stays in sight"
    with server_process(data, flags=flags), httpx.Client(base_url=f"http://{address}") as http:
        page.expect_that("the banner to go", lambda: page.text("#banner") == "")
        push(http, "kept", [{"n": 815}])
        page.expect("815", within="tbody")
    page.faults()


def test_nothing_is_said_to_be_finished_before_the_server_has_answered(
    page: ConsolePage,
) -> None:
    page.open("overview")
    page.expect("Overview")
    page.script(
        "const real = window.fetch; window.fetch = (path, options) => "
        "String(path).endsWith('share-members') ? new Promise((answer) => "
        "{ window.answerNow = () => answer(real(path, options)); }) : real(path, options)"
    )
    topic = quote(f"{NAMESPACE}/topics/payments", safe="")
    page.script("location.hash = arguments[0]", f"#/group/{topic}/billing")
    page.expect_that("the question", lambda: page.script("return window.answerNow !== undefined"))
    page.expect("Who holds what")
    page.script("return new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
    assert "Every message is finished" not in page.text("main")
    assert "No member holds a message" not in page.text("main")
    page.script("window.answerNow()")
    page.expect("messages not finished")


def test_after_an_answer_that_took_long_a_page_still_asks_again_soon(page: ConsolePage) -> None:
    page.open("overview")
    page.expect("Rows in")
    page.script(
        "let ahead = 0; const now = performance.now.bind(performance);"
        "performance.now = () => now() + (ahead += 600_000);"
        "const wait = window.setTimeout; window.pauses = [0];"
        "window.setTimeout = (done, pause) =>"
        " (window.pauses.push(pause ?? 0), wait(done, pause));"
    )
    page.expect_that(
        "a long pause", lambda: page.script("return Math.max(...window.pauses)") >= 10_000
    )
    assert page.script("return Math.max(...window.pauses)") == 15_000
