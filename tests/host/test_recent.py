from __future__ import annotations

import pytest

from comfyui_otca.host.recent import Recent


def test_the_longest_unused_go_first_by_their_size():
    made = []
    texts = Recent(6, len)
    for key in ("a", "bb", "ccc", "a"):
        texts.use(key, lambda key=key: made.append(key) or key)
    assert made == list("a") + ["bb", "ccc"] and list(texts) == ["bb", "ccc", "a"]
    texts.use("d", lambda: "d")
    assert list(texts) == ["ccc", "a", "d"]
    texts.use("eeeeeeee", lambda: "eeeeeeee")
    assert list(texts) == ["eeeeeeee"], "the latest stays, however large"
    texts.use("f", lambda: "f", least=2)
    assert list(texts) == ["eeeeeeee", "f"]
    texts.trim(0)
    assert list(texts) == ["f"]
    with pytest.raises(KeyError):
        texts.use("a")
