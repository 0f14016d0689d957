"""The query box: the tables there are, completion, history, a file, a link."""

from typing import TYPE_CHECKING
from urllib.parse import quote

import httpx
import pytest
from console_page import ConsolePage
from console_seed import act

from wings_server.testing import RunningServer

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

VALUE = "return document.querySelector('textarea').value"

OFFERS = "section[aria-label='Statement'] .offers"

RUN = "section[aria-label='Statement'] button.primary"


@pytest.fixture(autouse=True)
def shown(browser: "Chrome", page: ConsolePage) -> None:
    """The page, with its tables."""
    page.open("query")
    page.expect("orders", "system.partitions", within="section[aria-label='Tables']")


def test_tables_and_their_columns_are_listed_and_taken_by_a_click(page: ConsolePage) -> None:
    page.script(
        "for (const each of document.querySelectorAll('.tables details'))"
        " each.open = /^(orders|system.groups)$/.test(each.innerText.trim())"
    )
    page.expect("customer string", "__offset int64", "config varchar", within=".tables")
    page.type("textarea", "select ")
    choose = (
        "[...document.querySelectorAll('.tables button')]"
        ".find((each) => each.innerText.startsWith(arguments[0])).click()"
    )
    page.script(choose, "amount")
    page.script(choose, "from orders")
    assert page.script(VALUE) == "select amount orders"


def test_a_word_is_completed(page: ConsolePage) -> None:
    from selenium.webdriver import ActionChains, Keys

    page.type("textarea", "select cust")
    page.expect("customer", within=OFFERS)
    ActionChains(page.browser).send_keys(Keys.ARROW_DOWN, Keys.ENTER).perform()
    page.expect_that("the column", lambda: page.script(VALUE) == "select customer")
    ActionChains(page.browser).send_keys(" from si").perform()
    page.expect_that("the table alone", lambda: page.text(OFFERS) == '"sign-ups"')
    ActionChains(page.browser).send_keys(Keys.ARROW_DOWN, Keys.ENTER).perform()
    page.expect_that("it", lambda: page.script(VALUE) == 'select customer from "sign-ups"')
    ActionChains(page.browser).send_keys(" wher").perform()
    page.expect("where", within=OFFERS)
    ActionChains(page.browser).send_keys(Keys.ESCAPE).perform()
    page.expect_that("none", lambda: page.script("return document.querySelector('.offers').hidden"))


def test_an_empty_box_runs_the_statement_that_it_suggests(page: ConsolePage) -> None:
    hint = "return document.querySelector('textarea').placeholder"
    page.expect_that("a suggestion", lambda: page.script(hint).startswith("select *"))
    assert page.script(VALUE) == "", "what is typed meanwhile stands alone"
    page.click(RUN)
    page.expect_that("it", lambda: page.script(VALUE) == page.script(hint))
    page.expect("rows in")


def test_an_empty_box_suggests_a_topic_of_the_namespace_chosen(
    page: ConsolePage, server: RunningServer
) -> None:
    with httpx.Client(base_url=server.http) as http:
        act(http, "create-namespace", namespace="tenants/default/namespaces/bare")
    page.open("query")
    hint = "return document.querySelector('textarea').placeholder"
    page.expect_that("a suggestion", lambda: page.script(hint).startswith("select *"))
    page.expect_that("it", lambda: "bare" in page.text("select[aria-label='Namespace']"))
    page.script(
        "const found = document.querySelector(\"select[aria-label='Namespace']\");"
        "found.value = arguments[0]; found.dispatchEvent(new Event('change'))",
        "tenants/default/namespaces/bare",
    )
    page.expect_that("none", lambda: page.script(hint) == "")


def test_no_old_result_stands_under_an_error(page: ConsolePage) -> None:
    page.type("textarea", "select 4711 as answer")
    page.click(RUN)
    page.expect("4711", within="section[aria-label='Result']")
    page.type("textarea", "select nothing from orders")
    page.click(RUN)
    page.expect("The statement cannot be run")
    assert page.text("section[aria-label='Result']") == ""


def test_statements_are_kept_and_forgotten(page: ConsolePage) -> None:
    for number in (815, 816):
        page.type("textarea", f"select {number} as n")
        page.click(RUN)
        page.expect(str(number), within="section[aria-label='Result']")
    page.browser.refresh()
    page.click("details.menu summary")
    page.expect("select 816 as n", "select 815 as n", within="details.menu")
    page.script("document.querySelectorAll('details.menu button')[1].click()")
    page.expect_that("it", lambda: page.script(VALUE) == "select 815 as n")
    page.script("[...document.querySelectorAll('details.menu button')].at(-1).click()")
    assert page.script("return localStorage.getItem('wings-queries')") is None


def test_the_address_carries_the_statement(page: ConsolePage) -> None:
    page.type("textarea", "select 'a&b' as text")
    page.click(RUN)
    page.expect("a&b", within="section[aria-label='Result']")
    address = page.browser.current_url
    page.script("sessionStorage.clear()")
    page.open("topics")
    page.expect_that("topics", lambda: page.text("h1") == "Topics")
    page.script("location.hash = arguments[0]", address.partition("#")[2])
    page.expect_that("the statement", lambda: page.script(VALUE) == "select 'a&b' as text")
    page.go(f"query?sql={quote('select 1')}")
    page.expect_that("another", lambda: page.script(VALUE) == "select 1")
    assert page.text("section[aria-label='Result']").startswith("Result\n"), "it is not run"


def test_a_result_is_saved_as_csv(page: ConsolePage) -> None:
    page.type(
        "textarea",
        "select 1 as n, 'a, \"b\"' as text, null as none, '=1+1' as formula, "
        "9007199254740993::bigint as large",
    )
    page.click(RUN)
    page.expect("9007199254740993", within="section[aria-label='Result']")
    page.script(
        "const make = URL.createObjectURL; URL.createObjectURL = (blob) => {"
        "blob.text().then((text) => { window.saved = text; }); return make.call(URL, blob); };"
    )
    page.click("section[aria-label='Result'] header button")
    saved = page.expect_that("the file", lambda: page.script("return window.saved"))
    assert saved == ('n,text,none,formula,large\r\n1,"a, ""b""",,\'=1+1,9007199254740993\r\n')


def test_a_statement_runs_where_the_browser_has_no_room_to_remember_it(page: ConsolePage) -> None:
    page.script(
        "for (let size = 2 ** 22, number = 0; size >= 1; number += 1)"
        " try { localStorage.setItem(`full ${number}`, 'x'.repeat(size)); } catch { size /= 2; }"
    )
    page.type("textarea", "select 6 * 7 as answer")
    page.click(RUN)
    page.expect("42", within="section[aria-label='Result']")
