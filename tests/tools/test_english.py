"""Words that a reader of the field trips over, as tools/english.py counts them."""

from comfyui_otca.tools import english


def test_names_and_docstrings_that_do_not_say_what_they_are(tmp_path):
    code = '"""What it is."""\ndef f():\n    """The mean."""\n    found = 1\n    return [each for each in found]\n'
    (tmp_path / "a.py").write_text(code)
    counted = sorted(english.voice(tmp_path / "a.py"))
    assert counted == [("docstrings", 1, "What"), ("names", 4, "found"), ("names", 5, "each")]
