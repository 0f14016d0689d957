"""Names that do not exist, that are markup, too long, or run from right to left; and very many."""

from collections.abc import Generator
from itertools import product
from typing import TYPE_CHECKING
from urllib.parse import quote

import httpx
import pytest
from console_page import ConsolePage
from console_seed import BIG, HOSTILE, NAMESPACE, act, push

import wings_client
from wings_core.limits import Limits
from wings_server.testing import RunningServer, running_server

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

RTL = "\N{RIGHT-TO-LEFT OVERRIDE}txt.evil\N{HEBREW LETTER ALEF}\N{ARABIC LETTER ALEF}"
LONG = "x" * 3_000

MARKUP = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"

NAMES = {"markup": MARKUP, "right-to-left": RTL, "long": LONG, "spaces": "a b/c?d#e", "none": ""}

PAGES = [
    "topic/{}",
    "topic/{}/partitions",
    f"topic/{quote(f'{NAMESPACE}/topics/', safe='')}{{}}",
    f"message/{{}}/null/{'9' * 30}",
    f"group/{quote(f'{NAMESPACE}/topics/payments', safe='')}/{{}}",
    "consumers/{}",
    "ingest/{}",
    "topics?namespace={}",
    "{}",
]
"""Addresses with a place for a name."""

IS_PLAIN = """
return [document.title, document.querySelectorAll('main script, main img, main iframe').length,
        document.documentElement.scrollWidth, document.querySelectorAll('h1').length]
"""

FACE = """
return [...document.querySelectorAll('main .notice, main .empty')]
    .filter((each) => each.checkVisibility()).map((each) => each.innerText)
"""


def test_a_name_in_the_address_that_is_not_there_is_told_of_and_is_text(
    page: ConsolePage, subtests: pytest.Subtests
) -> None:
    page.size(375, 740, touch=True)
    visit = page.open
    for route, (kind, name) in product(PAGES, NAMES.items()):
        with subtests.test(f"{route} {kind}"):
            visit(route.format(quote(name, safe="")))
            visit = page.go
            page.expect_that("a heading", lambda: page.text("h1"))
            if kind != "none":
                page.expect_that("what is the matter", lambda: page.script(FACE))
                assert not any("The console failed" in each for each in page.script(FACE))
            title, markup, width, headings = page.script(IS_PLAIN)
            assert title != "owned"
            assert (markup, headings) == (0, 1)
            assert width <= 375


def test_an_address_that_is_not_encoded_well_is_a_page(page: ConsolePage) -> None:
    page.open("topic/%E0%A4%A/%")
    page.expect_that("what is the matter", lambda: page.script(FACE))


def test_strange_values_are_seen_as_they_are(page: ConsolePage, server: RunningServer) -> None:
    fields = [{"name": name, "type": "string"} for name in (HOSTILE, RTL, "plain")]
    with httpx.Client(base_url=server.http) as http:
        act(http, "create-topic", topic="strange", schema={"fields": fields}, if_not_exists=True)
        push(http, "strange", [{HOSTILE: RTL, RTL: LONG, "plain": HOSTILE}])
        act(http, "shard-open", source=f"{MARKUP}{RTL}{LONG}"[:240], token="t", shards=[MARKUP])
    name = quote(f"{NAMESPACE}/topics/strange", safe="")
    visit = page.open
    for route in (f"topic/{name}", f"topic/{name}/schema", f"message/{name}/null/0"):
        visit(route)
        visit = page.go
        page.expect(HOSTILE[:20], "txt.evil")
        title, markup, _, _ = page.script(IS_PLAIN)
        assert (title == "owned", markup) == (False, 0)
    page.go("ingest")
    page.expect("txt.evil", within="table")
    page.click("tbody a")
    page.expect("<img src=x", within="table")
    assert page.script(IS_PLAIN)[0] != "owned"
    assert page.script(IS_PLAIN)[1] == 0
    page.go("query")
    page.type("textarea", "select * from strange")
    page.click("form button.primary")
    page.expect("1 row", HOSTILE[:20])
    assert page.script(IS_PLAIN)[1] == 0


LINES = "return document.querySelectorAll('tbody tr').length"
LINES_MAX = 150
"""Rows of tables in the page, of those in sight and some beside them."""


