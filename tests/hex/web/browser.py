"""Drives headless Chromium by its DevTools protocol over two pipes, with Python's standard library."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

PATIENCE = 120  # seconds; a wait that works takes a hundredth of it


def find_chromium():
    """Returns the path of Chromium, or None."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if shutil.which(name):
            return shutil.which(name)
    return None


def eventually(condition, what):
    """Blocks until condition() is true, and returns its value."""
    deadline = time.monotonic() + PATIENCE
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError("waited in vain for: " + what)
        time.sleep(0.05)


class Browser:
    """A running browser. Chromium reads commands from descriptor 3 and writes answers to 4."""

    def __init__(self, program):
        self.profile = tempfile.mkdtemp(prefix="cariama-browser-")
        command_read, self.commands = os.pipe()
        self.answers, answer_write = os.pipe()
        shell = f'exec "$@" 3<&{command_read} 4>&{answer_write}'
        self.log = open(os.path.join(self.profile, "log"), "wb")
        self.process = subprocess.Popen(
            ["bash", "-c", shell, "browser", program, "--headless=new", "--no-sandbox",
             "--remote-debugging-pipe", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-extensions",
             "--force-color-profile=srgb", "--user-data-dir=" + self.profile],
            pass_fds=(command_read, answer_write), stdin=subprocess.DEVNULL, stdout=self.log,
            stderr=self.log)
        os.close(command_read)
        os.close(answer_write)
        self.received = b""
        self.number = 0
        self.events = []

    def close(self):
        try:
            self.call("Browser.close")
        except (AssertionError, OSError):
            self.process.kill()
        self.process.wait(PATIENCE)
        os.close(self.commands)
        os.close(self.answers)
        self.log.close()
        shutil.rmtree(self.profile, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def call(self, method, session=None, **parameters):
        """Sends a command and returns its result."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while True:
            answer = self.receive(deadline, method)
            if answer.get("id") == self.number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            if "method" in answer:
                self.events.append(answer)

    def receive(self, deadline, what):
        while b"\0" not in self.received:
            ready, _, _ = select.select([self.answers], [], [], max(0, deadline - time.monotonic()))
            assert ready, "the browser does not answer " + what
            more = os.read(self.answers, 1 << 20)
            assert more, "the browser has ended:\n" + self.read_log()
            self.received += more
        text, self.received = self.received.split(b"\0", 1)
        return json.loads(text)

    def read_log(self):
        with open(os.path.join(self.profile, "log"), "rb") as log:
            return log.read().decode(errors="replace")

    def open(self, url, width=1280, height=860, dark=False, phone=False):
        """Opens a tab in a window of its own, so that it is visible."""
        target = self.call("Target.createTarget", url="about:blank", newWindow=True)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = Tab(self, target, session)
        for domain in ("Page", "Runtime", "Log"):
            tab.call(domain + ".enable")
        tab.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                 deviceScaleFactor=2 if phone else 1, mobile=phone)
        tab.call("Emulation.setFocusEmulationEnabled", enabled=True)
        tab.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        tab.go(url)
        return tab


class Tab:
    """A tab of a Browser."""

    def __init__(self, browser, target, session):
        self.browser = browser
        self.target = target
        self.session = session

    def call(self, method, **parameters):
        return self.browser.call(method, self.session, **parameters)

    def go(self, url):
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def reload(self):
        self.evaluate("window.before_reload = true")
        self.call("Page.reload")
        self.wait("!window.before_reload && document.readyState === 'complete'")

    def close(self):
        self.browser.call("Target.closeTarget", targetId=self.target)

    def evaluate(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True,
                           returnByValue=True)
        assert "exceptionDetails" not in answer, f"{expression}: {answer['exceptionDetails']}"
        return answer["result"].get("value")

    def wait(self, expression):
        """Blocks until a JavaScript expression is true, and returns its value."""
        def holds():
            try:
                return self.evaluate(expression)
            except AssertionError:  # while a page is loaded, there is none to evaluate it in
                return False
        return eventually(holds, expression)

    def middle(self, selector):
        return self.evaluate(
            "(() => { const e = document.querySelector(%s); e.scrollIntoView({block: 'nearest'});"
            " const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()"
            % json.dumps(selector))

    def click(self, selector):
        x, y = self.middle(selector)
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def hover(self, selector):
        x, y = self.middle(selector)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, key):
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, text=text,
                  windowsVirtualKeyCode={"Enter": 13}.get(key, 0))
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key)

    def screenshot(self, path, whole=False):
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        with open(path, "wb") as file:
            file.write(base64.b64decode(answer["data"]))

    def errors(self):
        """Returns the errors of the page: exceptions, and what the browser has refused or not loaded."""
        found = []
        for event in self.browser.events:
            if event.get("sessionId") != self.session:
                continue
            if event["method"] == "Runtime.exceptionThrown":
                found.append(event["params"]["exceptionDetails"].get("text", "") + str(
                    event["params"]["exceptionDetails"].get("exception", {}).get("description")))
            elif event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
                found.append(event["params"]["entry"]["text"])
        return found
