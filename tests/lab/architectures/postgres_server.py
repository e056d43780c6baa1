"""A PostgreSQL of our own for tests: started in a new folder, reached by a socket in it, gone at the end."""

import glob
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

DEBIAN = "/usr/lib/postgresql/*/bin"


def binaries():
    """Return the folder of initdb and postgres; None where there is none."""
    folders = [*sorted(glob.glob(DEBIAN), reverse=True), *os.environ["PATH"].split(os.pathsep)]
    return next(
        (Path(f) for f in folders if all(os.access(f"{f}/{name}", os.X_OK) for name in ("initdb", "postgres"))), None
    )


def account():
    """Return the user that runs the server, which root must not; None: the user that runs the test."""
    if os.getuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    pytest.skip("root runs no PostgreSQL, and there is no user 'postgres' or 'nobody'")


@contextmanager
def server():
    """Give the address of a fresh server. Skips where PostgreSQL is not installed."""
    found = binaries()
    if found is None:
        pytest.skip("PostgreSQL is not installed")
    user = account()
    folder = Path(tempfile.mkdtemp(prefix="octavo-postgres-", dir="/tmp"))  # a socket's path has 107 bytes at most
    as_user = {}
    if user is not None:
        os.chown(folder, user.pw_uid, user.pw_gid)
        as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    data = folder / "data"
    quiet = {"stdout": subprocess.DEVNULL, "cwd": folder, **as_user}
    try:
        made = [found / "initdb", "-D", data, "-U", "octavo", "-A", "trust", "-N", "-E", "UTF8", "--locale=C"]
        subprocess.run(made, check=True, stderr=subprocess.PIPE, **quiet)
        # Nothing of it outlives the test: no flushing, no address but the socket.
        options = [
            "-k",
            folder,
            "-c",
            "listen_addresses=",
            "-F",
            "-c",
            "max_connections=60",
            "-c",
            "shared_buffers=16MB",
        ]
        with open(folder / "log", "wb") as log:
            if user is not None:
                os.chown(folder / "log", user.pw_uid, user.pw_gid)
            running = subprocess.Popen([found / "postgres", "-D", data, *options], stderr=log, **quiet)
        try:
            address = f"postgresql://octavo@/postgres?host={folder}"
            wait_for(address, running, folder / "log")
            yield address
        finally:
            running.send_signal(signal.SIGINT)  # ends it, whoever is connected
            running.wait(30)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def wait_for(address, running, log):
    import time

    import psycopg

    for _ in range(600):
        try:
            psycopg.connect(address, connect_timeout=2).close()
            return
        except psycopg.OperationalError:
            if running.poll() is not None:
                break
            time.sleep(0.05)
    pytest.fail(f"PostgreSQL did not start: {log.read_text()[-2000:]}")
