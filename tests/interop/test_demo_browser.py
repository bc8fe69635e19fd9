"""The page in a real browser, headless Chromium: `make test-browser`."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys

import pytest

from tests.fixtures import corpus

pytestmark = pytest.mark.browser
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
if not (CHROMIUM and DRIVER):
    pytest.skip("needs Chromium: Debian's packages chromium and chromium-driver", allow_module_level=True)
NEEDS = 'needs pip install "vanilla-transformer[browser]"'
pytest.importorskip("gradio", reason=NEEDS)
webdriver = pytest.importorskip("selenium.webdriver", reason=NEEDS)
ui = pytest.importorskip("selenium.webdriver.support.ui", reason=NEEDS)

OPTIONS = (
    "headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking",
    "disable-component-update", "disable-sync", "window-size=1100,1500",
)  # fmt: skip
PATIENCE = 60  # seconds
SOURCES = [source for source, _ in corpus(5, 2700, 450)]


@pytest.fixture(scope="module")
def address(trained):
    """Where `vanilla demo` serves the page."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "modeling_vanilla.scripts.main", "demo", str(trained), "--port", str(port)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    for line in process.stderr:
        if found := re.search(r"http://127\.0\.0\.1:\d+", line):
            break
    yield found.group()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=PATIENCE) == 0


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for option in (*OPTIONS, f"user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(f"--{option}")
    options.set_capability("goog:loggingPrefs", {"performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


class Page:
    """What a reader sees and does there."""

    def __init__(self, browser, address):
        self.browser = browser
        browser.get(address)
        self.text = self.wait(lambda: self.all("#text textarea"))[0]

    def wait(self, condition):
        return ui.WebDriverWait(self.browser, PATIENCE).until(lambda _: condition())

    def all(self, selector):
        return self.browser.find_elements("css selector", selector)

    def value(self, selector):
        return self.all(selector)[0].get_attribute("value")

    def type(self, text):
        """In the place of what stands there."""
        self.text.send_keys(webdriver.Keys.CONTROL + "a", webdriver.Keys.BACKSPACE)
        self.text.send_keys(text)

    def translate(self, text):
        """Types, presses the button and waits for a translation other than before; returns it."""
        before = self.value("#translation textarea")
        self.type(text)
        self.all("#translate")[0].click()
        return self.wait(lambda: (now := self.value("#translation textarea")) != before and now)

    def picture(self, other_than=None):
        """The attention's picture, once it is there and another one."""
        sources = lambda: [image.get_attribute("src") for image in self.all("#attention img")]  # noqa: E731
        return self.wait(lambda: (now := sources()) and now[0] != other_than and now[0])

    def choose(self, group, label):
        next(option for option in self.all(f"#{group} label") if option.text == label).click()


@pytest.fixture
def page(browser, address):
    return Page(browser, address)


def test_type_translate_and_look_at_heads_and_layers(page, trained):
    from modeling_vanilla.decoding import Translator

    (expected,) = Translator.from_pretrained(trained).translate(SOURCES[:1], n_best=4)
    assert page.translate(SOURCES[0]) == expected.text
    rows = page.wait(lambda: page.all("#rows")[0].text)
    for text, score in expected.n_best:
        assert text in rows
        assert f"{score:.3f}" in rows
    mean = page.picture()
    assert mean.startswith("data:image/svg+xml")
    width = page.all("#attention img")[0].size["width"]
    assert width > 200, "it is drawn, not an empty place"
    page.choose("head", "1")
    one = page.picture(other_than=mean)
    page.choose("head", "0")
    page.picture(other_than=one)
    page.choose("head", "mean")
    page.wait(lambda: page.picture() == mean)


def test_several_lines_and_the_keyboard(page):
    before = page.value("#translation textarea")
    page.text.send_keys("\n\n".join(SOURCES[:2]) + webdriver.Keys.SHIFT + webdriver.Keys.ENTER)
    lines = page.wait(lambda: (now := page.value("#translation textarea")) != before and now).split("\n")
    assert [bool(line) for line in lines] == [True, False, True]
    first = page.picture()
    page.wait(lambda: page.all("#sentence input"))[0].click()
    page.wait(lambda: page.all("#sentence [role=option]"))[1].click()
    page.picture(other_than=first)


def test_no_text_and_far_too_much(page):
    page.translate(SOURCES[0])
    page.picture()
    page.type("")
    page.all("#translate")[0].click()
    page.wait(lambda: not page.all("#attention img"))
    assert page.value("#translation textarea") == ""
    page.browser.execute_script(
        "arguments[0].value = 'a'.repeat(10001); arguments[0].dispatchEvent(new Event('input'))", page.text
    )
    page.all("#translate")[0].click()
    page.wait(lambda: "this page takes 10,000" in page.browser.find_element("tag name", "body").text)


def test_nothing_comes_from_another_machine(browser, page, address):
    page.translate(SOURCES[1])
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    addresses = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert any(url.startswith(address) for url in addresses)
    assert not [url for url in addresses if re.match("(http|ws)", url) and not url.startswith(address)]
