#!/usr/bin/env bash
# Pillow 12.0.0: a grey PNG of 16 bits becomes white by convert("RGB"): values above 255 are cut off, and not divided.
#
# Seen: a file whose one row has the levels 0, 25700 and 65535 (which are 0, 100 and 255 of 8 bits) has the mode I;16, and
# convert("RGB") gives 0, 255, 255. ImageMagick, browsers and every viewer show 0, 100, 255.
# Who scores or trains on scans by convert("RGB") sees white paper. Divide by 257 first.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "pillow==12.0.0" "numpy==2.3.5"
"$folder/venv/bin/python" - "$folder/grey.png" <<'PY'
import sys

import numpy as np
from PIL import Image

Image.fromarray(np.array([[0, 25700, 65535]], np.uint16)).save(sys.argv[1])
picture = Image.open(sys.argv[1])
seen = np.asarray(picture.convert("RGB"))[0, :, 0].tolist()
print(picture.mode, seen)
assert (picture.mode, seen) == ("I;16", [0, 255, 255])
PY
