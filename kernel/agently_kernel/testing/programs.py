"""Programs that the contract tests run inside a sandbox. They print JSON or one word, and end by themselves."""

from __future__ import annotations

LOOK_AROUND = """
import ctypes, json, os, socket, sys
host = json.loads(sys.stdin.read())
seen = {}

def attempt(name, what):
    try:
        seen[name] = what()
    except BaseException as error:
        seen[name] = "refused: " + type(error).__name__

def connect():
    with socket.create_connection(("127.0.0.1", host["port"]), timeout=3):
        return "connected"

def status(field):
    with open("/proc/self/status") as lines:
        return next(line.split()[1] for line in lines if line.startswith(field + ":"))

def new_user_namespace():
    libc = ctypes.CDLL(None, use_errno=True)
    return "made" if libc.unshare(0x10000000) == 0 else "refused: errno %d" % ctypes.get_errno()

attempt("read_canary", lambda: open(host["canary"]).read())
attempt("list_folder", lambda: os.listdir(os.path.dirname(host["canary"])))
attempt("write_beside_canary", lambda: open(host["canary"] + ".written", "w").write("x"))
attempt("signal_host", lambda: os.kill(host["pid"], 0) or "delivered")
attempt("host_command_line", lambda: open("/proc/%d/cmdline" % host["pid"]).read())
attempt("connect", connect)
attempt("no_new_privileges", lambda: str(ctypes.CDLL(None).prctl(39, 0, 0, 0, 0)))
attempt("effective_capabilities", lambda: status("CapEff"))
attempt("seccomp", lambda: status("Seccomp"))
attempt("user_namespace", new_user_namespace)
attempt("environment", lambda: [k + "=" + v for k, v in os.environ.items()])
attempt("first_environment", lambda: open("/proc/1/environ", "rb").read().decode("utf-8", "replace"))
attempt("write_source", lambda: open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "x"), "w").write("x"))
attempt("overwrite_source", lambda: open(os.path.abspath(__file__), "a").write("#"))
attempt("work", lambda: (open("scratch.txt", "w").write("x"), open("scratch.txt").read())[1])
print(json.dumps(seen))
"""

ARGUMENTS = """
import json, os, sys
sys.stderr.write("to stderr\\n")
print(json.dumps([sys.argv[1:], sys.stdin.read(), os.path.basename(os.path.abspath(__file__))]))
sys.exit(int(sys.argv[1]))
"""

FLOOD = """
import sys
sys.stdout.write("head of it\\n")
for number in range(60000):
    sys.stdout.write("%049d\\n" % number)
sys.stdout.write("tail of it\\n")
"""

SPIN_WITH_CHILD = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], start_new_session=True)
print("started", flush=True)
while True:
    time.sleep(0.01)
"""

OUTPUTS = """
import os
os.makedirs("output/deep", exist_ok=True)
open("output/deep/result.txt", "w").write("result")
open("output/other.bin", "wb").write(bytes(range(256)))
os.symlink("/etc/passwd", "output/link.txt")
"""

GARBAGE = """
import os
for number in range(1, 64):
    try:
        os.set_blocking(number, False)
        os.write(number, b"\\xa7K\\x01\\x00\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\xff" + b"\\xff" * 64)
    except OSError:
        pass
"""

REMEMBER = "kept = {value}"
RECALL = "print(kept)"
RAISE = "1/0"
MARK_PRIVATE_PLACES = """
import os
for folder in ("/tmp", "/dev/shm", os.getcwd()):
    try:
        open(os.path.join(folder, "agently-contract-mark"), "w").write("x")
    except OSError:
        assert folder != os.getcwd()
"""
FIND_MARKS = """
import os
print([folder for folder in ("/tmp", "/dev/shm", os.getcwd())
       if os.path.exists(os.path.join(folder, "agently-contract-mark"))])
"""
