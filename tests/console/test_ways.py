"""By keyboard, on a phone, and in the dark."""

from urllib.parse import quote

import pytest
from console_page import ConsolePage
from console_seed import ORDERS

FOCUSED = """
const found = document.activeElement;
const style = getComputedStyle(found);
const name = found.getAttribute('aria-label') || found.innerText || '';
return [found.tagName, name, style.outlineStyle, parseFloat(style.outlineWidth)];
"""


FIRST_ROW = "return document.querySelector('tbody tr:not(.space)').getBoundingClientRect().toJSON()"


WITH_ROWS = ("overview", "topics", "groups", "query", "consumers")

IN_NAVIGATION = "return document.querySelector('nav [aria-current]')?.getAttribute('href')"


def press(page: ConsolePage, *keys: str) -> None:
    from selenium.webdriver import ActionChains

    ActionChains(page.browser).send_keys(*keys).perform()


def test_all_is_reached_by_keyboard_and_the_focus_is_seen(page: ConsolePage) -> None:
    from selenium.webdriver import Keys

    page.open("topics")
    page.expect("payments", within="table")
    page.script("document.activeElement.blur()")
    reached: list[str] = []
    for _ in range(40):
        press(page, Keys.TAB)
        tag, name, outline, width = page.script(FOCUSED)
        if tag == "BODY":
            break
        assert outline != "none", (tag, name)
        assert width >= 2, (tag, name)
        reached.append(name)
    assert reached[0] == "Skip to the content"
    find = "Find topics by a part of their name"
    for name in ("Topics", "Consumers", "Namespace", find, "orders"):
        assert name in reached, (name, reached)
    page.script("document.querySelector('td a[href*=payments]').focus()")
    press(page, Keys.ENTER)
    page.expect_that("the topic", lambda: page.text("h1") == "payments")


def test_a_dialog_keeps_the_focus_and_escape_gives_it_back(page: ConsolePage) -> None:
    from selenium.webdriver import Keys

    page.open("topics")
    page.click("#access")
    page.expect("A token, please", within="dialog")
    for _ in range(6):
        press(page, Keys.TAB)
        assert page.script(
            "return !document.activeElement.closest('main, header') "
            "|| document.activeElement.closest('dialog') !== null"
        )
    press(page, Keys.ESCAPE)
    page.expect_that(
        "no dialog", lambda: page.script("return document.querySelector('dialog') === null")
    )
    assert page.script("return document.activeElement.id") == "access"


def test_nothing_is_wider_than_a_phone(page: ConsolePage, subtests: pytest.Subtests) -> None:
    page.size(375, 740, touch=True)
    visit = page.open
    for route in WITH_ROWS:
        with subtests.test(route):
            visit(route)
            visit = page.go
            page.expect_that("the page", lambda: page.script(IN_NAVIGATION).endswith(route))  # noqa: B023
            page.expect_that("a heading", lambda: page.text("h1"))
            page.expect_that(
                "rows", lambda: page.script("return document.querySelector('table, textarea')")
            )
            assert page.script("return document.documentElement.scrollWidth") <= 375
            small = page.script(
                "return [...document.querySelectorAll('main button, main select, main input, "
                "nav a')].filter((each) => each.checkVisibility() && !each.closest('th'))"
                ".filter((each) => each.type !== 'checkbox')"
                ".filter((each) => each.getBoundingClientRect().height < 32)"
                ".map((each) => each.outerHTML)"
            )
            assert small == []


def test_colours_follow_the_system_and_a_switch(page: ConsolePage) -> None:
    background = "return getComputedStyle(document.body).backgroundColor"
    page.open("overview")
    page.expect("Rows in")
    light = page.script(background)
    page.media("dark")
    dark = page.script(background)
    assert dark != light
    page.expect_that("rates", lambda: "/s" in page.text("dl.tiles"))
    page.picture("dark")
    page.click("#theme")
    assert page.script(background) == light
    page.click("#theme")
    page.media("light")
    assert page.script(background) == dark
    page.open("topics")
    page.expect_that("a heading", lambda: page.text("h1") == "Topics")
    assert page.script(background) == dark, "it is kept"


def test_a_statement_is_run_by_keyboard_alone(page: ConsolePage) -> None:
    from selenium.webdriver import ActionChains, Keys

    page.open("query")
    offered = "return document.querySelector('textarea')?.placeholder"
    page.expect_that("a statement that fits", lambda: page.script(offered))
    page.script("document.querySelector('textarea').focus()")
    ActionChains(page.browser).key_down(Keys.CONTROL).send_keys("a").key_up(Keys.CONTROL).perform()
    press(page, *"select city from orders order by id limit 3")
    ActionChains(page.browser).key_down(Keys.CONTROL).send_keys(Keys.ENTER).key_up(
        Keys.CONTROL
    ).perform()
    page.expect("3 rows", "Lisbon")
    page.script("document.querySelector('textarea').focus()")
    order: list[str] = []
    for _ in range(3):
        press(page, Keys.TAB)
        tag, name, outline, _ = page.script(FOCUSED)
        assert outline != "none", (tag, name)
        order.append(name)
    assert [order[0], order[1]] == ["Run", "Namespace"], "what is hidden is passed over"


def test_live_messages_are_in_sight_on_a_phone(page: ConsolePage) -> None:
    page.size(375, 740, touch=True)
    page.open(f"topic/{quote(ORDERS, safe='')}")
    page.expect_that("rows", lambda: page.text("tbody").count("\n") > 5)
    assert page.script("return document.documentElement.scrollWidth") <= 375
    first = page.script(FIRST_ROW)
    assert first["left"] >= 0
    assert first["top"] < 1_600, "two screens down at most"
    page.script("document.querySelector('tbody tr:not(.space)').scrollIntoView({block: 'center'})")
    seen = page.script(FIRST_ROW)
    assert 0 <= seen["top"] < seen["bottom"] <= 740
    assert page.script("return scrollX") == 0
    page.picture("phone")
