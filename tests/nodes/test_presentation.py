"""How nodes are shown: few inputs at first sight, words for all of them, and nothing hidden that has to be set."""

import re

from comfyui_otca.nodes import NODE_CLASS_MAPPINGS

NODES = list(NODE_CLASS_MAPPINGS.items())


def inputs(node):
    declared = node.INPUT_TYPES()
    return {name: spec for section in ("required", "optional") for name, spec in declared.get(section, {}).items()}


def is_widget(type_):
    return isinstance(type_, list) or type_ in ("INT", "FLOAT", "STRING", "BOOLEAN")


def widgets(node):
    return {name: options for name, (type_, options) in inputs(node).items() if is_widget(type_)}


def test_a_node_shows_few_widgets_at_first_sight():
    for name, node in NODES:
        shown = [widget for widget, options in widgets(node).items() if not options.get("advanced")]
        assert len(shown) <= 6 and (shown or not widgets(node)), (name, shown)


def test_what_is_not_shown_has_a_value_that_will_do_and_is_not_a_socket():
    for name, node in NODES:
        for of, (type_, options) in inputs(node).items():
            assert not options.get("advanced") or ("default" in options and is_widget(type_)), (name, of)


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


def test_what_people_type_finds_the_node():
    for typed, wanted in SEARCHES.items():
        assert wanted <= {node.__name__ for _, node in NODES if typed in node.SEARCH_ALIASES}, typed


def test_every_node_has_words_to_find_it_by():
    for name, node in NODES:
        aliases = vars(node)["SEARCH_ALIASES"]
        assert isinstance(aliases, list) and len(aliases) >= 3, name
        assert len(set(aliases)) == len(aliases) and all(alias == alias.lower().strip() for alias in aliases), name


def test_the_essentials_are_the_steps_of_the_method():
    """The loader of folders and the one of ComfyUI's models are one step of it."""
    essentials = [node for _, node in NODES if getattr(node, "ESSENTIALS_CATEGORY", None) == "Training"]
    assert {node.__name__: node.CATEGORY.removeprefix("OTCA/") for node in essentials} == {
        "LoadFlowModel": "model",
        "MakeTrainable": "model",
        "SDESampler": "sampling",
        "RewardStack": "rewards",
        "TCDWeights": "credit",
        "MOCAFuse": "fusion",
        "GRPOStep": "training",
    }


def test_every_input_and_output_has_words_that_tell_it_apart():
    for name, node in NODES:
        for of, (_, options) in inputs(node).items():
            assert options["tooltip"].rstrip(".…?").strip() and options["display_name"].strip(), (name, of)
        shown = [options["display_name"] for _, options in inputs(node).values()]
        assert len(set(shown)) == len(shown), name
        tips = getattr(node, "OUTPUT_TOOLTIPS", ())
        assert len(tips) == len(node.RETURN_TYPES) == len(getattr(node, "RETURN_NAMES", ())) and all(tips), name
        assert set(getattr(node, "OUTPUT_LABELS", ())) <= set(getattr(node, "RETURN_NAMES", ())), name


def test_the_tooltip_says_how_an_input_is_called_that_is_shown_by_another_name():
    sampler, moca = (inputs(NODE_CLASS_MAPPINGS[name]) for name in ("OTCA_SDESampler", "OTCA_MOCAFuse"))
    assert sampler["eta"][1]["display_name"] == "amount of noise"
    assert sampler["eta"][1]["tooltip"].endswith("In files and messages: eta.")
    assert sampler["negative_prompt"][1]["display_name"] == "negative prompt"
    assert "In files" not in sampler["negative_prompt"][1]["tooltip"]
    assert moca["std_scope"][1]["tooltip"].endswith("In files and messages: std_scope.")


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
