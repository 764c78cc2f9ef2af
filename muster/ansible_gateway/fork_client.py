"""What ansible-runner starts for `ansible-playbook`: it lets the fork server run the playbook on this terminal.

Run by `python -IS`, which takes 15 ms: it imports nothing else.
"""

import json
import os
import socket
import sys


def main(path: str, arguments: list[str]) -> int:
    """Return the playbook's exit code; 1 where the server has died meanwhile."""
    directory = os.getcwd()  # noqa: PTH109 - pathlib takes as long to import as all of this
    request = {"directory": directory, "arguments": arguments, "environment": dict(os.environ)}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.connect(path)
        socket.send_fds(server, [b"\n"], [0, 1, 2])
        server.sendall(json.dumps(request).encode())
        server.shutdown(socket.SHUT_WR)
        code = server.recv(1)
    return code[0] if code else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
