"""python -m tests.lab up [N] | down | molecule-up DIRECTORY sshd|engine NAME… | molecule-down DIRECTORY.

`molecule-up` prints an inventory of the hosts; their keys lie in the directory. All have an sshd, with `engine` a
Docker engine too.
"""

import json
import sys
from pathlib import Path

from tests.gpu.gpu_host import NETWORK as GPU_NETWORK
from tests.lab.bring_up import NETWORK, bring_up
from tests.lab.host import HostError
from tests.lab.host_network import HostNetwork


def molecule_network(directory: str, image: str = "sshd") -> HostNetwork:
    return HostNetwork("muster-molecule", "192.168.215.0/24", Path(directory), engine=image == "engine")


def main(arguments: list[str]) -> int:
    match arguments:
        case ["up", *count] if not count or count[0].isdecimal():
            return bring_up(int(count[0]) if count else 3)
        case ["down"]:
            NETWORK.take_down()
            GPU_NETWORK.take_down()
        case ["molecule-up", directory, "sshd" | "engine" as image, *names]:
            network = molecule_network(directory, image)
            hosts = {host.name: network.inventory_of(host) for host in network.bring_up(names)}
            sys.stdout.write(json.dumps({"all": {"hosts": hosts}}))
        case ["molecule-down", directory]:
            molecule_network(directory).take_down()
        case _:
            raise SystemExit(__doc__)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except HostError as error:
        sys.exit(f"lab: {error}")
