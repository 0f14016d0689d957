"""The console's files over plain HTTP: served to everyone who names the host, and kept apart."""

import re
import subprocess
import sys
import zipfile
from importlib.resources import files
from pathlib import Path

import httpx
import pytest
from http_calls import error
from token_calls import ROOT, bearer

pytestmark = pytest.mark.server(root_token=ROOT)

TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}

REPOSITORY = Path(__file__).parents[2]


def names() -> list[str]:
    """Return the paths of all files of the console, as they are asked for."""
    folder = Path(str(files("wings_server.http") / "console"))
    found = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return ["/", *(f"/console/{name}" for name in sorted(found) if name != "index.html")]


def test_files_are_served_without_a_token_under_a_strict_policy(http: httpx.Client) -> None:
    for name in names():
        answer = http.get(name)
        assert answer.status_code == 200, name
        kind = TYPES[name.rpartition(".")[2] if name != "/" else "html"]
        assert answer.headers["content-type"].partition(";")[0] == kind
        policy = dict(
            each.strip().split(" ", 1)
            for each in answer.headers["content-security-policy"].split(";")
        )
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"


def test_a_file_is_kept_until_it_changes(http: httpx.Client) -> None:
    answer = http.get("/")
    assert answer.headers["cache-control"] == "no-cache"
    again = http.get("/", headers={"if-none-match": f'"other", {answer.headers["etag"]}'})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == answer.headers["etag"]
    assert http.get("/", headers={"if-none-match": '"other"'}).status_code == 200


def test_head_has_the_head_alone(http: httpx.Client) -> None:
    got, head = http.get("/console/app.js"), http.head("/console/app.js")
    assert (head.status_code, head.content) == (200, b"")
    for name in ("content-type", "content-length", "etag", "content-security-policy"):
        assert head.headers[name] == got.headers[name]


def test_no_path_leaves_the_files(http: httpx.Client) -> None:
    for path in (
        "/console/", "/console/nothing.js", "/console/index.html", "/console/%2e%2e/app.py",
        "/console/..%2f..%2fapp.py", "/console//etc/passwd", "/console/pages",
        "/console/%2e%2e%2f%2e%2e%2f%2e%2e%2fetc%2fpasswd", "/console/app.js/",
    ):  # fmt: skip
        request = httpx.Request("GET", str(http.base_url).rstrip("/") + path)
        assert error(http.send(request)) == (404, "NOT_FOUND"), path
    assert http.post("/", json={}).status_code == 405
    assert http.get("/console").status_code == 401


def test_the_page_is_open_and_what_it_shows_is_not(http: httpx.Client) -> None:
    assert http.get("/").status_code == 200
    assert error(http.post("/v1/actions/list-topics")) == (401, "UNAUTHENTICATED")
    answer = http.post("/v1/actions/list-topics", headers=bearer(ROOT))
    assert (answer.status_code, answer.json()) == (200, [])


def test_the_rules_of_hosts_and_origins_hold_for_the_page(http: httpx.Client) -> None:
    for headers in ({"host": "evil.example"}, {"origin": "http://evil.example"}):
        for path in ("/", "/console/app.js"):
            assert error(http.get(path, headers=headers)) == (403, "PERMISSION_DENIED")


def test_the_files_name_nothing_elsewhere_and_have_nothing_inline(http: httpx.Client) -> None:
    for name in names():
        text = http.get(name).text
        elsewhere = set(re.findall(r"https?://[^\s\"'`)]+", text)) - {"http://www.w3.org/2000/svg"}
        assert elsewhere == set(), name
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert word not in text, name
    page = http.get("/").text
    assert re.findall(r"<script(?![^>]*src=)|<style|\son\w+=|\sstyle=", page) == []


def test_every_file_that_is_named_is_there(http: httpx.Client) -> None:
    known = set(names())
    assert set(re.findall(r'(?:src|href)="(/[^"]+)"', http.get("/").text)) <= known
    for name in known:
        if name.endswith(".js"):
            for found in re.findall(r'from "(\.[^"]+)"', http.get(name).text):
                assert httpx.URL(f"http://host{name}").join(found).path in known, (name, found)


def test_a_wheel_has_the_files(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory"]
    subprocess.run([*command, str(tmp_path)], cwd=REPOSITORY, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        packed = set(opened.namelist())
    for name in names():
        path = "/console/index.html" if name == "/" else name
        assert f"wings_server/http{path}" in packed


def test_an_action_answers_as_over_flight(http: httpx.Client) -> None:
    http.headers.update(bearer(ROOT))
    fields = {"fields": [{"name": "n", "type": "int64"}]}
    for name in ("one", "two", "three"):
        created = http.post("/v1/actions/create-topic", json={"topic": name, "schema": fields})
        assert created.json()["topic"].endswith(f"/{name}")
    listed = http.post("/v1/actions/list-topics", json={"limit": 1, "after": "one"}).json()
    assert [each["topic"].rpartition("/")[2] for each in listed] == ["three"]
    listed = http.post("/v1/actions/list-topics", json={"contains": "o", "limit": 9}).json()
    assert [each["topic"].rpartition("/")[2] for each in listed] == ["one", "two"]
    assert error(http.post("/v1/actions/list-topics", json={"limit": 0})) == (
        400,
        "INVALID_ARGUMENT",
    )
    assert error(http.post("/v1/actions/no-such-action")) == (404, "NOT_FOUND")
    assert http.get("/v1/actions/list-topics").status_code == 405
