"""The live page in a real headless browser, against the real server with snapshots made of literals."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import time
from typing import Any

import pytest

from tests.cluster.headless_browser import Browser, browser_program
from tests.group_snapshots import group_snapshot
from zkconsumer.cli.serve import page_files
from zkconsumer.operations.group_snapshot import GroupSnapshot
from zkconsumer.operations.serving.bounded_http import ListenAddress
from zkconsumer.operations.serving.http_server import AccessRules, GroupServer, Routes, ServeOptions
from zkconsumer.operations.serving.poller import Poller

PROGRAM = browser_program()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium on this machine (Debian: apt install chromium)")

HOSTILE = "<script>window.hacked=1</script>\"'&\x07\u202e"
SHOWN = "<script>window.hacked=1</script>\"'&\\x07\\u202e"
"""The same name as the page shows it."""
MARKUP = "<img src=x onerror=window.hacked=1>"


def snapshot(owner_of_1: str = "b", lag: int = 40, name: str = "billing", partitions: int = 3) -> GroupSnapshot:
    """A group of two members; the last partition has no owner."""
    members = {f"{name}_a": {MARKUP: 1}, f"{name}_b": {MARKUP: 1}}
    owners = {f"{MARKUP}:{n}": f"{name}_a-0" for n in range(partitions - 1)} | {f"{MARKUP}:1": f"{name}_{owner_of_1}-0"}
    offsets = {f"{MARKUP}:{n}": 100 for n in range(partitions)}
    logs = {f"{MARKUP}:{n}": (0, 100 + lag) for n in range(partitions)}
    return group_snapshot(members, owners, offsets, logs, group=name)


class Literals:
    """A source whose snapshots a test sets."""

    def __init__(self) -> None:
        self.known = {"billing": snapshot(), HOSTILE: snapshot(name=HOSTILE)}

    def groups(self) -> Sequence[str]:
        return sorted(self.known)

    def snapshot(self, group: str, *, message_times: bool = False) -> GroupSnapshot:
        return replace(self.known.get(group, GroupSnapshot(group, 0)), taken=int(time() * 1000))

    def history(self, group: str) -> Sequence[GroupSnapshot]:
        return [self.snapshot(group)]

    def close(self) -> None:
        pass


@contextmanager
def serving(source: Literals, port: int = 0) -> Iterator[str]:
    """Serve a source on a port of this machine, and yield the page's address."""

    @contextmanager
    def opened() -> Iterator[Any]:
        yield source

    poller = Poller(opened, 0.5)
    address = ListenAddress("127.0.0.1", port)
    routes = Routes(lambda: poller.board, AccessRules(address), ServeOptions("c", "h", 0.5, page_files()))
    server = GroupServer(address, routes, poller)
    try:
        server.start()
        yield server.url
    finally:
        assert server.close(30.0)


@pytest.fixture(scope="module")
def source() -> Literals:
    return Literals()


@pytest.fixture(scope="module")
def address(source: Literals) -> Iterator[str]:
    with serving(source) as url:
        yield url


@pytest.fixture(scope="module")
def browser(address: str) -> Iterator[Browser]:
    """One browser for all tests. At the end nothing has gone wrong in it, and it has asked nobody else."""
    assert PROGRAM is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, Browser(PROGRAM, Path(folder)) as one:
        one.size(1280, 900)
        yield one
        assert one.complaints == []
        assert [url for url in one.requests if not url.startswith((address, "data:", "about:"))] == []
        assert one.run("window.hacked") is None


def go(browser: Browser, address: str, place: str, ready: str) -> None:
    browser.open("about:blank")
    browser.open(f"{address}{place}")
    browser.wait(ready)


@pytest.fixture(autouse=True)
def _page_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Leave the page after each test, so that the server's thread for its event stream ends."""
    yield
    if "browser" in request.fixturenames:
        request.getfixturevalue("browser").open("about:blank")


def texts(browser: Browser, selector: str) -> Any:
    return browser.run(f"[...document.querySelectorAll({selector!r})].map((one) => one.textContent)")


GROUPS = "#groups td:first-child a"
CELLS = "document.querySelectorAll('.cell').length >= 3"


def test_hostile_names_stay_text_on_both_views(browser: Browser, address: str) -> None:
    go(browser, address, "#/", "document.querySelectorAll('#groups tr').length === 2")
    assert sorted(texts(browser, GROUPS)) == sorted(["billing", SHOWN])
    assert browser.run("document.querySelectorAll('script').length") == 1
    assert "120" in texts(browser, "#groups tr:has(a[href$=billing]) td")[3]
    typed = "(f) => { f.value = 'hacked'; f.dispatchEvent(new Event('input')); }"
    browser.run(f"({typed})(document.getElementById('filter'))")
    assert texts(browser, GROUPS) == [SHOWN]
    browser.run("document.querySelector('#groups a').click()")
    browser.wait(CELLS)
    assert texts(browser, "#group-name") == [SHOWN]
    assert MARKUP in texts(browser, ".topic h3")[0]
    assert browser.run("document.querySelectorAll('main img, main script').length") == 0


