"""What the page shows of a refused value, in every ComfyUI that is there and in both of its renderers."""

from __future__ import annotations

from comfyui_otca.tools.canvases.templates import TEMPLATES

REFUSE = "async () => { await app.queuePrompt(0, 1); return app.lastNodeErrors; }"


def test_a_refused_value_of_a_hidden_input_is_shown(canvas):
    canvas.expected += ["/prompt", "Failed to validate", "clip", "OTCA_RewardClipT 4:"]
    canvas.load(TEMPLATES["otca"].canvas)
    canvas.show(4)
    shown = "() => Boolean(app.graph.getNodeById(4).showAdvanced)"
    assert not canvas.page.evaluate(shown)
    canvas.set({"4.clip": "high, low"})
    errors = canvas.page.evaluate(REFUSE)
    (error,) = errors["4"]["errors"]
    assert error["extra_info"]["input_name"] == "clip", errors
    assert error["details"].startswith("'high, low' ") and ". Fix: " in error["details"]
    canvas.wait(shown)
    if canvas.renderer == "nodes2":
        node = canvas.page.locator('[data-node-id="4"]')
        node.locator('input[aria-label="clip"]').wait_for()
        button = node.get_by_test_id("advanced-inputs-button")
        assert button.inner_text().strip().startswith("Hide"), "it says what it does next"
    else:
        assert not canvas.page.evaluate("() => app.graph.getNodeById(4).widgets.find(w => w.name === 'clip').hidden")
    canvas.page.keyboard.press("Escape")  # the dialog with the errors
