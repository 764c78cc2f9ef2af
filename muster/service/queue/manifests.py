"""What a visit sends: each agent's manifest, of what is recorded."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from muster.contract.manifest import Manifest
from muster.core.launch.manifest import KeyPair, LaunchPolicy, Render, latest_begin, manifest
from muster.core.lifecycle import transitions
from muster.core.lifecycle.transitions import Event
from muster.core.model.session import Session, SessionState
from muster.core.model.snapshot import Snapshot
from muster.core.turn.last_words import Spools
from muster.core.turn.turn import Convergence
from muster.core.values.errors import StoreUnavailableError
from muster.service.identity.owner_uids import with_uids
from muster.store.store import Store

log = logging.getLogger(__name__)


class LastWords:
    """The last words that agents keep: `spools` by agent id, and the sessions whose logs the store still lacks."""

    def __init__(self, store: Store, spools: Mapping[str, Spools]) -> None:
        self._spools = spools
        ids = sorted({id_ for found in spools.values() for id_ in found.to_fetch})
        ended = store.get(ids) if ids else {}
        logged = store.kernels_with_logs(ids) if ids else frozenset()
        self._unfetched = {
            agent_id: [
                ended[id_] for id_ in found.to_fetch if id_ in ended and _lacks_a_log(ended[id_], agent_id, logged)
            ]
            for agent_id, found in spools.items()
        }

    def unfetched(self, agent_id: str) -> Sequence[Session]:
        """Return the sessions that have ended while the agent was away, and whose last words it keeps."""
        return self._unfetched.get(agent_id, ())

    def to_leave(self, agent_id: str) -> Sequence[str]:
        """Return the ids of those whose last words the agent is to keep."""
        return self._spools[agent_id].to_leave


def _lacks_a_log(session: Session, agent_id: str, logged: Collection[tuple[str, str]]) -> bool:
    """Return whether the session has ended without the log of a kernel on this agent; `logged` are those with one."""
    here = [k for k in session.kernels if k.allocation and k.allocation.agent_id == agent_id]
    ended = session.state is SessionState.TERMINATED
    return ended and any((session.id, kernel.name) not in logged for kernel in here)


class ManifestWriter:
    """The writer of manifests, by the site's launch policy and its templates."""

    def __init__(self, store: Store, launch_policy: LaunchPolicy, render: Render) -> None:
        self._store = store
        self._launch_policy = launch_policy
        self._render = render

    def manifests(
        self,
        visit: Convergence,
        snapshot: Snapshot,
        keys: Mapping[str, KeyPair],
        generation: int,
        last_words: LastWords,
    ) -> dict[str, Manifest]:
        """Return the manifests of the visit's agents, by their ids; `keys` are those of what is launched."""
        launched = [session for session in snapshot.placed if session.id in keys]
        owners = {session.owner for session in launched}
        owners |= {folder.owner for session in launched for folder in session.folders}
        policy = with_uids(self._launch_policy, self._store, owners)
        return {
            agent.id: manifest(
                agent,
                (*snapshot.placed, *last_words.unfetched(agent.id)),
                keys,
                generation,
                policy,
                self._render,
                keeps_overlays=visit.overlay_keeper == agent.id,
                encrypting=[agent.id for agent in snapshot.agents if agent.report.swarm.encrypts],
                kept_spools=last_words.to_leave(agent.id),
                begin_by_s=latest_begin(agent, snapshot.now, policy),
                databases=snapshot.databases,
            )
            for agent in visit.agents
        }

    def failures(
        self, visit: Convergence, snapshot: Snapshot, keys: Mapping[str, KeyPair], generation: int
    ) -> dict[str, Event]:
        """Return by session id the failures of those launches of which no manifest can be written.

        Raises StoreUnavailableError.
        """
        found = {}
        nothing = LastWords(self._store, {agent.id: Spools() for agent in visit.agents})
        for session in snapshot.placed:
            if session.id in keys:
                alone = replace(snapshot, sessions=(session,))
                try:
                    self.manifests(visit, alone, keys, generation, nothing)
                except StoreUnavailableError:
                    raise
                except Exception as error:
                    log.exception("no manifest can be written for session %s", session.id)
                    reason = f"its manifest cannot be written ({type(error).__name__}); the daemon's log says why"
                    found[session.id] = transitions.launch_failed(session, reason, snapshot.now, permanent=True)
        return found
