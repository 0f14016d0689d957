"""Charts: a past at first sight, axes, and the values at a point."""

from urllib.parse import quote

import httpx
import pytest
from console_page import ConsolePage
from console_seed import NAMESPACE, ORDERS, act, orders, push

from wings_server.testing import RunningServer

PAYMENTS = quote(f"{NAMESPACE}/topics/payments", safe="")

POINTS = """
return [...document.querySelectorAll('.chart svg path.series-1:not(.area)')]
    .map((each) => (each.getAttribute('d') ?? '').split(/[ML]/).length - 1)
"""

HOVER = """
const found = document.querySelector('.chart svg');
const box = found.getBoundingClientRect();
const at = {clientX: box.left + box.width * arguments[0], clientY: box.top + 9, bubbles: true};
found.dispatchEvent(new PointerEvent('pointermove', at));
"""


@pytest.fixture
def past(server: RunningServer) -> int:
    """Some samples that the server took before anyone looked."""
    with httpx.Client(base_url=server.http) as http:
        for first in range(5):
            push(http, "orders", orders(1_000 * first, 10))
            server.server.log.history.look()
    return 5


@pytest.mark.parametrize(
    "route",
    ["overview", f"topic/{quote(ORDERS, safe='')}", f"group/{PAYMENTS}/billing",
     "consumers/reports"],
)  # fmt: skip
def test_a_chart_has_a_past_at_first_sight(page: ConsolePage, past: int, route: str) -> None:
    page.open("nodes")
    page.expect("One server on its own")
    # No look of the page's own, which would give it a present.
    page.script(
        "const real = window.fetch; window.fetch = (path, options) => "
        "/traffic|topic-totals|share-members|consumer-lag/.test(path) "
        "? new Promise(() => {}) : real(path, options)"
    )
    page.go(route)
    least = 1 if "group" in route or "consumer" in route else past - 1
    page.expect_that("a line", lambda: max(page.script(POINTS), default=0) >= least)


def test_a_chart_has_axes_and_tells_the_values_at_a_point(page: ConsolePage, past: int) -> None:
    page.open(f"topic/{quote(ORDERS, safe='')}")
    page.expect_that(
        "a line", lambda: page.script(POINTS)[:1] and page.script(POINTS)[0] >= past - 1
    )
    assert page.text(".marks").endswith("0/s")
    page.expect_that("times", lambda: ":" in page.text(".times"))
    page.script(HOVER, 0.99)
    page.expect("in ", "out ", "/s", within=".tip")

    def is_before_after_a_key() -> bool:  # New samples may redraw the chart in between.
        page.script(HOVER, 0.99)
        last = page.text(".tip b")
        page.script(
            "const chart = document.querySelector('.chart svg'); chart.focus();"
            "chart.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowLeft', bubbles: true}))"
        )
        return page.text(".tip b") < last

    page.expect_that("the point before", is_before_after_a_key)
    page.script("document.querySelector('.chart svg').blur()")
    page.expect_that("no tip", lambda: page.script("return document.querySelector('.tip').hidden"))


def test_charts_stand_before_the_messages_of_a_topic(page: ConsolePage) -> None:
    page.open(f"topic/{quote(ORDERS, safe='')}")
    page.expect_that("rows", lambda: page.text("tbody"))
    places = "return ['.chart', '.tabs', 'table'].map((each) => document.querySelector(each))"
    tops = page.script(f"{places}.map((each) => each.getBoundingClientRect().top)")
    assert tops == sorted(tops)


def test_a_group_shows_how_fast_it_finishes_and_fails(
    page: ConsolePage, server: RunningServer
) -> None:
    page.open(f"group/{PAYMENTS}/billing")
    page.expect("4 since the start", "Done", "Failed")
    with httpx.Client(base_url=server.http) as http:
        body = {"group": "billing", "topic": "payments", "member": "worker-3"}
        acquire = {**body, "max_messages": 2}
        (held,) = http.post("/v1/share/acquire", json=acquire).json()["deliveries"]
        ack = {"partition": None, "first": held["start_offset"], "last": held["end_offset"]}
        acks = [{**ack, "lease": held["lease"], "type": "accept"}]
        act(http, "share-acknowledge", **body, acks=acks)
    page.expect("2 since the start")
