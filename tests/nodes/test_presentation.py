"""How nodes are shown: few inputs at first sight, words for all of them, and nothing hidden that has to be set."""

import re

import pytest

from comfyui_otca.nodes import NODE_CLASS_MAPPINGS, labels, presentation, words

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


SEARCHES = {
    "train lora": {"MakeTrainable", "LoadFlowModel", "GRPOStep", "TrainingRun", "SaveLoRA"},
    "rlhf": {"GRPOStep", "MakeTrainable", "RewardVote"},
    "fine-tune": {"GRPOStep", "MatchingStep", "MakeTrainable"},
    "finetune": {"GRPOStep", "MatchingStep", "MakeTrainable"},
    "preference": {"PreferencePairs", "RewardPickScore", "RewardHPSv2"},
    "dpo": {"PreferencePairs", "MatchingStep"},
    "reward": {"RewardStack", "RewardHTTP"},
    "score image": {"ScoreImages", "RewardStack", "RewardAesthetic"},
    "aesthetic": {"RewardAesthetic"},
    "flux": {"LoadFlowModel", "MakeTrainable", "EmbeddedModel"},
    "grpo": {"GRPOStep", "SDESampler", "UniformWeights"},
}


@pytest.mark.parametrize(("typed", "wanted"), SEARCHES.items())
def test_what_people_type_finds_the_node(typed, wanted):
    assert wanted <= {node.__name__ for node in NODE_CLASS_MAPPINGS.values() if typed in node.SEARCH_ALIASES}


def test_every_node_has_words_to_find_it_by():
    assert set(words.SEARCH_ALIASES) == {node.__name__ for node in NODE_CLASS_MAPPINGS.values()}
    for name, node in NODES:
        aliases = node.SEARCH_ALIASES
        assert isinstance(aliases, list) and len(aliases) >= 3, name
        assert len(set(aliases)) == len(aliases) and all(alias == alias.lower().strip() for alias in aliases), name


def test_the_essentials_are_the_steps_of_the_method():
    named = {node.__name__: node.ESSENTIALS_CATEGORY for _, node in NODES if hasattr(node, "ESSENTIALS_CATEGORY")}
    assert named == dict.fromkeys(words.ESSENTIALS, "Training")
    stages = [NODE_CLASS_MAPPINGS[f"OTCA_{name}"].CATEGORY.removeprefix("OTCA/") for name in words.ESSENTIALS]
    assert stages == ["model", "model", "sampling", "rewards", "credit", "fusion", "training"]


@pytest.mark.parametrize(("name", "node"), NODES)
def test_every_input_and_output_has_words(name, node):
    for of, (_, options) in inputs(node).items():
        assert options["tooltip"].rstrip(".…?").strip() and options["display_name"].strip(), of
    tips = getattr(node, "OUTPUT_TOOLTIPS", ())
    assert len(tips) == len(node.RETURN_TYPES) == len(getattr(node, "RETURN_NAMES", ())) and all(tips)


@pytest.mark.parametrize(("name", "node"), NODES)
def test_names_on_a_node_tell_its_inputs_apart(name, node):
    shown = [options["display_name"] for _, options in inputs(node).values()]
    assert len(set(shown)) == len(shown)


def test_the_tooltip_says_how_an_input_is_called_that_is_shown_by_another_name():
    sampler, moca = (inputs(NODE_CLASS_MAPPINGS[name]) for name in ("OTCA_SDESampler", "OTCA_MOCAFuse"))
    assert sampler["eta"][1]["display_name"] == "amount of noise"
    assert sampler["eta"][1]["tooltip"].endswith("In files and messages: eta.")
    assert sampler["negative_prompt"][1]["display_name"] == "negative prompt"
    assert "In files" not in sampler["negative_prompt"][1]["tooltip"]
    assert moca["std_scope"][1]["tooltip"].endswith("In files and messages: std_scope.")


def test_a_socket_is_not_called_by_the_words_of_a_box_of_the_same_name():
    make = inputs(NODE_CLASS_MAPPINGS["OTCA_MakeTrainable"])
    assert make["clip"][1]["display_name"] == "clip" and "In files" not in make["clip"][1]["tooltip"]
    assert inputs(NODE_CLASS_MAPPINGS["OTCA_RewardClipT"])["clip"][1]["display_name"] == "bounds of the score"


def test_the_tables_of_words_name_inputs_that_there_are():
    known = {of for name, node in NODES for of in inputs(node)}
    known |= {f"{node.__name__}.{of}" for _, node in NODES for of in inputs(node)}
    assert set(labels.PLAIN) | set(labels.PLACEHOLDERS) <= known


def test_outputs_are_called_by_words_that_mean_one_thing():
    known = {f"{node.__name__}.{of}" for _, node in NODES for of in getattr(node, "RETURN_NAMES", ())}
    assert set(labels.OUTPUTS) <= known
    shown = {
        of: labels.output(*of.split(".")) for of in ("ScoreImages.places", "SpatialCredit.places", "SDESampler.images")
    }
    assert shown == {"ScoreImages.places": "ranks", "SpatialCredit.places": "regions", "SDESampler.images": "images"}


def test_tooltips_call_other_inputs_as_the_canvas_shows_them():
    """An input's name in files stands in its own tooltip's last sentence alone."""
    coded = {of for _, node in NODES for of in inputs(node) if "_" in of}
    for name, node in NODES:
        choices = {choice for type_, _ in inputs(node).values() if isinstance(type_, list) for choice in type_}
        for of, (_, options) in inputs(node).items():
            text = options["tooltip"].partition(" In files and messages:")[0]
            words_in_it = set(re.findall(r"\b[a-z]+(?:_[a-z0-9]+)+\b", text))
            assert not (words_in_it & coded) - choices, (name, of)


def test_text_boxes_that_begin_empty_say_what_goes_into_them():
    for name, node in NODES:
        for of, options in widgets(node).items():
            if options.get("default") == "" and inputs(node)[of][0] == "STRING":
                assert options.get("placeholder"), (name, of)
