"""How nodes are shown: few inputs at first sight, words for all of them, and nothing hidden that has to be set."""

import pytest

from comfyui_otca.nodes import NODE_CLASS_MAPPINGS, presentation

NODES = list(NODE_CLASS_MAPPINGS.items())


def inputs(node):
    declared = node.INPUT_TYPES()
    return {name: spec for section in ("required", "optional") for name, spec in declared.get(section, {}).items()}


def widgets(node):
    return {name: options for name, (type_, options) in inputs(node).items() if presentation.is_widget(type_)}


@pytest.mark.parametrize(("name", "node"), NODES)
def test_a_node_shows_few_widgets_at_first_sight(name, node):
    shown = [widget for widget, options in widgets(node).items() if not options.get("advanced")]
    assert len(shown) <= 6, shown
    assert shown or not widgets(node)


@pytest.mark.parametrize(("name", "node"), NODES)
def test_what_is_not_shown_has_a_value_that_will_do(name, node):
    assert not [
        widget for widget, options in widgets(node).items() if options.get("advanced") and "default" not in options
    ]


def test_the_table_names_widgets_that_there_are():
    classes = {node.__name__: node for node in NODE_CLASS_MAPPINGS.values()}
    for name, shown in presentation.SHOWN_FIRST.items():
        assert set(shown) <= set(widgets(classes[name])), name


def test_sockets_are_always_shown():
    assert not [
        (name, socket)
        for name, node in NODES
        for socket, (type_, options) in inputs(node).items()
        if not presentation.is_widget(type_) and options.get("advanced")
    ]
