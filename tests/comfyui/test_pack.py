"""The pack in ComfyUI's server, without a page."""

from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.tests.comfyui.server import PACK
from comfyui_otca.tools.canvases.templates import TEMPLATES


def test_the_pack_loads_without_a_complaint(comfyui):
    log = comfyui.log()
    line = next(line for line in log.splitlines() if line.endswith(f"custom_nodes/{PACK}"))
    assert "seconds" in line and "FAILED" not in line
    assert comfyui.complaints(end=comfyui.up_at) == []


def test_every_node_is_there(comfyui):
    offered = comfyui.object_info
    ours = {name for name, node in offered.items() if node["python_module"] == f"custom_nodes.{PACK}"}
    assert ours == set(NODE_CLASS_MAPPINGS)
    for name in ours:
        assert offered[name]["display_name"] == NODE_CLASS_MAPPINGS[name].TITLE


def test_the_example_workflows_are_templates_with_pictures(comfyui):
    names = comfyui.get("/api/workflow_templates")[PACK]
    assert sorted(names) == sorted(template.title for template in TEMPLATES.values())
