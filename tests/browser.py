"""Opens a page of ours in a real Chromium that has no network, and notes what goes wrong in it.

Uses the system's Chromium (`tests/setup/packages.sh`); playwright's own browsers are not needed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page, Route

COMMANDS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# no name is found and the only way out is closed, also for
# requests that the route below does not see, such as that of a web socket
NO_NETWORK = (
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--proxy-server=127.0.0.1:9",
    "--proxy-bypass-list=<-loopback>",
)
# what a page holds itself; such URLs ask nobody
INLINE_URLS = ("data:", "blob:", "about:")


class OpenPage:
    """A page as it is now, and what it has complained about and asked for since it was opened."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self._url = url
        self._console: list[str] = []
        self._requests: list[str] = []
        page.on("console", self._note_console)
        page.on("pageerror", lambda error: self._console.append(f"exception: {error}"))
        page.on("request", lambda request: self._note_request(request.url))
        page.on("websocket", lambda socket: self._note_request(socket.url))

    @property
    def console(self) -> list[str]:
        """Errors and warnings as `error: text`, uncaught exceptions as `exception: text`."""
        self._settle()
        return list(self._console)

    @property
    def requests(self) -> list[str]:
        """URLs asked for other than the file's own, in order; all of them were refused."""
        self._settle()
        return list(self._requests)

    def screenshot(self, path: Path) -> None:
        """Write what the window shows to `path`, as PNG."""
        self.page.screenshot(path=path)

    def _note_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning", "assert"):
            self._console.append(f"{message.type}: {message.text}")

    def _note_request(self, url: str) -> None:
        if not is_own(url, self._url):
            self._requests.append(url)

    def _settle(self) -> None:
        """Let the page draw twice; what it did until then has been told by the time this ends."""
        self.page.evaluate(
            "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )


def is_own(url: str, page_url: str) -> bool:
    """Whether `url` is the opened page itself (any place in it) or something inline."""
    return url.split("#")[0] == page_url or url.startswith(INLINE_URLS)


def find_chromium() -> Path | None:
    """A Chromium that runs and can read every file, or None.

    Ubuntu's `chromium-browser` is a script that asks for a snap, and a snap sees no /tmp.
    """
    for command in COMMANDS:
        found = shutil.which(command)
        if found and not Path(found).resolve().is_relative_to("/snap"):
            version = subprocess.run([found, "--version"], capture_output=True, check=False)
            if version.returncode == 0 and b"snap" not in version.stdout:
                return Path(found)
    return None


@pytest.fixture(scope="module")
def _chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser per module: playwright keeps an event loop in this thread until it ends."""
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed (make setup)"
    )
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("no Chromium here (Debian: make setup; elsewhere: Google's package)")
    # as root Chromium refuses to run inside its sandbox
    own = ["--no-sandbox"] if os.geteuid() == 0 else []
    home = tmp_path_factory.mktemp("chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium,
            args=[*own, *NO_NETWORK],
            # leaves nothing in the user's home
            env={**os.environ, "HOME": str(home)},
        )
        try:
            yield browser
        finally:
            browser.close()


@pytest.fixture
def browser_page(_chromium: Browser) -> Iterator[Callable[..., OpenPage]]:
    """`open_page(path, width=1280, height=900)` opens a file and returns an OpenPage.

    Pages live until the end of the test. Skips where playwright or Chromium is missing.
    """
    contexts = []

    def open_page(path: Path, width: int = 1280, height: int = 900) -> OpenPage:
        url = path.resolve().as_uri()
        context = _chromium.new_context(
            viewport={"width": width, "height": height}, service_workers="block"
        )
        contexts.append(context)

        def answer(route: Route) -> None:
            if is_own(route.request.url, url):
                route.continue_()
            else:
                route.abort("internetdisconnected")

        context.route("**/*", answer)
        opened = OpenPage(context.new_page(), url)
        opened.page.goto(url)
        return opened

    yield open_page
    for context in contexts:
        context.close()
