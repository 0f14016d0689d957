"""Every page of the console, in a real browser, over what a real server has."""

import re
from urllib.parse import quote

import httpx
import pytest
from console_page import ConsolePage
from console_seed import BIG, HOSTILE, NAMESPACE, ORDERS, act, orders, push

import wings_client
from wings_server.testing import RunningServer

ROUTES = {
    "overview": "Topics with traffic lately",
    "topics": "payments",
    f"topic/{quote(ORDERS, safe='')}": "Live messages",
    f"topic/{quote(ORDERS, safe='')}/partitions": "Lisbon",
    f"topic/{quote(ORDERS, safe='')}/schema": "partition key",
    f"topic/{quote(ORDERS, safe='')}/settings": "30 d",
    f"topic/{quote(NAMESPACE + '/topics/payments', safe='')}/groups": "billing",
    "consumers": "reports",
    "groups": "billing",
    "ingest": "orders-lake",
    "query": "SQL over topics",
    "nodes": "One server on its own",
}
"""Each page, and what it shows of the server."""


def test_a_page_shows_what_the_server_has(page: ConsolePage, subtests: pytest.Subtests) -> None:
    visit = page.open
    for route, shown in ROUTES.items():
        with subtests.test(route):
            visit(route)
            visit = page.go
            page.expect(shown)
            assert page.text("h1")
            assert "null" not in page.text("h1")
            assert page.browser.title.endswith("· Wings")
            labels = page.script(
                "return [...document.querySelectorAll('button, a, input, select, textarea')]"
                ".filter((each) => each.checkVisibility())"
                ".filter((each) => !(each.innerText.trim() || each.labels?.length))"
                ".filter((each) => !each.getAttribute('aria-label'))"
                ".map((each) => each.outerHTML)"
            )
            assert labels == [], "each control has a name"


def test_the_overview_shows_rates_as_rows_come(page: ConsolePage, server: RunningServer) -> None:
    page.open("overview")
    page.expect("Rows in")
    with httpx.Client(base_url=server.http) as http:

        def has_rate() -> bool:
            push(http, "orders", orders(1_000, 50))
            return bool(re.search(r"[1-9][\d.,]*/s", page.text("dl.tiles")))

        page.expect_that("a rate of rows in", has_rate)
        page.expect_that(
            "a line",
            lambda: (
                page.script(
                    "return document.querySelector('path.series-1').getAttribute('d').length"
                )
                > 20
            ),
        )


def test_the_overview_says_what_needs_a_person(page: ConsolePage) -> None:
    page.open("overview")
    page.expect("1 thing needs you", "4 dead letters of billing of payments in orders-dead")
    page.click(".notice a")
    page.expect("billing", within="h1")
    page.expect("card expired")


def test_topics_have_figures_and_are_found_by_name(page: ConsolePage) -> None:
    page.open("topics")
    page.expect("orders", "payments", "notes", "sign-ups", "30 d", "KiB")
    page.type("input[type=search]", "ship")
    page.expect_that("only shipments", lambda: "payments" not in page.text("table"))
    page.expect("shipments", within="table")
    assert "q=ship" in page.browser.current_url
    page.type("input[type=search]", "no-such")
    page.expect("No topic has this in its name")


def test_live_messages_pass_a_filter_and_show_the_chosen_columns(
    page: ConsolePage, server: RunningServer
) -> None:
    page.open(f"topic/{quote(ORDERS, safe='')}")
    page.expect("customer")
    page.expect_that("rows", lambda: page.text("tbody").count("\n") > 20)
    with httpx.Client(base_url=server.http) as http:
        push(
            http, "orders", [{"city": "Oslo", "id": 777_777, "customer": "newcomer", "amount": 3.5}]
        )
    page.expect("newcomer", within="tbody")
    page.picture("live")
    page.type("input.mono", "amount > 470")
    page.expect_that("no newcomer", lambda: "newcomer" not in page.text("main"))
    with httpx.Client(base_url=server.http) as http:
        few = {"city": "Oslo", "id": 1, "customer": "too little", "amount": 3.5}
        push(http, "orders", [few, {**few, "customer": "enough", "amount": 480.0}])
    page.expect("enough", within="tbody")
    assert "too little" not in page.text("tbody")
    page.click("details.menu summary")
    page.click("details.menu label:nth-of-type(3) input")
    page.expect_that("no column customer", lambda: "customer" not in page.text("thead"))
    page.type("input.mono", "amount >")
    page.expect("The statement cannot be run")


