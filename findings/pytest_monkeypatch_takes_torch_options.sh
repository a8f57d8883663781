#!/usr/bin/env bash
# pytest 9.2.0 with torch 2.13: after `monkeypatch.setattr` of an option of torch's compiler has been undone, the option is gone.
#
# Seen: torch._dynamo.config answers for its options by methods, so none stands in its __dict__. monkeypatch takes such a name for
# one that was not there, and deletes it in place of putting the old value back. torch then raises AttributeError for whoever
# reads it next, in another test. unittest.mock and the config's own `patch` put the value back; so does pytest 8.4.2.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "torch==2.13.0" "numpy==2.3.5" "pytest==9.2.0"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --target "$folder/older" "pytest==8.4.2"
cat > "$folder/look.py" <<'PY'
from unittest import mock

import pytest
import torch._dynamo

config, ways = torch._dynamo.config, {}


def left(name):
    return getattr(config, name, "gone")


limit = config.recompile_limit
with mock.patch.object(config, "recompile_limit", limit + 1):
    pass
ways["mock"] = left("recompile_limit") == limit
with config.patch(recompile_limit=limit + 1):
    pass
ways["patch"] = left("recompile_limit") == limit
with pytest.MonkeyPatch.context() as monkeypatch:
    monkeypatch.setattr(config, "recompile_limit", limit + 1)
ways["monkeypatch"] = left("recompile_limit") == limit
print(pytest.__version__, ways)
PY
now=$("$folder/venv/bin/python" "$folder/look.py" 2>/dev/null)
before=$(PYTHONPATH="$folder/older" "$folder/venv/bin/python" "$folder/look.py" 2>/dev/null)
printf '%s\n' "$now" "$before"
[ "$now" = "9.2.0 {'mock': True, 'patch': True, 'monkeypatch': False}" ]
[ "$before" = "8.4.2 {'mock': True, 'patch': True, 'monkeypatch': True}" ]
