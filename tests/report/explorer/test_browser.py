"""The explorer in a real browser: all registered models, the keyboard, dragging, the address, a pasted config.json."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from stepsnet.cli.models import COSTS as COUNTED
from stepsnet.report.explorer import explorer_page
from tests.report.browser import NEEDS_CHROMIUM, show
from tests.report.explorer.polynomials import METRICS

pytestmark = NEEDS_CHROMIUM

# Runs after the page's own script. Every entry of `found` is what the page shows, read from its elements.
SCRIPT = """
const found = {}, read = () => ({
  plan: /plan="([^"]*)"/.exec($("as-python").textContent)[1], hash: location.hash, focus: document.activeElement.id,
  json: JSON.parse($("as-json").textContent), command: $("as-command").textContent, problem: $("problem").textContent,
  cost: Object.fromEntries([...document.querySelectorAll("#costs tr[data-metric]")].map((row) =>
    [row.dataset.metric, row.querySelector("td").dataset.exact])),
  handles: document.querySelectorAll('#drawing [role="slider"]').length,
  rects: document.querySelectorAll("#drawing rect").length,
  wider: document.documentElement.scrollWidth > innerWidth,
});
const set = (id, value) => { $(id).value = value; $(id).dispatchEvent(new Event("change")); };
const key = (id, name) => $(id).dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true }));
const drag = (id, x, y) => {
  $(id).dispatchEvent(new PointerEvent("pointerdown", { clientX: 100, clientY: 100, bubbles: true }));
  dispatchEvent(new PointerEvent("pointermove", { clientX: 100 + x, clientY: 100 + y }));
  dispatchEvent(new PointerEvent("pointerup", {}));
};
try {
  found.start = read();
  found.models = {};
  for (const name of Object.keys(DATA.models)) { set("model", name); found.models[name] = read(); }
  set("model", "steps_deit_small");
  $("width-0-0").focus(); key("width-0-0", "ArrowUp"); found.wider = read();
  key("depth-0-1", "ArrowLeft"); found.shallower = read();
  set("model", "steps_deit_small"); drag("width-0-1", 0, -40); found.dragged = read();
  set("model", "steps_deit_small"); drag("depth-0-1", 60, 0); found.deeper = read();
  found.copied = []; Object.defineProperty(navigator, "clipboard", {
    value: { writeText: (text) => { found.copied.push(text); return Promise.resolve(); } } });
  found.texts = [...document.querySelectorAll(".command button")].map((button) => {
    button.click(); return button.previousElementSibling.textContent; });
  set("model", "steps_deit_small"); set("lock", "macs"); set("depth-input-0-0", "20"); found.locked = read();
  set("lock", ""); set("width-input-0-0", "300"); found.refused = read();
  set("model", "deit_small"); $("add-0").click(); found.added = read();
  set("model", "steps_transformer_30m"); set("tokens", "256"); found.tokens = read();
  $("config").value = JSON.stringify({ model_type: "llama", hidden_size: 256, num_hidden_layers: 4,
    num_attention_heads: 8, num_key_value_heads: 2, intermediate_size: 688, vocab_size: 1000 });
  $("use-config").click(); $("add-0").click(); found.config = read();
  $("config").value = "{"; $("use-config").click(); found.broken = read();
  location.hash = "#model=steps_deit_tiny&plan=96x2,192x3&lock=params"; readHash(); found.hash = read();
} catch (error) { found.error = error.stack; }
const show = () => {
  found.buttons = [...document.querySelectorAll(".command button")].map((button) => button.textContent);
  document.body.append(html("pre", { id: "found" }, JSON.stringify(found)));
};
Promise.resolve().then(() => Promise.resolve()).then(show);  // after the answers of the clipboard
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the page showed after each action."""
    folder = tmp_path_factory.mktemp("browser")
    path = folder / "explorer.html"
    path.write_text(explorer_page().replace("</body>", f"<script>{SCRIPT}</script></body>"), encoding="utf-8")
    return show(path, "--window-size=390,800")


def test_every_registered_model_shows_what_python_counts(found: dict[str, Any]) -> None:
    rows = json.loads(COUNTED.read_text(encoding="utf-8"))
    expected = {row["name"]: {metric: row[metric] for metric in METRICS} for row in rows}
    shown = {name: {key: int(value) for key, value in seen["cost"].items()} for name, seen in found["models"].items()}
    without = {name: {"kv_cache": 0, **costs} for name, costs in shown.items()}  # images have no row for the cache
    assert without == expected


def test_every_registered_model_shows_its_plan_and_a_slider_for_each_width_and_depth(found: dict[str, Any]) -> None:
    for row in json.loads(COUNTED.read_text(encoding="utf-8")):
        seen = found["models"][row["name"]]
        steps = len(re.findall(r"\d+x\d+", row["plan"]))
        assert seen["plan"] == row["plan"]
        assert steps <= seen["handles"] <= 2 * steps
        assert seen["rects"] >= steps


def test_many_blocks_are_drawn_as_one(found: dict[str, Any]) -> None:
    """96 blocks do not fit on a phone: one bar a step, of up to three colours."""
    assert found["models"]["steps_deit_deep_d96"]["rects"] <= 3 * 7
    assert found["models"]["steps_deit_small"]["rects"] > 24


def test_nothing_is_wider_than_a_phone(found: dict[str, Any]) -> None:
    assert [name for name, seen in found["models"].items() if seen["wider"]] == []


def test_the_keyboard_changes_widths_and_depths(found: dict[str, Any]) -> None:
    assert found["wider"]["plan"] == "200x12, 272x6, 384x6"
    assert found["wider"]["focus"] == "width-0-0"
    assert found["shallower"]["plan"] == "200x12, 272x5, 384x6"


def test_a_width_can_be_dragged(found: dict[str, Any]) -> None:
    width = int(re.findall(r"\d+", found["dragged"]["plan"])[2])
    assert 272 < width < 384


def test_a_depth_can_be_dragged(found: dict[str, Any]) -> None:
    first, second, third = re.findall(r"(\d+)x(\d+)", found["deeper"]["plan"])
    assert (first, third) == (("192", "12"), ("384", "6"))
    assert second[0] == "272"
    assert int(second[1]) > 6


def test_the_buttons_copy_python_command_and_json(found: dict[str, Any]) -> None:
    assert found["copied"] == found["texts"]
    python, command, document = found["copied"]
    assert found["deeper"]["plan"] in python
    assert command.startswith("stepsnet info steps_deit_small --plan ")
    assert json.loads(document)["plan"] == found["deeper"]["plan"]
    assert found["buttons"] == ["Copied"] * 3


def test_a_locked_budget_is_kept(found: dict[str, Any]) -> None:
    assert found["locked"]["plan"].startswith("192x20, ")
    budget = int(found["models"]["steps_deit_small"]["cost"]["macs"])
    assert int(found["locked"]["cost"]["macs"]) == pytest.approx(budget, rel=0.03)
    assert "lock=macs" in found["locked"]["hash"]


def test_a_plan_that_cannot_be_is_refused(found: dict[str, Any]) -> None:
    assert found["refused"]["plan"] == found["locked"]["plan"]
    assert "every step must be wider than the one before" in found["refused"]["problem"]


def test_a_step_is_added_by_the_papers_rule(found: dict[str, Any]) -> None:
    assert found["added"]["plan"] == "272x12, 384x6"


def test_tokens_change_macs_and_the_cache(found: dict[str, Any]) -> None:
    before, after = (seen["json"] for seen in (found["models"]["steps_transformer_30m"], found["tokens"]))
    assert after["tokens"] == 256
    assert after["kv_cache"] == 2 * before["kv_cache"]
    assert after["params"] == before["params"]


def test_a_pasted_configuration_is_taken(found: dict[str, Any]) -> None:
    seen = found["config"]
    assert seen["json"]["model"] == "llama"
    assert seen["command"].startswith("stepsnet stepify hf:FOLDER --plan ")
    assert "config=" in seen["hash"]
    assert found["broken"]["problem"].startswith("Not possible: ")


def test_the_address_is_the_state(found: dict[str, Any]) -> None:
    assert found["hash"]["plan"] == "96x2, 192x3"
    assert found["hash"]["command"] == 'stepsnet info steps_deit_tiny --plan "96x2, 192x3"'
