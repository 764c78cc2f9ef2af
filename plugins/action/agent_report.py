"""The control node's side of the module agent_report."""

from muster.ansible_gateway.agent_action import AgentAction as ActionModule

__all__ = ["ActionModule"]
