"""What is done with the messages of a topic: push one, find one, page back, keep them shorter."""

from typing import TYPE_CHECKING
from urllib.parse import quote

import httpx
import pytest
from console_page import ConsolePage
from console_seed import BIG, NAMESPACE, ORDERS, act, push
from token_calls import ROOT, bearer

from wings_server.testing import RunningServer, running_server

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

TOPIC = quote(ORDERS, safe="")

ROWS = "return [...document.querySelectorAll('tbody tr:not(.space)')].map((each) => each.innerText)"

PLACEHOLDER = "input[placeholder^='1200']"


def rows(page: ConsolePage) -> list[str]:
    return page.script(ROWS)


@pytest.fixture
def numbers(server: RunningServer) -> str:
    """The full name of a topic without a key, of 300 messages."""
    name = f"{NAMESPACE}/topics/numbers"
    fields = [{"name": "n", "type": "int64", "nullable": False}, {"name": "text", "type": "string"}]
    with httpx.Client(base_url=server.http) as http:
        act(http, "create-topic", topic=name, schema={"fields": fields}, if_not_exists=True)
        (state,) = act(http, "partition-states", topic=name)
        if state["next_offset"] == 0:
            push(http, "numbers", [{"n": n, "text": '{"a": [1, {"b": 2}]}'} for n in range(300)])
    return quote(name, safe="")


def test_a_row_is_pushed_by_a_form_of_the_schema(page: ConsolePage) -> None:
    page.open(f"topic/{TOPIC}/produce")
    page.expect("city", "partition key", "timestamp[us, tz=UTC]")
    page.type("input[aria-label='city']", "Bergen")
    page.type("input[aria-label='id']", str(BIG))
    page.type("input[aria-label='amount']", "much")
    page.click("form button.primary")
    page.expect("amount: much is no double")
    page.type("input[aria-label='amount']", "12.5")
    page.type("input[aria-label='placed']", "2026-11-29T14:00:00Z")
    page.click("form button.primary")
    page.expect("1 row is committed", "offset 0 of partition Bergen")
    page.click(".notice a")
    page.expect("Message 0", str(BIG), "12.5", "2026-11-29T14:00:00")


def test_rows_are_pushed_as_json(page: ConsolePage, numbers: str) -> None:
    page.open(f"topic/{numbers}/produce")
    page.type("input[aria-label='n']", "7")
    page.click("button[aria-pressed]")
    value = "return document.querySelector('textarea').value"
    page.expect_that("the row as JSON", lambda: '"n": 7' in page.script(value))
    page.type("textarea", "[{")
    page.click("form button.primary")
    page.expect("This is no JSON")
    page.type("textarea", f'[{{"n": {BIG}}}, {{"n": 1, "text": "two"}}]')
    page.click("form button.primary")
    page.expect("2 rows are committed")
    page.click(".notice a")
    page.expect(str(BIG))


def test_an_offset_and_a_time_are_gone_to(
    page: ConsolePage, server: RunningServer, numbers: str
) -> None:
    page.open(f"topic/{numbers}")
    page.expect_that("rows", lambda: len(rows(page)) > 10)
    page.type(PLACEHOLDER, "150")
    page.click("form button")
    page.expect_that(
        "that offset first", lambda: rows(page)[:1] and rows(page)[0].startswith("150\t")
    )
    assert "at=150" in page.browser.current_url
    page.browser.refresh()
    page.expect_that("it again", lambda: rows(page)[:1] and rows(page)[0].startswith("150\t"))
    page.script(
        "[...document.querySelectorAll('button')].find(b => b.innerText == 'Newer').click()"
    )
    page.expect_that("those after it", lambda: rows(page)[0].startswith("250\t"))
    page.type(PLACEHOLDER, "2020-01-01 12:00")
    page.click("form button")
    page.expect_that("the first message", lambda: rows(page) and rows(page)[0].startswith("0\t"))
    page.type(PLACEHOLDER, "soon")
    page.click("form button")
    page.expect("soon is neither an offset nor a time")
    page.click("button[aria-pressed]")
    page.expect_that(
        "live messages", lambda: rows(page)[:1] and int(rows(page)[0].split("\t")[0]) >= 299
    )
    page.go(f"topic/{TOPIC}")
    page.expect_that("rows", lambda: len(rows(page)) > 10)
    page.type(PLACEHOLDER, "3")
    page.click("form button")
    page.expect("An offset is of one partition: name it.")
    page.type("input[list]", '"Oslo"')
    page.click("form button")
    page.expect_that("it", lambda: rows(page)[:1] and rows(page)[0].startswith('3\t"Oslo"'))


