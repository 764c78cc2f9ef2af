"""What the playbooks' plugins and the control node both name, without Ansible itself."""

# The key of the inventory's attributes in a result: muster/ansible_gateway/agent_action.py adds them.
INVENTORY = "inventory"
# The longest answer of an agent that reports.
MOST_OF_A_REPORT_BYTES = 32 << 20
