"""Lists say how much of them is shown; on a phone they keep the columns that matter."""

from collections.abc import Generator
from typing import TYPE_CHECKING
from urllib.parse import quote

import httpx
import pytest
from console_page import ConsolePage
from console_seed import NAMESPACE, act

import wings_client
from wings_server.testing import RunningServer, running_server

if TYPE_CHECKING:
    from selenium.webdriver import Chrome


@pytest.fixture(scope="module")
def long_lists() -> Generator[RunningServer]:
    """A server with 303 topics, one with 1,100 partitions, and 520 consumers."""
    with running_server() as running:
        with wings_client.connect(running.flight) as client:
            client.create_topic("wide", {"k": "int64"}, partition_key="k")
            client.push("wide", {"k": list(range(1_100))})
            for number in range(302):
                client.create_topic(f"many-{number:04}", {"n": "int64"})
        with httpx.Client(base_url=running.http, timeout=60) as http:
            offset = {"topic": "wide", "partition": 1, "offset": 0}
            for number in range(520):
                act(http, "commit-offsets", consumer=f"reader-{number:03}", offsets=[offset])
        yield running


def test_a_list_says_how_much_of_it_is_shown(browser: "Chrome", long_lists: RunningServer) -> None:
    page = ConsolePage(browser, long_lists.http)
    page.reset()
    page.open("topics")
    page.expect("first 200 of 303 topics", within=".head")
    page.type("input[type=search]", "many-02")
    page.expect("100 topics", within=".head")
    page.go("consumers")
    page.expect("first 500 of 520 consumers", within=".head")
    page.type("input[type=search]", "reader-51")
    page.expect("10 consumers", within=".head")
    wide = quote(f"{NAMESPACE}/topics/wide", safe="")
    page.go(f"topic/{wide}/partitions")
    page.expect("first 200 of 1,100")
    assert page.faults() == []


def test_the_overview_of_a_phone_has_no_hole_and_the_columns_that_matter(
    page: ConsolePage,
) -> None:
    page.size(375, 740, touch=True)
    page.open("overview")
    page.expect_that("rows", lambda: "orders" in page.text("table"))
    seen = (
        "return [...document.querySelectorAll('th')].filter((each) => each.checkVisibility() &&"
        " each.getBoundingClientRect().right <= innerWidth).map((each) => each.innerText)"
    )
    assert page.script(seen) == ["Topic", "Rows in", "Rows out", "Last message"]
    hole = (
        "const found = document.querySelector('dl.tiles').getBoundingClientRect();"
        "const last = document.querySelector('.tile:last-child').getBoundingClientRect();"
        "return found.right - last.right"
    )
    assert page.script(hole) < 3
