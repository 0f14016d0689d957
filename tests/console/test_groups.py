"""Work with a share group: its dead letters by error, and another position."""

from urllib.parse import quote

import httpx
from console_page import ConsolePage
from console_seed import NAMESPACE, ORDERS, act

from wings_server.testing import RunningServer

GROUP = f"group/{quote(NAMESPACE + '/topics/payments', safe='')}/billing"

LETTERS = "section[aria-label='Dead letters']"


def test_dead_letters_are_grouped_by_error(page: ConsolePage) -> None:
    page.open(GROUP)
    page.expect("2 \N{MULTIPLICATION SIGN}\tcard expired\trejected", within=LETTERS)
    page.script(
        "[...document.querySelectorAll('button.link')]"
        ".find((each) => each.innerText === 'card expired').click()"
    )
    lines = f"return document.querySelectorAll(\"{LETTERS} td[class='mono']\").length"
    page.expect_that("its letters alone", lambda: page.script(lines) == 2)


def test_a_group_is_moved_once_its_user_is_sure(page: ConsolePage, server: RunningServer) -> None:
    def lag() -> int:
        with httpx.Client(base_url=server.http) as http:
            return act(http, "share-members", topic="payments", group="billing")["lag"]

    page.open(GROUP)
    page.expect("Seek")
    seek = "section[aria-label='Seek']"
    page.script(
        f'const found = document.querySelector("{seek} select");'
        "found.value = 'offset'; found.dispatchEvent(new Event('change'))"
    )
    page.type(f"{seek} input", "thirty")
    page.click(f"{seek} button")
    page.expect("thirty is no offset")
    page.type(f"{seek} input", "30")
    page.click(f"{seek} button")
    page.expect("It goes to offset 30", within="dialog")
    before = lag()
    page.click("dialog button[type=button]")
    page.expect_that(
        "no dialog", lambda: page.script("return document.querySelector('dialog') === null")
    )
    assert lag() == before
    page.click(f"{seek} button")
    page.click("dialog button.primary")
    page.expect("billing is moved")
    assert lag() < 12


def test_a_group_that_nobody_works_on_is_red(page: ConsolePage, server: RunningServer) -> None:
    with httpx.Client(base_url=server.http) as http:
        config = {"start": "earliest"}
        act(http, "share-create", topic="payments", group="idle", config=config)
    page.open(GROUP.replace("billing", "idle"))
    page.expect("nobody holds a message")
    assert page.text(".tile .bad") == "none"


def test_a_group_whose_messages_are_delayed_is_not_red(
    page: ConsolePage, server: RunningServer
) -> None:
    with httpx.Client(base_url=server.http) as http:
        config = {"start": "earliest", "deliver_at_column": "placed"}
        act(http, "share-create", topic="orders", group="later", config=config)
    page.open(f"group/{quote(ORDERS, safe='')}/later")
    page.expect("400", "0 since the start")
    page.expect_that("a rate", lambda: "0/s" in page.text(".tiles"))
    assert not page.script("return document.querySelector('.tile .bad')")
