"""A headless browser, a server with something in it, and the console in the one of the other."""

import shutil
from collections.abc import Generator
from typing import TYPE_CHECKING

import httpx
import pytest
from console_page import ConsolePage
from console_seed import seed

from wings_server.testing import RunningServer, running_server

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

CHROMIUMS = (
    "/usr/lib/chromium/chromium-headless-shell",  # Debian's command for it does not end it.
    "chromium",
    "chromium-browser",
    "google-chrome",
)
"""The first that is there is taken; the smallest needs a third less of a processor."""


@pytest.fixture(scope="session")
def browser() -> "Generator[Chrome]":
    """A headless Chromium, that of the system."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    chromium = next(filter(None, map(shutil.which, CHROMIUMS)), None)
    driver = shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("no Chromium with chromedriver on the path (apt install chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in (
        "headless=new",
        "no-sandbox",
        "disable-dev-shm-usage",
        "disable-gpu",
        "window-size=1280,860",
        "force-device-scale-factor=1",
        "lang=en",
        "app=data:,",
    ):  # fmt: skip - Without tabs, which show that a page loads.
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(driver)
    with webdriver.Chrome(options=options, service=service) as opened:
        yield opened


@pytest.fixture(scope="module", autouse=True)
def empty_tab(browser: "Chrome") -> Generator[None]:
    """Leave no page that asks a server again and again, which is gone."""
    yield
    browser.get("about:blank")


@pytest.fixture(scope="module")
def server() -> Generator[RunningServer]:
    """A server with topics, consumers, groups, dead letters and files."""
    with running_server() as running:
        with httpx.Client(base_url=running.http, timeout=60) as http:
            seed(http)
        yield running


@pytest.fixture
def page(browser: "Chrome", server: RunningServer) -> Generator[ConsolePage]:
    """The console of the server, in a tab without a token; at the end nothing went wrong in it."""
    found = ConsolePage(browser, server.http)
    found.reset()
    yield found
    assert found.faults() == []
