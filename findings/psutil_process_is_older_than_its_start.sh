#!/usr/bin/env bash
# psutil 7.2.2 on Linux: a process can be older, by up to a second, than the moment just before it was started.
#
# Seen: create_time() is the moment of booting, in whole seconds, plus the kernel's hundredths since then; the part of a second at
# which the machine booted is dropped. So it is early by that part, the same for every process until the next boot, and a comparison
# with time.time() that allows for less than a second holds on some boots and not on others. Two such times compare well.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "psutil==7.2.2"
"$folder/venv/bin/python" - <<'PY'
import os
import subprocess
import sys
import time

import psutil

child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
with open(f"/proc/{child.pid}/stat") as file:
    ticks = int(file.read().rsplit(")", 1)[1].split()[19])
since_boot = ticks / os.sysconf("SC_CLK_TCK")
booted = psutil.Process(child.pid).create_time() - since_boot
exact = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
child.communicate(b"\n")
print(psutil.__version__, {"booted": booted, "by the clocks": round(exact, 2), "early by": round(exact - booted, 2)})
assert abs(booted - round(booted)) < 0.001
PY
