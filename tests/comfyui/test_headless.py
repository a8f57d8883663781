"""What leaves the canvas: the exported graph trains headlessly to the same numbers, and the adapter loads elsewhere."""

import base64
import json
from pathlib import Path

import pytest

from comfyui_otca.__main__ import main
from comfyui_otca.tools.canvases.templates import TEMPLATES

# Which renderer draws the nodes does not matter here.
in_one_renderer = pytest.mark.parametrize("open_canvas", ["classic"], indirect=True)

TRANSFORMER = Path(__file__).resolve().parents[2] / "assets" / "shapes-flux" / "transformer" / "config.json"


def otca(*arguments) -> int:
    return main([str(argument) for argument in arguments])


def read_metrics(file: Path) -> list[dict]:
    rows = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    return [
        {k: v for k, v in row.items() if not k.startswith("seconds/") and k != "samples_per_second"} for row in rows
    ]


@in_one_renderer
def test_the_exported_graph_trains_to_the_same_numbers(small, run_name, tmp_path, capsys):
    # Headlessly, auto keeps the autograd graph of the rollout where memory allows; on the canvas it never does.
    small.set({"3.keep_graph": "off", "12.iterations": 2})
    with small.page.expect_download() as download:
        small.page.evaluate("() => app.extensionManager.command.execute('OTCA.ExportHeadless')")
    exported = tmp_path / download.value.suggested_filename
    download.value.save_as(exported)
    commands = small.page.locator("dialog.otca-dialog[open]").inner_text()
    assert f"train {exported.name}" in commands
    small.page.keyboard.press("Escape")

    assert otca("validate", exported) == 0
    assert "error" not in capsys.readouterr().err
    assert otca("train", exported, "--iterations", 2, "--output", tmp_path / "run") == 0

    executions = small.run_and_wait(times=2)
    assert [execution.end for execution in executions] == ["execution_success"] * 2
    headless = read_metrics(tmp_path / "run" / "metrics.jsonl")
    canvas = read_metrics(small.comfyui.base / "output" / "otca" / run_name / "metrics.jsonl")
    assert len(headless) == len(canvas) == 2
    for ours, theirs in zip(canvas, headless, strict=True):
        assert ours.keys() == theirs.keys()
        different = {
            key: (ours[key], theirs[key]) for key in ours if ours[key] != pytest.approx(theirs[key], rel=1e-4, abs=1e-9)
        }
        assert not different


def test_the_canvas_own_format_is_refused_with_the_way_to_export(capsys):
    assert otca("validate", TEMPLATES["otca"].canvas) == 2
    assert "Export (API)" in capsys.readouterr().err


@pytest.fixture
def saved_lora(small, run_name):
    (execution,) = small.run_and_wait()
    assert execution.end == "execution_success", execution.detail
    return small.comfyui.base / "models" / "loras" / f"{run_name}.safetensors"


@in_one_renderer
def test_every_key_of_the_saved_lora_is_matched_by_the_stock_loader(saved_lora, comfyui, stock_loader):
    assert saved_lora.name in comfyui.get("/object_info/LoraLoader")["LoraLoader"]["input"]["required"]["lora_name"][0]
    found = stock_loader(saved_lora, TRANSFORMER)
    assert found["log"] == [], "ComfyUI warns of keys that it does not know"
    assert found["patches"] == found["modules"] == 45
    assert found["largest"] > 1e-6 and found["error"] < 1e-6, "the patched weight is the adapter's B·A"


@in_one_renderer
def test_a_saved_lora_dropped_on_the_canvas_opens_its_workflow(saved_lora, canvas):
    queued = canvas.prompt()
    canvas.page.evaluate("() => app.graph.clear()")
    canvas.page.evaluate(
        """([name, content]) => {
            const bytes = Uint8Array.from(atob(content), letter => letter.charCodeAt(0));
            const dataTransfer = new DataTransfer();
            dataTransfer.items.add(new File([bytes], name));
            const at = { bubbles: true, cancelable: true, clientX: 800, clientY: 450, dataTransfer };
            document.querySelector("#graph-canvas").dispatchEvent(new DragEvent("drop", at));
        }""",
        [saved_lora.name, base64.b64encode(saved_lora.read_bytes()).decode()],
    )
    canvas.wait("() => app.graph.nodes.some(node => node.type === 'OTCA_SaveLoRA')")
    opened = canvas.prompt()
    assert {key: node["class_type"] for key, node in opened.items()} == {k: n["class_type"] for k, n in queued.items()}
    assert opened["13"]["inputs"] == queued["13"]["inputs"] and opened["3"]["inputs"]["group_size"] == 4