@pytest.fixture(
    scope="module",
    params=[
        (600, 3_000),
        pytest.param((10_000, 100_000), marks=[pytest.mark.soak, pytest.mark.timeout(1_800)]),
    ],
)
def large(request: pytest.FixtureRequest) -> Generator[tuple[RunningServer, int, int]]:
    """A server with so many topics, one of them with so many partitions."""
    topics, partitions = request.param
    with running_server(limits=Limits(maintenance_seconds=100_000)) as running:
        with wings_client.connect(running.flight, timeout=600) as client:
            client.create_topic("wide", {"k": "int64", "n": "int64"}, partition_key="k")
            for first in range(0, partitions, 1_000):
                rows = range(first, first + 1_000)
                client.push("wide", {"k": list(rows), "n": list(rows)})
            for number in range(topics):
                client.create_topic(f"many-{number:05}", {"n": "int64"})
            client.create_share_group("workers", "wide", {"start": "earliest"})
            for first in range(0, partitions // 2, 10_000):
                some = range(first, min(first + 10_000, partitions // 2))
                client.commit_offsets("reader", "wide", dict.fromkeys(some, 1))
        yield running, topics, partitions


def test_pages_stay_small_and_quick_with_very_many_topics_and_partitions(
    browser: "Chrome", large: tuple[RunningServer, int, int]
) -> None:
    server, topics, partitions = large
    page = ConsolePage(browser, server.http)
    page.reset()
    wide = quote(f"{NAMESPACE}/topics/wide", safe="")
    page.open("topics")
    page.expect("many-00000", within="table")

    def comes_to_500() -> bool:
        page.script("const e = document.querySelector('.scroll'); e.scrollTop = e.scrollHeight")
        assert page.script(LINES) <= LINES_MAX
        return "many-005" in page.text("table")

    page.expect_that("the end of the third part of the list", comes_to_500)
    page.type("input[type=search]", f"many-{topics - 1:05}")
    page.expect_that("the last topic alone", lambda: page.script(LINES) == 1)
    page.go(f"topic/{wide}/partitions")
    page.expect_that("partitions", lambda: page.script(LINES) > 10)
    assert page.script(LINES) <= LINES_MAX
    page.type("input[placeholder='Find by value']", f"{partitions - 1}")
    page.expect_that("the last partition", lambda: page.script(LINES) == 1)
    for route, shown in {
        f"topic/{wide}": "n",
        f"topic/{wide}/settings": "Kept",
        f"group/{wide}/workers": "Who holds what",
        "consumers/reader": "Partitions with most lag",
        "groups": "workers",
        "overview": "wide",
        "consumers": "reader",
    }.items():
        page.go(route)
        page.expect(shown)
        page.expect_that(
            "figures", lambda: f"{partitions:,}"[:2] in page.text() or page.script(LINES)
        )
        assert page.script(LINES) <= 3 * LINES_MAX
        assert page.script("return document.querySelectorAll('*').length") < 8_000
    assert page.faults() == []


def test_partitions_of_integers_beyond_those_of_a_browser_are_told_apart(
    page: ConsolePage, server: RunningServer
) -> None:
    keys = [BIG, BIG + 2, -BIG]
    with httpx.Client(base_url=server.http) as http:
        fields = [{"name": "id", "type": "int64"}, {"name": "n", "type": "int64"}]
        act(http, "create-topic", topic="snowflakes", partition_key="id", schema={"fields": fields})
        push(http, "snowflakes", [{"id": key, "n": 40 + n} for n, key in enumerate(keys)])
    name = quote(f"{NAMESPACE}/topics/snowflakes", safe="")
    page.open(f"topic/{name}")
    page.expect("3 shown", *map(str, keys))
    page.type("input[list='partitions']", str(keys[1]))
    page.type("input[placeholder^='1200']", "0")
    page.click("form.row button")
    page.expect("1 shown, paused", str(keys[1]), "41")
    page.go(f"topic/{name}/partitions")
    page.expect(*map(str, keys), within="table")
    page.go(f"topic/{name}/produce")
    page.type("input[aria-label='id']", str(keys[1]))
    page.type("input[aria-label='n']", "7")
    page.click("form button.primary")
    page.expect(f"partition {keys[1]}")
    page.click(".notice a")
    page.expect("Message 1", str(keys[1]), "7")
