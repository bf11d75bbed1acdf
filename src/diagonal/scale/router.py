"""Which replica a request goes to: with a session id in its header always the same one, without the least busy one.

A browser cannot give a socket a header. It need not: a session is where its socket is, and one that is taken up can be
taken up anywhere. The header (`x-session-id`, any text) is for programs whose requests belong together.
"""

from __future__ import annotations

from typing import Any

from ray.serve.experimental.consistent_hash_router import ConsistentHashRouter

from diagonal.scale import presence


class SessionRouter(ConsistentHashRouter):
    """Serve's consistent hashing by session id, and its queue lengths for all else: new players go where seats are."""

    def update_replicas(self, replicas: list[Any]) -> None:
        """A new list, from the controller."""
        super().update_replicas(replicas)
        presence.tell(replica.replica_id.unique_id for replica in replicas)

    async def choose_replicas(
        self, candidate_replicas: list[Any], pending_request: Any | None = None
    ) -> list[list[Any]]:
        """In ranks; within one, the replica with the fewest open requests is taken."""
        if pending_request is not None and pending_request.metadata.session_id:
            ranked: list[list[Any]] = await super().choose_replicas(candidate_replicas, pending_request)
            return ranked
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
        return [candidate_replicas] if candidate_replicas else []