def test_an_event_changes_the_map_and_the_lag(browser: Browser, address: str, source: Literals) -> None:
    source.known["billing"] = snapshot()
    go(browser, address, "#/g/billing", CELLS)
    assert texts(browser, ".cell .letter") == ["A", "B", "!"]
    assert "unowned" in browser.run("document.querySelectorAll('.cell')[2].className")
    browser.run("void (window.first = document.querySelector('.cell'))")
    source.known["billing"] = snapshot(owner_of_1="a", lag=7)
    browser.wait("[...document.querySelectorAll('.cell .letter')].map((one) => one.textContent).join('') === 'AA!'")
    browser.wait("document.querySelector('#figures dd').textContent.startsWith('21')")
    assert browser.run("window.first === document.querySelector('.cell')"), "cells stay, and focus with them"
    browser.wait("document.querySelectorAll('#chart path').length > 0")
    browser.wait("document.querySelectorAll('.spark path').length > 0")
    browser.wait("document.getElementById('live').dataset.live === 'on'")


def test_the_map_explains_on_hover_and_by_keys(browser: Browser, address: str, source: Literals) -> None:
    source.known["billing"] = snapshot()
    go(browser, address, "#/g/billing", CELLS)
    browser.hover(".cell")
    browser.wait("!document.getElementById('tip').hidden")
    assert "billing_a-0" in texts(browser, "#tip")[0]
    browser.run("document.querySelector('.cell').focus()")
    browser.key("ArrowRight")
    browser.wait("document.getElementById('tip').textContent.includes('billing_b-0')")
    assert " 1, owned by B, b, lag 40" in browser.run("document.activeElement.getAttribute('aria-label')")
    assert browser.run("document.activeElement.getAttribute('aria-describedby')") == "tip"
    browser.key("Escape")
    browser.wait("document.getElementById('tip').hidden")
    unnamed = "[...document.querySelectorAll('button, a, input')].filter((one) => !one.offsetParent ? false :"
    assert browser.run(f"{unnamed} !(one.ariaLabel || one.textContent.trim() || one.labels?.length)).length") == 0


def test_phones_and_500_partitions_fit(browser: Browser, address: str, source: Literals) -> None:
    """Nothing makes a phone scroll sideways, and no partition's number is cut off."""
    source.known["wide"] = snapshot(name="wide", partitions=500)
    browser.size(360, 740)
    try:
        for place, least in (("#/", 3), ("#/g/billing", 3), ("#/g/wide", 500)):
            go(browser, address, place, f"document.querySelectorAll('#groups tr, .cell').length >= {least}")
            assert browser.run("document.documentElement.scrollWidth") <= 360, place
    finally:
        browser.size(1280, 900)
        del source.known["wide"]
    narrow = "[...document.querySelectorAll('.cell')].filter((one) => one.scrollWidth > one.clientWidth).length"
    browser.wait(f"innerWidth === 1280 && {narrow} === 0")


def test_dark_and_light_are_both_readable(browser: Browser, address: str) -> None:
    """The contrast of text and of letters in cells against their grounds is at least 4.5 (WCAG AA)."""
    contrast = """(() => {
      const rgb = (text) => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
      const light = (c) => rgb(c).map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, n) => sum + v * [0.2126, 0.7152, 0.0722][n], 0);
      const ratio = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
      const pair = (one, ground) => ratio(getComputedStyle(one).color, getComputedStyle(ground).backgroundColor);
      const card = document.querySelector('.card');
      const found = [pair(document.body, document.body), pair(document.querySelector('.muted'), card)];
      const probe = document.body.appendChild(document.createElement('span'));
      const names = [...'0123456789'].map((n) => `swatch m${n}`);
      for (const name of names.concat('badge good', 'badge warn', 'badge bad', 'badge idle')) {
        probe.className = name;
        found.push(pair(probe, probe));
      }
      probe.remove();
      return Math.min(...found);
    })()"""
    for dark in (False, True):
        browser.dark(dark)
        go(browser, address, "#/g/billing", CELLS)
        assert browser.run(contrast) >= 4.5
        assert (browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(14, 17, 24)") is dark
    browser.dark(False)


def test_a_server_that_comes_back_is_found_again(tmp_path: Path) -> None:
    assert PROGRAM is not None
    source = Literals()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, Browser(PROGRAM, Path(folder)) as browser:
        with serving(source) as address:
            go(browser, address, "#/g/billing", CELLS)
            browser.wait("document.getElementById('live').dataset.live === 'on'")
        browser.wait("document.getElementById('live').dataset.live === 'off'")
        assert "reconnecting" in texts(browser, "#live-text")[0]
        assert texts(browser, ".cell .letter") == ["A", "B", "!"], "what was known is still shown"
        source.known["billing"] = snapshot(owner_of_1="a")
        with serving(source, int(address.rsplit(":", 1)[1].strip("/"))):
            browser.wait("document.querySelectorAll('.cell .letter')[1].textContent === 'A'", 30)
            browser.wait("document.getElementById('live').dataset.live === 'on'")
            assert browser.run("document.getElementById('failure').hidden")