def test_a_message_shows_all_of_it_and_text_as_text(page: ConsolePage) -> None:
    name = quote(f"{NAMESPACE}/topics/notes", safe="")
    page.open(f"topic/{name}")
    page.expect(HOSTILE[:60], "🦋", within="tbody")
    page.go(f"message/{name}/null/0")
    page.expect(HOSTILE, str(BIG))
    page.click("a.button:last-of-type")
    page.expect("Zoë 🦋 long")
    page.go("consumers")
    page.expect(HOSTILE[:60])
    assert "owned" not in page.browser.title
    assert page.script("return document.querySelectorAll('main script, main img').length") == 0


def test_a_consumer_shows_its_lag_by_partition(page: ConsolePage) -> None:
    page.open("consumers")
    page.expect("reports")
    page.click("a[href='#/consumers/reports']")
    page.expect("Oslo", "Quito", "Partitions with most lag")
    page.expect_that("the lag", lambda: re.search(r"\n\d+\nmessages", page.text("dl.tiles")))


def test_a_consumer_group_shows_its_members_and_their_lag(
    page: ConsolePage, server: RunningServer
) -> None:
    with wings_client.connect(server.flight) as client:
        client.create_topic("calls", {"line": "int64"}, partition_key="line")
        client.push("calls", {"line": [1, 2, 3]})
        with client.consumer("billing-calls", "calls", group=True, instance="one") as consumer:
            next(consumer)
            page.open("consumers")
            page.expect("billing-calls")  # It has committed nothing yet.
            page.click("a[href='#/consumers/billing-calls']")
            page.expect_that("the member", lambda: "one\tcalls\t3\t3\tsteady" in members(page))
            page.picture("consumer-group")
            consumer.commit()
            partitions = "section[aria-label='Partitions with most lag']"
            page.expect_that("its name", lambda: "calls\t1\tone" in page.text(partitions))
            page.expect_that("its lag", lambda: "one\tcalls\t3\t0\tfalls" in members(page))
        page.expect_that("that it has left", lambda: "No members" in members(page))


def members(page: ConsolePage) -> str:
    return page.text("section[aria-label='Members']")


def test_a_group_shows_who_holds_what_and_sends_dead_letters_back(
    page: ConsolePage, server: RunningServer
) -> None:
    page.open(f"group/{quote(NAMESPACE + '/topics/payments', safe='')}/billing")
    page.expect(
        "worker-1", "worker-2", "2 \N{EN DASH} 5", "8 \N{EN DASH} 11", "card expired", HOSTILE[:30]
    )
    page.picture("group")
    with httpx.Client(base_url=server.http) as http:
        (before,) = act(http, "partition-states", topic="payments")
        page.type("input[placeholder*='rejected']", "error = 'card expired'")
        page.click("form button.primary")
        page.expect("Those of this group", within="dialog")
        page.click("dialog button.primary")
        page.expect("2 sent back")
        (after,) = act(http, "partition-states", topic="payments")
    assert after["next_offset"] - before["next_offset"] == 2


def test_a_source_shows_its_files(page: ConsolePage) -> None:
    page.open("ingest")
    page.expect("orders-lake", within="table")
    page.type("input[type=search]", "nothing like it")
    page.expect("No source has this in its name")
    page.type("input[type=search]", "rders-la")
    page.expect("orders-lake", within="table")
    page.click("tbody a")
    page.expect("s3://lake/orders/2026-11-08.parquet#v1", "open")


def test_a_statement_is_run_and_a_wrong_one_explained(page: ConsolePage) -> None:
    page.open("query")
    page.type(
        "textarea",
        "select city, count(*) as orders, sum(amount) as amount from orders "
        "group by city order by city",
    )
    page.click("form button.primary")
    page.expect("Accra", "Quito", "5 rows")
    page.picture("query")
    page.type("textarea", "select nothing from orders")
    page.click("form button.primary")
    page.expect("The statement cannot be run", "INVALID_SQL")
