"""What the playbooks' plugins and the control node both name."""

# The key of the inventory's attributes in a result: muster/ansible_gateway/agent_action.py adds them.
INVENTORY = "inventory"
