"""Where a control node has what its users look for. Nothing is imported here: short commands read it first."""

SETTINGS = "/etc/muster/muster.yml"
SOCKET = "/run/muster-api.sock"
