"""A headless Chromium, and the few words of its DevTools protocol that a test of a page needs.

No driver lies between: aiohttp speaks WebSocket, and DevTools is JSON over that. A page keeps what was written to its console,
what was thrown, and what was requested, so that a test can say that there was nothing of it.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
KEYS = {
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowRight": 39,
    "ArrowDown": 40,
    "Home": 36,
    "End": 35,
    "Escape": 27,
    "Tab": 9,
    "Enter": 13,
}


UNTIL = """new Promise((go, fail) => {
  let looks = 0;
  const look = () => {
    let holds = false;
    try { holds = CONDITION; } catch {}
    if (holds) go(); else if (++looks > 600) fail(new Error(NEVER)); else setTimeout(look, 16);
  };
  look();
})"""


def find_chromium() -> str | None:
    return next((found for name in (os.environ.get("CHROMIUM", ""), *NAMES) if name and (found := shutil.which(name))), None)


@contextlib.contextmanager
def running_chromium(program: str, profile: Path) -> Iterator[str]:
    """Run Chromium; yields the address of its DevTools."""
    options = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--disable-component-update",
        "--no-first-run",
        "--hide-scrollbars",
        "--force-device-scale-factor=1",
        f"--user-data-dir={profile}",
        "--remote-debugging-port=0",
    ]
    process = subprocess.Popen(
        [program, *options, "about:blank"],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # it has child processes
    )
    assert process.stderr is not None
    try:
        said = []
        for line in process.stderr:
            said.append(line)
            if found := re.search(r"DevTools listening on (ws://\S+)", line):
                yield found[1]
                return
        raise RuntimeError(f"{program} did not start: {''.join(said)}")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stderr.close()


class Page:
    """A tab of the browser."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, session: str, target: str) -> None:
        self._socket, self._session, self.target = socket, session, target
        self._number = 0
        self.console: list[str] = []
        """The messages, warnings, errors and exceptions on the page's console."""
        self.requests: list[str] = []

    async def ask(self, method: str, **params: Any) -> Any:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        await self._socket.send_json({**message, "sessionId": self._session} if self._session else message)
        while True:
            said = json.loads((await self._socket.receive(timeout=60)).data)
            if said.get("id") == self._number:
                if "error" in said:
                    raise RuntimeError(f"{method}: {said['error']}")
                return said["result"]
            self._hear(said.get("method", ""), said.get("params", {}))

    def _hear(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.consoleAPICalled":
            self.console.append(" ".join(str(each.get("value", each.get("description"))) for each in params["args"]))
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.console.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Log.entryAdded":
            self.console.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    async def open(self, path: Path, *, width: int = 1300, height: int = 1000, dark: bool = False) -> None:
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.ask(f"{domain}.enable")
        await self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        await self.ask(
            "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        )
        await self.ask("Page.navigate", url=path.as_uri())
        # A page marks itself when its script has drawn it; a page without a script can only do so in its first tag.
        await self.until("document.readyState === 'complete' && document.documentElement.dataset.ready === 'yes'")

    async def run(self, script: str) -> Any:
        """Evaluate an expression; returns its value. Waits for a promise."""
        found = await self.ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"].get("exception", {}).get("description", script))
        return found["result"].get("value")

    async def until(self, condition: str) -> None:
        """Wait, frame by frame, until the condition holds."""
        await self.run(UNTIL.replace("CONDITION", condition).replace("NEVER", json.dumps(f"never: {condition}")))

    async def frame(self) -> None:
        """Wait until everything that was requested before is drawn."""
        await self.run("new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go)))")

    async def mouse(self, x: float, y: float, kind: str = "mouseMoved", **more: Any) -> None:
        await self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)
        await self.frame()

    async def click(self, selector: str) -> None:
        x, y = await self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center'}}); "
            "const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            await self.mouse(x, y, kind, button="left", clickCount=1)

    async def key(self, key: str, *, shift: bool = False) -> None:
        code: dict[str, Any] = {"key": key, "windowsVirtualKeyCode": KEYS.get(key, ord(key[0]) if len(key) == 1 else 0)}
        if key == "Enter" or len(key) == 1:
            code["text"] = "\r" if key == "Enter" else key
        for kind in ("keyDown", "keyUp"):
            await self.ask("Input.dispatchKeyEvent", type=kind, modifiers=8 if shift else 0, **code)
        await self.frame()

    async def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode((await self.ask("Page.captureScreenshot", format="png"))["data"]))


@contextlib.asynccontextmanager
async def new_page(devtools: str) -> AsyncIterator[Page]:
    async with aiohttp.ClientSession() as http, http.ws_connect(devtools, max_msg_size=0) as socket:
        browser = Page(socket, "", "")
        target = (await browser.ask("Target.createTarget", url="about:blank"))["targetId"]
        session = (await browser.ask("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
        page = Page(socket, session, target)
        page._number = 1000
        yield page
        page._session = ""
        await page.ask("Target.closeTarget", targetId=target)
