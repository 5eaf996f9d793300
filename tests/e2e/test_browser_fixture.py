"""The browser of the tests sees what is wrong with a page, and lets nothing out."""

from __future__ import annotations

import http.server
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.browser import OpenPage, is_own

pytestmark = pytest.mark.browser

PAGE = """<!DOCTYPE html><html><head><meta charset="utf-8"><title>t</title>
<style>p { background: url("data:image/gif;base64,R0lGODlhAQABAAAAACw=") }</style>
</head><body><p>width <span id="width"></span></p>
<script>document.getElementById("width").textContent = innerWidth;
HERE</script></body></html>
"""


class _Recorder(http.server.BaseHTTPRequestHandler):
    """Answers everything, and notes that it was asked."""

    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(200)
        self.send_header("Access-Control-Allow-Origin", "*")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[str, list[str]]]:
    """Address of a server on this machine, and the paths it was asked for."""
    recorder = type("Recorder", (_Recorder,), {"asked": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), recorder) as httpd:
        thread = threading.Thread(target=httpd.serve_forever)
        thread.start()
        yield f"127.0.0.1:{httpd.server_port}", recorder.asked
        httpd.shutdown()
        thread.join()


def _page(tmp_path: Path, script: str) -> Path:
    path = tmp_path / "a page.html"
    path.write_text(PAGE.replace("HERE", script), encoding="utf-8")
    return path


def test_a_sound_page_has_nothing_to_report(
    browser_page: Callable[..., OpenPage], tmp_path: Path
) -> None:
    page = browser_page(_page(tmp_path, "console.log('fine'); location.hash = 'here'"), width=700)
    assert page.page.inner_text("#width") == "700"
    assert page.console == []
    assert page.requests == []


def test_errors_warnings_and_exceptions_are_collected(
    browser_page: Callable[..., OpenPage], tmp_path: Path
) -> None:
    script = "console.error('one'); console.warn('two'); throw new TypeError('three')"
    page = browser_page(_page(tmp_path, script))
    assert page.console[:2] == ["error: one", "warning: two"]
    assert [line for line in page.console if "three" in line] == ["exception: three"]
    # also what happens after the page was opened
    page.page.evaluate("console.error('four')")
    assert page.console[-1] == "error: four"


def test_requests_are_named_and_refused(
    browser_page: Callable[..., OpenPage], tmp_path: Path, server: tuple[str, list[str]]
) -> None:
    (tmp_path / "beside.js").write_text("document.title = 'loaded'")
    address, asked = server
    script = f"""
    fetch("http://{address}/data").catch(error => document.body.append("refused"));
    new WebSocket("ws://{address}/socket").onerror = () => document.body.append("closed");
    const beside = document.createElement("script"); beside.src = "beside.js";
    document.body.append(beside);
    """
    page = browser_page(_page(tmp_path, script))
    page.page.get_by_text("refused").wait_for()
    page.page.get_by_text("closed").wait_for()
    assert sorted(page.requests) == [
        (tmp_path / "beside.js").as_uri(),
        f"http://{address}/data",
        f"ws://{address}/socket",
    ]
    assert any("ERR_INTERNET_DISCONNECTED" in line for line in page.console)
    assert page.page.title() == "t"
    assert asked == []


def test_screenshot_has_the_size_of_the_window(
    browser_page: Callable[..., OpenPage], tmp_path: Path
) -> None:
    picture = tmp_path / "page.png"
    browser_page(_page(tmp_path, ""), width=640, height=480).screenshot(picture)
    # width and height in the header of a PNG
    assert struct.unpack(">II", picture.read_bytes()[16:24]) == (640, 480)


def test_only_the_file_itself_and_inline_urls_are_the_pages_own() -> None:
    page = "file:///tmp/report.html"
    assert is_own(f"{page}#rank-3", page)
    assert is_own("data:image/png;base64,AA", page)
    assert not is_own("file:///tmp/report.js", page)
    assert not is_own(f"{page}.js", page)
    assert not is_own("https://example.org/#file:///tmp/report.html", page)