def test_older_messages_come_by_pages(page: ConsolePage, numbers: str) -> None:
    page.open(f"topic/{numbers}")
    page.expect_that("rows", lambda: len(rows(page)) > 10)
    shown = "return document.querySelector('[role=status].number').innerText"
    older = "[...document.querySelectorAll('button')].find(b => b.innerText == 'Older').click()"

    def is_at_the_end() -> bool:
        page.script(older)
        return "these are the oldest" in page.script(shown)

    page.script(older)
    page.expect_that("a page more", lambda: page.script(shown).startswith("200 shown"))
    page.expect_that("the end", is_at_the_end)
    page.script("const e = document.querySelector('.scroll.tall'); e.scrollTop = e.scrollHeight")
    page.expect_that("the first message", lambda: rows(page)[-1].startswith("0\t"))
    assert len(set(rows(page))) == len(rows(page))


def test_json_in_a_text_has_a_line_for_each_key(page: ConsolePage, numbers: str) -> None:
    page.open(f"message/{numbers}/null/4")
    page.expect('{\n  "a": [\n    1,\n    {\n      "b": 2\n    }\n  ]\n}')


def test_retention_is_changed(page: ConsolePage, server: RunningServer, numbers: str) -> None:
    page.open(f"topic/{numbers}/settings")
    page.expect("Change retention")
    page.type("input[placeholder='for ever']", "2.5")
    page.click("form button.primary")
    page.expect("keeps: 60 h", within="dialog")
    page.click("dialog button.primary")
    page.expect("Retention is changed", "Kept: 60 h")
    with httpx.Client(base_url=server.http) as http:
        found = act(http, "describe-topic", topic="numbers")
    assert found["config"]["retention_ms"] == 60 * 3_600_000
    page.type("input[placeholder='for ever']", "many")
    page.click("form button.primary")
    page.expect("Give numbers")


def test_a_token_that_may_only_read_sees_no_forms_that_write(browser: "Chrome") -> None:
    with running_server(root_token=ROOT) as server:
        with httpx.Client(base_url=server.http, headers=bearer(ROOT)) as http:
            fields = {"fields": [{"name": "n", "type": "int64"}]}
            act(http, "create-topic", topic="mine", schema=fields)
            push(http, "mine", [{"n": 4711}])
            act(http, "share-create", group="g", topic="mine", config={"dlq_topic": "dead"})
            grants = ["read=*", "share=*"]
            secret = act(http, "token-create", name="reads", grants=grants)["token"]
        page = ConsolePage(browser, server.http)
        page.reset()
        page.script("sessionStorage.setItem('wings-token', arguments[0])", secret)
        mine = quote(f"{NAMESPACE}/topics/mine", safe="")
        page.open(f"topic/{mine}")
        page.expect("4711")
        assert "Produce" not in page.text(".tabs")
        page.go(f"topic/{mine}/produce")
        page.expect("Needs the right write")
        page.go(f"topic/{mine}/settings")
        page.expect("Created")
        assert "Change retention" not in page.text()
        page.go(f"group/{mine}/g")
        page.expect("Dead letters", "Settings")
        assert not {"Seek", "Redrive…", "Send back"} & set(page.text().split("\n"))
        page.script("sessionStorage.setItem('wings-token', arguments[0])", ROOT)
        page.open(f"topic/{mine}/settings")
        page.expect("Change retention", "Produce")
        page.go(f"group/{mine}/g")
        page.expect("Seek…", "Redrive…")
        assert page.faults() == []
