"""What all pages share: header, collapsed text, commands with a copy button, tables that scroll on a phone."""

from __future__ import annotations

from stepsnet.report.html import collapsed, command, page, section
from stepsnet.report.table import Table


def test_the_header_has_the_verdict_and_the_key_numbers() -> None:
    document = page("Run <1>", "a lead", [], verdict="It works", color="good", facts=[("loss", "0.5")])
    header = document.partition("<header>")[2].partition("</header>")[0]
    assert "<h1>Run &lt;1&gt;</h1>" in header
    assert '<p class="verdict good">It works</p>' in header
    assert "<dt>loss</dt><dd>0.5</dd>" in header


def test_a_command_has_a_button_that_copies_the_text_before_it() -> None:
    document = page("t", "", [section("Commands", command("stepsnet eval 'a&b'"))])
    assert "<pre>stepsnet eval &#x27;a&amp;b&#x27;</pre><button" in document
    assert "button.previousElementSibling" in document
    assert "previousElementSibling" not in page("t", "", [])


def test_a_configuration_is_collapsed() -> None:
    assert collapsed("Configuration", "a: 1") == (
        "<details><summary>Configuration</summary><pre>a: 1</pre></details>"
    )


def test_every_table_scrolls_on_its_own_and_the_page_fits_a_phone() -> None:
    document = page("t", "", [Table(["name", "loss"], [["a", "1"]]).html()])
    assert document.index('class="scroll"') < document.index("<table")
    assert 'name="viewport" content="width=device-width' in document


def test_there_is_a_dark_and_a_light_look() -> None:
    document = page("t", "", [])
    assert "color-scheme: light dark" in document
    assert "prefers-color-scheme: dark" in document
